"""Sound: what files hold, windows of signals and of archives, features; alone and in tf.data."""

import concurrent.futures
import contextlib
import dataclasses
import io
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import soundfile
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from library.audio import (
    Archive,
    archives,
    covering_windows,
    dataset_from_dir,
    dataset_signal_slice_windows,
    log_mel,
    random_windows,
    read_sound,
    standard_waveform,
    to_float,
    wav_bytes,
    write_archive,
    write_index,
)
from library.data import Card, DamagedRecordError, record_dataset, replay_dataset, tfrecord
from library.util import BadFileError, UserError

RATE = 16000
NOISE = np.random.default_rng(0).integers(-(2**31), 2**31, [4001, 6]).astype(np.int32)
"""Samples of 32 bit, for six channels."""
WAVEFORM = (NOISE[:, 0] >> 16).astype(np.int16)


def sine(hertz: float, rate: int, secs: float = 1.0, amplitude: float = 0.5) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * hertz * np.arange(int(rate * secs)) / rate)


def encoded(samples: np.ndarray, kind: str = "WAV", subtype: str = "PCM_16", rate: int = RATE):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return name + struct.pack("<I", length) + content + bytes(len(content) % 2)


def wav(
    samples: np.ndarray,
    bits: int = 16,
    *,
    rate: int = RATE,
    size: int | None = None,
    before: bytes = b"",
    after: bytes = b"",
    extensible: bool = False,
) -> bytes:
    """A WAV file byte by byte, of the upper bits of int32 [samples, channels]."""
    channels, width = samples.shape[1], bits // 8
    body = np.ascontiguousarray(samples, "<i4").view(np.uint8).reshape(-1, 4)[:, 4 - width :]
    if bits == 8:
        body = body ^ 0x80  # without a sign
    code = 0xFFFE if extensible else 1
    form = struct.pack(
        "<HHIIHH", code, channels, rate, rate * channels * width, channels * width, bits
    )
    if extensible:
        pcm = bytes.fromhex("0100000000001000800000aa00389b71")
        form += struct.pack("<HHI", 22, bits, 0) + pcm
    rest = b"WAVE" + chunk(b"fmt ", form) + before + chunk(b"data", body.tobytes(), size) + after
    return b"RIFF" + struct.pack("<I", min(len(rest), size or len(rest))) + rest


def upper(samples: np.ndarray, bits: int) -> np.ndarray:
    return samples >> (32 - bits) << (32 - bits)


def even(counts: np.ndarray) -> bool:
    """Whether chi-square is within five standard deviations of what even chances give."""
    freedom = len(counts) - 1
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    return abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("extensible", [False, True])
def test_whole_numbers_keep_all_their_bits(bits, channels, extensible):
    expected = upper(NOISE[:, :channels], bits)
    data = wav(NOISE[:, :channels], bits, rate=22050, extensible=extensible)
    samples, rate = read_sound(data, "int32")
    assert (samples.dtype, rate) == (np.int32, 22050)
    np.testing.assert_array_equal(samples, expected)
    floats, _ = read_sound(data)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, expected / 2**31, rtol=0, atol=2**-25)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_floats_are_scaled_to_whole_numbers_and_clipped(subtype, channels):
    written = np.linspace(-1.5, 1.5, 1001 * channels).reshape(-1, channels).astype(np.float32)
    data = encoded(written, subtype=subtype)
    floats, _ = read_sound(data)
    np.testing.assert_array_equal(floats, written)
    samples, _ = read_sound(data, "int32")
    expected = np.clip(np.rint(written.astype(float) * 2**31), -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize(("subtype", "bits"), [("PCM_16", 16), ("PCM_24", 24)])
def test_flac_has_the_samples_of_the_wav(subtype, bits):
    samples, rate = read_sound(encoded(NOISE[:, :2], "FLAC", subtype, 44100), "int32")
    np.testing.assert_array_equal(samples, upper(NOISE[:, :2], bits))
    assert rate == 44100


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("WAV", "ULAW")],
)
def test_what_is_compressed_with_losses_is_nearly_the_same(kind, subtype):
    tone = sine(440, RATE)
    samples, rate = read_sound(encoded(tone, kind, subtype))
    assert (rate, len(samples)) == (RATE, RATE)
    middle = slice(2000, -2000)
    assert np.abs(samples[middle, 0] - tone[middle]).max() < 0.03
    whole, _ = read_sound(encoded(tone, kind, subtype), "int32")
    np.testing.assert_allclose(whole / 2**31, np.clip(samples, -1, 1), atol=1e-6)


LIST = chunk(b"LIST", b"INFOINAM\x03\0\0\0ab\0")  # of an odd size, and filled up by a byte
MONO = NOISE[:, :1]


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (wav(MONO, before=LIST), 16),
        (wav(MONO, after=LIST), 16),
        (wav(MONO, 8, after=LIST), 8),  # 4,001 bytes, and one to fill up
        (wav(MONO, after=LIST[:-5]), 16),
        (wav(MONO, size=0xFFFFFFFF), 16),
        (wav(MONO, size=0x7FFFF000), 16),
        (wav(MONO, before=LIST, size=0xFFFFFFFF), 16),
        (wav(MONO) + b"more behind it", 16),
    ],
    ids=["before", "after", "odd", "cut", "pipe", "sox-pipe", "both", "rest"],
)
def test_other_chunks_and_unknown_lengths_do_no_harm(data, bits):
    samples, rate = read_sound(data, "int32")
    assert rate == RATE
    np.testing.assert_array_equal(samples[: len(MONO)], upper(MONO, bits))
    assert len(samples) <= len(MONO) + 10  # without a length, what is behind it is taken for sound


def with_a_sample(value: float) -> bytes:
    return encoded(np.append(sine(440, RATE), value), subtype="FLOAT")


def flac_of_length(samples: int) -> bytes:
    """A FLAC file whose header claims so many, in 36 bits."""
    data = bytearray(encoded(WAVEFORM, "FLAC"))
    data[21:26] = ((data[21] & 0xF0) << 32 | samples).to_bytes(5, "big")
    return bytes(data)


def shorter(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"This is a text.\n" * 99, "not a recording"),
        (bytes(9999), "not a recording"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "not a recording"),
        (wav(MONO)[:-100], "truncated: 100 bytes are missing"),
        (wav(MONO)[:44], "truncated: 8,002 bytes are missing"),
        (wav(MONO, before=LIST)[:-1], "truncated: 1 bytes are missing"),
        (wav(MONO)[:40], "broken recording: .*data"),
        (wav(MONO)[:20], "broken recording: .*fmt"),
        (wav(MONO)[:3], "not a recording"),
        (wav(MONO[:0]), "no samples"),
        (wav(MONO, size=0), "no samples"),
        (wav(MONO, rate=0), "broken recording: "),
        (encoded(WAVEFORM, "AIFF")[:-9], "truncated: 9 bytes are missing"),
        (shorter(encoded(WAVEFORM, "FLAC"), 0.5), "broken recording: "),
        (shorter(encoded(sine(440, RATE), "OGG", "VORBIS"), 0.5), "no samples|broken recording"),
        (
            shorter(encoded(sine(440, RATE), "MP3", "MPEG_LAYER_III"), 0.5),
            "truncated: .* of 16,000 samples are missing",
        ),
        (flac_of_length(0), "its header does not say how long it is"),
        (flac_of_length(2**36 - 1), "too long: 68,719,476,735 samples of 1 channels"),
        (with_a_sample(np.nan), "broken recording: a sample is no number"),
        (with_a_sample(np.inf), "broken recording: a sample is no number"),
    ],
)
def test_what_cannot_be_used_has_one_reason(data, reason):
    for dtype in ("float32", "int32"):
        with pytest.raises(BadFileError, match=reason) as error:
            read_sound(data, dtype)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(BadFileError, match=reason):
        standard_waveform(data, sample_rate=8000)


@pytest.mark.filterwarnings("error")
def test_changed_bytes_give_samples_or_a_reason():
    random = np.random.default_rng(0)
    kinds = [("WAV", "PCM_16"), ("WAV", "MS_ADPCM"), ("WAVEX", "FLOAT"), ("FLAC", "PCM_24")]
    kinds += [("AIFF", "PCM_16"), ("OGG", "VORBIS"), ("XI", "DPCM_16"), ("AU", "PCM_16")]
    originals = [encoded(WAVEFORM, *kind) for kind in kinds]
    used = 0
    for number in range(400):
        data = bytearray(originals[number % len(kinds)])
        # The first bytes are what a decoder's choices hang on: half of the harm is done there.
        most = len(data) if random.random() < 0.5 else 100
        for position in random.integers(most, size=random.integers(1, 5)):
            data[position] ^= 1 << random.integers(8)
        with contextlib.suppress(BadFileError):
            waveform = standard_waveform(bytes(data), sample_rate=RATE)
            assert (waveform.dtype, waveform.ndim) == (np.int16, 1)
            assert len(waveform)
            used += 1
    assert 40 < used < 360


# ---- the standard ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF"])
def test_16_bit_of_one_channel_and_this_rate_stay_as_they_are(kind):
    waveform = standard_waveform(encoded(WAVEFORM, kind), sample_rate=RATE)
    assert waveform.dtype == np.int16
    np.testing.assert_array_equal(waveform, WAVEFORM)


def test_channels_are_averaged():
    stereo = (NOISE[:, :2] >> 16).astype(np.int16)
    waveform = standard_waveform(encoded(stereo), sample_rate=RATE)
    np.testing.assert_array_equal(waveform, np.rint(stereo.mean(axis=1)))
    six = standard_waveform(wav(NOISE, 24), sample_rate=RATE)
    expected = upper(NOISE, 24).mean(axis=1) / 2**16
    np.testing.assert_allclose(six, expected, atol=0.51)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_another_rate_keeps_pitch_and_level(rate):
    """Within 0.1 % of the amplitude, where the ends of the tone are not heard."""
    data = encoded(sine(1000, rate), subtype="FLOAT", rate=rate)
    waveform = standard_waveform(data, sample_rate=RATE)
    assert abs(len(waveform) - RATE) <= 1
    expected = 32768 * sine(1000, RATE)[: len(waveform)]
    middle = slice(1000, -1000)
    assert np.abs(waveform - expected)[middle].max() < 0.001 * 16384


def test_what_a_lower_rate_cannot_hold_is_not_mirrored():
    waveform = standard_waveform(encoded(sine(10000, 44100), rate=44100), sample_rate=RATE)
    assert np.abs(waveform[1000:-1000]).max() < 0.001 * 16384


def test_what_is_too_loud_is_clipped():
    loud = np.array([0.0, 1.5, -1.5, 0.5, 1.0, -1.0])
    waveform = standard_waveform(encoded(loud, subtype="FLOAT"), sample_rate=RATE)
    assert waveform.tolist() == [0, 32767, -32768, 16384, 32767, -32768]


def test_a_rate_that_would_take_more_memory_than_there_is_is_refused():
    slow = wav(np.zeros([40000, 1], np.int32), rate=1)
    with pytest.raises(BadFileError, match="too long: 40,000 samples, 1 per second"):
        standard_waveform(slow, sample_rate=RATE)
    with pytest.raises(BadFileError, match="no samples at this rate"):
        standard_waveform(wav(MONO, rate=2**31 - 1), sample_rate=1000)


@pytest.mark.parametrize("waveform", [WAVEFORM, np.int16([7]), np.int16([-32768, 32767])])
def test_tensorflow_decodes_what_is_encoded(waveform):
    decoded, rate = tf.audio.decode_wav(wav_bytes(waveform, sample_rate=11025))
    assert rate == 11025
    np.testing.assert_array_equal(decoded[:, 0] * 32768, waveform)
    again = standard_waveform(wav_bytes(waveform, sample_rate=11025), sample_rate=11025)
    np.testing.assert_array_equal(again, waveform)


# ---- folders of files --------------------------------------------------------------------------


def write(folder: Path, **sounds: bytes) -> Path:
    """Files in a folder each: `write(folder, a_1_wav=...)` writes a/1.wav."""
    for name, data in sounds.items():
        class_name, *rest, kind = name.split("_")
        file = folder.joinpath(class_name, *rest).with_suffix(f".{kind}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def elements(dataset: tf.data.Dataset) -> list[dict[str, np.ndarray]]:
    return list(dataset.as_numpy_iterator())


def in_a_graph(make: Callable[[], tf.data.Dataset], count: int) -> list:
    """The first elements, as the Estimator gets them: `==` between tensors is another thing."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(make())
        step = iterator.get_next()
        session.run(iterator.initializer)
        return [session.run(step) for _ in range(count)]


def test_a_folder_is_read_in_the_order_of_classes_and_names(tmp_path):
    sounds = {
        "10_b_wav": wav(MONO[:30]),
        "10_a_flac": encoded(WAVEFORM[:20], "FLAC"),
        "9_deeper_z_wav": wav(MONO[:10], 32),
        "9_y_wav": wav(MONO[:11], 8),
        "käse_one_wav": wav(MONO[:12], 24),
    }
    write(tmp_path, **sounds)
    (tmp_path / "9" / ".DS_Store").write_bytes(b"junk")
    dataset = dataset_from_dir(tmp_path)
    assert {name: (spec.dtype.name, spec.shape) for name, spec in dataset.element_spec.items()} == {
        "signal": ("int32", [None]),
        "sample_rate": ("int64", []),
        "class": ("string", []),
        "target": ("int64", []),
        "num_classes": ("int64", []),
        "filepath": ("string", []),
        "index": ("int64", []),
    }
    files = ["9/deeper/z.wav", "9/y.wav", "10/a.flac", "10/b.wav", "käse/one.wav"]
    samples = [(10, 32), (11, 8), (20, 16), (30, 16), (12, 24)]
    found = elements(dataset)
    assert [each["filepath"].decode() for each in found] == [str(tmp_path / name) for name in files]
    assert [each["class"].decode() for each in found] == ["9", "9", "10", "10", "käse"]
    assert [each["target"] for each in found] == [0, 0, 1, 1, 2]
    assert [each["index"] for each in found] == list(range(5))
    assert {int(each["num_classes"]) for each in found} == {3}
    for each, (length, bits) in zip(found, samples, strict=True):
        np.testing.assert_array_equal(each["signal"], upper(MONO[:length, 0], bits))
    for each, again in zip(found, in_a_graph(lambda: dataset_from_dir(tmp_path), 5), strict=True):
        assert each.keys() == again.keys()
        assert all(np.array_equal(each[key], again[key]) for key in each)


def test_an_infinite_dataset_begins_again(tmp_path):
    write(tmp_path, a_1_wav=wav(MONO), b_1_wav=wav(MONO), b_2_wav=wav(MONO))
    assert len(elements(dataset_from_dir(tmp_path))) == 3
    again = elements(dataset_from_dir(str(tmp_path), infinite=True).take(8))
    assert [each["index"] for each in again] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_rates_and_channels_can_be_mixed(tmp_path):
    sounds = {"a_1_wav": wav(NOISE[:, :1], rate=8000), "a_2_wav": wav(NOISE[:, :2], rate=44100)}
    dataset = dataset_from_dir(write(tmp_path, **sounds, a_3_wav=wav(NOISE, rate=8000)))
    assert dataset.element_spec["signal"].shape.as_list() == [None, None]
    found = elements(dataset)
    assert [each["sample_rate"] for each in found] == [8000, 44100, 8000]
    assert [each["signal"].shape for each in found] == [(4001, 1), (4001, 2), (4001, 6)]
    np.testing.assert_array_equal(found[1]["signal"], upper(NOISE[:, :2], 16))


def test_file_names_need_not_be_text(tmp_path):
    write(tmp_path, **{"a_no\udcfftext_wav": wav(MONO)})
    (found,) = elements(dataset_from_dir(tmp_path))
    assert found["filepath"].endswith(b"/a/no\xfftext.wav")


@pytest.mark.parametrize(
    ("sounds", "lines"),
    [
        ({}, ["HERE: there is no such folder"]),
        ({"a_b_1_wav": b""}, ["HERE/a/b/1.wav: "]),
        (
            {"a_1_wav": b"", "a_2_wav": wav(MONO), "b_3_wav": b"no sound"},
            ["HERE/a/1.wav: ", "HERE/b/3.wav: Format not recognised."],
        ),
    ],
)
def test_files_that_cannot_be_used_are_a_line_each(tmp_path, sounds, lines):
    folder = write(tmp_path / "in", **sounds)
    with pytest.raises(UserError) as error:
        dataset_from_dir(folder)
    assert len(error.value.lines) == len(lines)
    for line, expected in zip(error.value.lines, lines, strict=True):
        assert line.replace(str(folder), "HERE").startswith(expected)


def test_a_folder_without_classes_or_without_files_is_one_line(tmp_path):
    with pytest.raises(UserError, match="has no folders: one for each class") as error:
        dataset_from_dir(tmp_path)
    assert len(error.value.lines) == 1
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="there are no files in its folders"):
        dataset_from_dir(tmp_path)


def test_a_file_that_breaks_off_is_named_when_it_is_read(tmp_path):
    write(tmp_path, a_1_wav=wav(MONO), a_2_wav=wav(MONO)[:-100])
    with pytest.raises(tf.errors.InvalidArgumentError, match="a/2.wav: truncated: .* missing"):
        elements(dataset_from_dir(tmp_path))


# ---- windows of signals ------------------------------------------------------------------------


def signals_of(lengths: list[int], dtype: str = "int32", channels: int | None = None):
    """Signals whose samples count from 1 on, and what stands beside them."""

    def generate() -> Iterator[dict]:
        for number, length in enumerate(lengths):
            signal = np.arange(1, length + 1) + 100 * number
            if channels:
                signal = np.stack([signal + 1000 * channel for channel in range(channels)], axis=1)
            yield {"signal": signal.astype(dtype), "index": number, "name": f"no {number}"}

    shape = [None, channels] if channels else [None]
    signature = {
        "signal": tf.TensorSpec(shape, dtype),
        "index": tf.TensorSpec([], tf.int64),
        "name": tf.TensorSpec([], tf.string),
    }
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def slow_windows(length: int, win_len: int, stride: int, pad: bool, limit: int | None):
    """(start, samples) of the windows of a signal that counts from 1 on, one by one."""
    found, start = [], 0
    while start < length and (limit is None or len(found) < limit):
        window = list(range(start + 1, length + 1))[:win_len]
        if len(window) < win_len and not pad:
            break
        found.append((start, window + [0] * (win_len - len(window))))
        if pad and start + win_len >= length:
            break
        start += stride
    return found


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("stride", [None, 1, 3, 6])
@pytest.mark.parametrize("win_len", [1, 3, 4])
def test_windows_are_those_of_a_loop_over_each_signal(win_len, stride, pad):
    lengths = list(range(12))
    for limit in (None, 1, 2):
        dataset = dataset_signal_slice_windows(
            signals_of(lengths), win_len, stride=stride, pad=pad, windows_per_signal=limit
        )
        assert dataset.element_spec["signal"].shape == [win_len]
        assert dataset.element_spec["win_start_idx"] == tf.TensorSpec([], tf.int32)
        expected = [
            (number, start, window)
            for number, length in enumerate(lengths)
            for start, window in slow_windows(length, win_len, stride or win_len, pad, limit)
        ]
        found = elements(dataset)
        for each, (number, start, window) in zip(found, expected, strict=True):
            assert (each["index"], each["win_start_idx"]) == (number, start)
            assert each["name"] == f"no {number}".encode()
            counted = [sample - 100 * number if sample else 0 for sample in each["signal"]]
            assert counted == window
            assert any(window), "no window of padding alone"


@pytest.mark.parametrize("dtype", ["int16", "float64"])
def test_windows_of_several_channels_and_of_any_type(dtype):
    dataset = signals_of([5, 2], dtype, channels=2).map(lambda each: {"sound": each["signal"]})
    windows = dataset_signal_slice_windows(dataset, 3, pad=True, data_key="sound")
    assert windows.element_spec["sound"] == tf.TensorSpec([3, 2], dtype)
    found = [each["sound"].tolist() for each in elements(windows)]
    assert found == [
        [[1, 1001], [2, 1002], [3, 1003]],
        [[4, 1004], [5, 1005], [0, 0]],
        [[101, 1101], [102, 1102], [0, 0]],
    ]


def test_windows_by_lot_follow_from_the_seed():
    def draw(seed: int, **more) -> list[tuple]:
        dataset = dataset_signal_slice_windows(
            signals_of([50, 3, 50, 4]), 4, windows_per_signal=5, seed=seed, **more
        )
        for each in elements(dataset):
            offset = each["win_start_idx"] + 100 * each["index"]
            assert all(s in (0, k + 1 + offset) for k, s in enumerate(each["signal"]))
        return [(int(each["index"]), int(each["win_start_idx"])) for each in elements(dataset)]

    first = draw(1)
    assert first == draw(1) != draw(2)
    assert [index for index, _ in first] == [0] * 5 + [2] * 5 + [3] * 5, "one is too short"
    assert [s for i, s in first if i == 0] != [s for i, s in first if i == 2]
    assert [s for i, s in first if i == 3] == [0] * 5
    assert draw(1, pad=True) == [*first[:5], *[(1, 0)] * 5, *first[5:]]
    one = dataset_signal_slice_windows(signals_of([50, 0, 50]), 4, seed=1, pad=True)
    assert [each["index"] for each in elements(one)] == [0, 2]


def test_windows_of_signals_are_the_same_in_a_graph():
    def make() -> tf.data.Dataset:
        signals = signals_of([50, 3, 7])
        return dataset_signal_slice_windows(signals, 4, windows_per_signal=5, seed=1, pad=True)

    for each, again in zip(elements(make()), in_a_graph(make, 15), strict=True):
        assert each["win_start_idx"] == again["win_start_idx"]
        assert (each["signal"] == again["signal"]).all()


def test_windows_by_lot_begin_everywhere_as_likely():
    dataset = dataset_signal_slice_windows(signals_of([9] * 7), 4, windows_per_signal=999, seed=3)
    starts = [each["win_start_idx"] for each in elements(dataset)]
    counts = np.bincount(starts)
    assert len(counts) == 6, "from the first to the last window"
    assert even(counts)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda d: d, {"win_len": 0}, "win_len: 0 is not at least 1"),
        (lambda d: d, {"win_len": -3}, "win_len: -3 is not at least 1"),
        (lambda d: d, {"win_len": 3, "stride": 0}, "stride: 0 is not at least 1"),
        (lambda d: d, {"win_len": 3, "windows_per_signal": 0}, "windows_per_signal: 0 is not"),
        (lambda d: d, {"win_len": 3, "data_key": "sound"}, "data_key: the dataset has no sound"),
        (lambda d: d, {"win_len": 3, "data_key": "index"}, r"data_key: index has the shape \(\)"),
        (lambda d: d.map(lambda each: each["signal"]), {"win_len": 3}, "has to be one of dicts"),
        (lambda d: d.map(lambda each: (each, 1)), {"win_len": 3}, "has to be one of dicts"),
        (lambda d: d.batch(2), {"win_len": 3}, "dataset: it is batched"),
        (lambda d: d.padded_batch(2), {"win_len": 3}, "dataset: it is batched"),
        (lambda d: d.ragged_batch(2), {"win_len": 3}, "dataset: it is batched"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_line(change, options, message):
    with pytest.raises(UserError, match=message):
        dataset_signal_slice_windows(change(signals_of([9, 9])), **options)


# ---- archives ----------------------------------------------------------------------------------

FILES = ["a/0.wav", "käse/1.wav", "a/no\udcfftext.wav", "b/one, two.wav", "b/4.wav"]


def write_set(path: Path, waveforms: list[np.ndarray], shards: int = 1) -> str:
    """A data set as a conversion writes it, of two classes in turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"{path.name}-{n:05}-of-{shards:05}.h5" for n in range(shards)]
    rows = [
        (FILES[number % 5], number % 2, "ab"[number % 2], (waveform, 100))
        for number, waveform in enumerate(waveforms)
    ]
    per_shard = -(-len(rows) // shards)
    written = [
        write_archive(path.with_name(name), rows[n * per_shard : (n + 1) * per_shard])
        for n, name in enumerate(names)
    ]
    write_index(path, [path.with_name(name) for name in names])
    Card(["a", "b"], {}, written, {"sample_rate": RATE}).save(f"{path}.json")
    return str(path)


def noises(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(-(2**15), 2**15, length).astype(np.int16) for length in lengths]


WAVEFORMS = noises(250, 1, 1000, 99, 100, 101, 640)


@pytest.fixture
def stored(tmp_path) -> str:
    """The data set of WAVEFORMS, in three shards."""
    return write_set(tmp_path / "data" / "train", WAVEFORMS, 3)


def test_an_archive_has_what_was_written(stored):
    archive = Archive(stored)
    assert archive.num_examples == 7
    assert archive.sizes.tolist() == [2 * len(waveform) for waveform in WAVEFORMS]
    assert archive.index["label"].tolist() == [0, 1, 0, 1, 0, 1, 0]
    order = np.array([6, 0, 1, 1, 5])
    for number, waveform in zip(order, archive.read(order), strict=True):
        assert waveform.dtype == np.int16
        np.testing.assert_array_equal(waveform, WAVEFORMS[number])
        np.testing.assert_array_equal(archive.read_one(number), waveform)
    assert archive.names(np.array([1, 2, 3, 6])) == [
        "käse/1.wav",
        "a/no\ufffdtext.wav",
        "b/one, two.wav",
        "käse/1.wav",
    ]


def test_others_can_read_an_archive(stored):
    with h5py.File(f"{stored}-00001-of-00003.h5") as file:
        assert list(file) == ["000000", "000001", "000002"]
        waveform = file["000001/waveform"]
        np.testing.assert_array_equal(waveform[:], WAVEFORMS[4])
        assert (waveform.chunks, file["000000/waveform"].chunks) == ((100,), (99,))
        attributes = dict(file["000001"].attrs)
    assert attributes == {"file": "b/4.wav", "label": 0, "class": "a"}


def test_the_same_recordings_are_the_same_bytes_whenever_they_are_written(stored, tmp_path):
    time.sleep(1.1)  # HDF5 counts seconds
    again = write_set(tmp_path / "again" / "train", WAVEFORMS, 3)
    for file in Path(stored).parent.iterdir():
        assert file.read_bytes() == Path(again).with_name(file.name).read_bytes()


def test_windows_reach_beyond_a_recording_with_zeros(stored):
    archive = Archive(stored)
    cases = [
        (number, start, win_len)
        for number in (1, 3, 5)
        for win_len in (1, 7, 150)
        for start in {-win_len - 1, -win_len, -win_len + 1, -3, 0, 1, 50, 94, 98, 99, 100, 101, 200}
    ]
    for win_len in (1, 7, 150):
        ids, starts = np.array([(n, s) for n, s, w in cases if w == win_len]).T
        for window, number, start in zip(
            archive.read_windows(ids, starts, win_len), ids, starts, strict=True
        ):
            far = np.pad(WAVEFORMS[number], 500)
            np.testing.assert_array_equal(window, far[500 + start :][:win_len])


def test_many_threads_read_what_one_reads(stored):
    archive = Archive(stored)
    random = np.random.default_rng(0)
    calls = [(random.integers(7, size=64), random.integers(-60, 990, 64)) for _ in range(200)]
    expected = [archive.read_windows(ids, starts, 50) for ids, starts in calls]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda call: archive.read_windows(*call, 50), calls))
    for one, several in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, several)


def test_a_thread_opens_a_file_once(stored, monkeypatch):
    """Also one of TensorFlow, which Python forgets after each call."""
    opened, original = [], archives._opened

    def counting(path: str):
        opened.append((path, threading.get_ident()))
        return original(path)

    archive = Archive(stored)
    monkeypatch.setattr(archives, "_opened", counting)

    def make() -> tf.data.Dataset:
        return samples_of(range(64 * 50)).apply(random_windows(archive, 20, seed=0)).prefetch(10)

    assert len(in_a_graph(make, 64 * 50)) == len(elements(make())) == 64 * 50
    archive.read_one(np.int64(0))
    assert len(set(opened)) == len(opened)
    assert {path for path, _ in opened} == set(archive.shards)


def samples_of(numbers: range, recordings: int = 7) -> tf.data.Dataset:
    """(number of the sample, id) of a run, the recordings one after another."""
    dataset = tf.data.Dataset.range(numbers.start, numbers.stop)
    return dataset.map(lambda number: (number, number % recordings))


def save(index: Path, rows: np.ndarray) -> None:
    with open(index, "wb") as file:
        np.save(file, rows)


@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        lambda index: index.write_bytes(b""),
        lambda index: index.write_bytes(index.read_bytes()[:-8]),
        lambda index: save(index, np.load(index)[::-1]),
        lambda index: save(index, np.load(index)[:-1]),
        lambda index: save(index, np.arange(7)),
    ],
    ids=["missing", "empty", "cut", "order", "fewer", "other"],
)
def test_an_index_that_does_not_fit_is_written_anew(stored, change, capsys):
    index = Path(f"{stored}.index")
    before = index.read_bytes()
    change(index)
    archive = Archive(stored)
    assert capsys.readouterr().out.startswith(f"{index}: written anew, since it was missing or did")
    assert index.read_bytes() == before
    np.testing.assert_array_equal(archive.read_one(6), WAVEFORMS[6])


def test_an_index_of_other_recordings_is_told_when_they_are_read(stored):
    rows = np.load(f"{stored}.index")
    rows["length"][3] += 5
    save(Path(f"{stored}.index"), rows)
    archive = Archive(stored)
    archive.read_one(2)
    with pytest.raises(DamagedRecordError, match="00001-of-00003.h5: recording 000000 has 99 samp"):
        archive.read_one(3)


def edit(path: str, change: Callable[[h5py.File], None]) -> None:
    """Change the second shard of a data set, and its card with it."""
    file = Path(f"{path}-00001-of-00003.h5")
    with h5py.File(file, "r+") as archive:
        change(archive)
    card = Card.load(f"{path}.json")
    card.shards[1] = dataclasses.replace(card.shards[1], bytes=file.stat().st_size)
    card.save(f"{path}.json")


def replace_waveform(waveform: np.ndarray) -> Callable[[h5py.File], None]:
    def change(archive: h5py.File) -> None:
        del archive["000001/waveform"]
        archive["000001"]["waveform"] = waveform

    return change


def drop(name: str) -> Callable[[h5py.File], None]:
    return lambda archive: archive.__delitem__(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("000001/waveform"), "recording 000001 has no dataset waveform"),
        (drop("000001"), "recording 000001 has no dataset waveform"),
        (replace_waveform(np.zeros(100)), r"000001/waveform is float64 \[100\], not int16 \[samp"),
        (replace_waveform(np.zeros([5, 20], np.int16)), r"000001/waveform is int16 \[5, 20\], not"),
    ],
)
def test_a_recording_that_is_not_one_is_a_line(stored, change, message):
    edit(stored, change)
    with pytest.raises(DamagedRecordError, match=f"train-00001-of-00003.h5: {message}") as error:
        Archive(stored).read_windows(np.array([0, 4]), np.array([0, 0]), 10)
    assert len(error.value.lines) == 1
    Path(f"{stored}.index").unlink()
    with pytest.raises(DamagedRecordError, match=f"train-00001-of-00003.h5: {message}"):
        Archive(stored)


def test_a_recording_without_a_label_is_a_line(stored):
    edit(stored, lambda archive: archive["000002"].attrs.__delitem__("label"))
    Path(f"{stored}.index").unlink()
    with pytest.raises(DamagedRecordError, match="00001-of-00003.h5: recording 000002 has no labe"):
        Archive(stored)


def test_files_that_are_missing_or_others_are_a_line(stored, tmp_path):
    shard = Path(f"{stored}-00001-of-00003.h5")
    content = shard.read_bytes()
    shard.write_bytes(b"x" * len(content))
    with pytest.raises(DamagedRecordError, match="00001-of-00003.h5: not an HDF5 file that can be"):
        Archive(stored).read_one(4)
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match="00001-of-00003.h5: .* bytes, but .*train.json says"):
        Archive(stored)
    shard.unlink()
    with pytest.raises(UserError, match="00001-of-00003.h5: there is no such file, but .*train.js"):
        Archive(stored)
    with pytest.raises(UserError, match="none.json: there is no such file"):
        Archive(tmp_path / "none")
    with pytest.raises(UserError, match="recordings are read from files of this machine only"):
        Archive("gs://bucket/train")


def test_tfrecords_are_not_taken_for_archives(tmp_path):
    shard, rows = tfrecord.write_shard(tmp_path / "t-00000-of-00001.tfrecord", [b"one", b"two"])
    tfrecord.write_index(tmp_path / "t.index", [rows])
    Card(["a"], {"a": 2}, [shard], {}).save(tmp_path / "t.json")
    before = (tmp_path / "t.index").read_bytes()
    with pytest.raises(UserError, match="t-00000-of-00001.tfrecord: not an HDF5 file") as error:
        Archive(tmp_path / "t")
    assert len(error.value.lines) == 1
    assert (tmp_path / "t.index").read_bytes() == before


def test_a_changed_byte_gives_a_recording_or_a_line(tmp_path):
    """Of samples, --verify knows the checksum; what is around them has those of HDF5."""
    path = write_set(tmp_path / "train", WAVEFORMS)
    shard = Path(f"{path}-00000-of-00001.h5")
    content, told = shard.read_bytes(), 0
    for position in np.random.default_rng(0).integers(len(content), size=200):
        changed = bytearray(content)
        changed[position] ^= 1
        shard.unlink()  # or HDF5 would go on with what it has in memory of this file
        shard.write_bytes(changed)
        archive, told = Archive(path), told + 1
        with contextlib.suppress(DamagedRecordError):
            found = archive.read(np.arange(7))
            assert [len(waveform) for waveform in found] == list(map(len, WAVEFORMS))
            assert len(archive.names(np.arange(7))) == 7
            told -= 1
    assert 20 < told < 180


# ---- windows of archives -----------------------------------------------------------------------


Window = tuple[int, int, list[int]]
"""Number of the sample, id of the recording, samples."""


def drawn(path: str, win_len: int, seed: int, numbers: range, **more: int) -> list[Window]:
    """The windows of some samples of a run."""
    recordings = more.pop("recordings", 7)
    windows = random_windows(Archive(path), win_len, seed, **more)
    dataset = samples_of(numbers, recordings).apply(windows)
    assert dataset.element_spec[2] == tf.TensorSpec([win_len], tf.int16)
    return listed(dataset.as_numpy_iterator())


def listed(windows: Iterable[tuple]) -> list[Window]:
    return [(int(number), int(example), window.tolist()) for number, example, window in windows]


@pytest.mark.parametrize("start", [1, 63, 64, 100])
def test_a_window_follows_from_the_seed_and_its_number(stored, start):
    whole = drawn(stored, 40, 5, range(200))
    assert drawn(stored, 40, 5, range(start, 200)) == whole[start:]
    assert drawn(stored, 40, 5, range(start, 200), num_parallel_calls=1) == whole[start:]
    assert drawn(stored, 40, 6, range(200)) != whole
    for number, example, window in whole:
        assert example == number % 7
        inside = np.lib.stride_tricks.sliding_window_view(np.pad(WAVEFORMS[example], 40), 40)
        assert (inside == window).all(axis=1).any()
    windows = [window for _, example, window in whole if example == 2]
    assert len({tuple(window) for window in windows}) > 20, "another one each time"


def test_windows_of_archives_are_the_same_in_a_graph(stored):
    archive = Archive(stored)
    found = in_a_graph(lambda: samples_of(range(9, 20)).apply(random_windows(archive, 40, 5)), 11)
    assert listed(found) == drawn(stored, 40, 5, range(9, 20))


def test_every_start_is_as_likely(tmp_path):
    path = write_set(tmp_path / "train", [np.arange(1, 11, dtype=np.int16)])
    windows = [window for _, _, window in drawn(path, 4, 0, range(7000), recordings=1)]
    counts = np.bincount([window[0] - 1 for window in windows])
    assert len(counts) == 7, "from the first to the last window"
    assert even(counts)
    assert all(np.diff(window).tolist() == [1, 1, 1] for window in windows)


def test_a_short_recording_is_whole_at_a_place_by_lot(tmp_path):
    path = write_set(tmp_path / "train", [np.int16([1, 2, 3])])
    windows = [window for _, _, window in drawn(path, 7, 0, range(5000), recordings=1)]
    places = [window.index(1) for window in windows]
    for window, place in zip(windows, places, strict=True):
        assert window == [0] * place + [1, 2, 3] + [0] * (4 - place)
    counts = np.bincount(places)
    assert len(counts) == 5
    assert even(counts)
    assert {tuple(window) for _, _, window in drawn(path, 3, 0, range(99), recordings=1)} == {
        (1, 2, 3)
    }


# ---- whole recordings --------------------------------------------------------------------------


@hypothesis_settings(deadline=None, max_examples=200)
@given(length=st.integers(1, 400), win_len=st.integers(1, 120))
def test_windows_cover_a_recording_as_few_and_as_even_as_can_be(length, win_len):
    windows = covering_windows(tf.range(1, length + 1), win_len).numpy()
    assert windows.shape == (-(-length // win_len), win_len)
    missing = max(0, win_len - length)
    assert windows[0].tolist()[: missing // 2] == [0] * (missing // 2)
    samples = windows[windows > 0]
    assert len(samples) == windows.size - missing
    assert set(samples) == set(range(1, length + 1)), "every sample"
    assert windows[0][missing // 2] == 1
    assert windows[-1][win_len - 1 - (missing - missing // 2)] == length
    if len(windows) > 1:
        steps = np.diff(windows[:, 0])
        assert steps.max() <= win_len
        assert steps.max() - steps.min() <= 1
    assert (np.diff(windows[:, missing // 2 : win_len - (missing - missing // 2)]) == 1).all()


def test_long_recordings_do_not_overflow():
    """The last start is a product of more than 32 bits."""
    waveform = np.arange(70_000, dtype=np.int32)
    np.testing.assert_array_equal(covering_windows(tf.constant(waveform), 1)[:, 0], waveform)


def test_windows_cover_what_is_in_a_dataset_and_what_is_empty():
    lengths = tf.data.Dataset.from_tensor_slices([10, 3, 4])
    dataset = lengths.map(lambda length: covering_windows(tf.range(1, length + 1), 4))
    assert dataset.element_spec.shape.as_list() == [None, 4]
    assert [windows.tolist() for windows in dataset.as_numpy_iterator()] == [
        [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9, 10]],
        [[1, 2, 3, 0]],
        [[1, 2, 3, 4]],
    ]
    assert covering_windows(tf.zeros([0]), 3).numpy().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_whole_numbers_become_floats_from_minus_1_to_1(dtype):
    lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    floats = to_float(tf.constant([lowest, lowest // 2, 0, highest // 2 + 1, highest], dtype))
    assert floats.dtype == tf.float32
    np.testing.assert_allclose(floats, [-1, -0.5, 0, 0.5, 1], rtol=0, atol=2**-15)
    assert floats[0] == -1
    assert floats[-1] <= 1


# ---- features ----------------------------------------------------------------------------------

FEATURES = {
    "sample_rate": RATE,
    "frame_secs": 0.025,
    "hop_secs": 0.01,
    "mel_bands": 40,
    "min_hz": 60.0,
    "max_hz": 7600.0,
}


def mel(hertz: np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(np.asarray(hertz) / 700)


def slow_log_mel(waveform: np.ndarray) -> np.ndarray:
    """The same, frame by frame and band by band."""
    edges = np.linspace(mel(60), mel(7600), 42)
    bins = mel(np.arange(257) * RATE / 512)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = []
    for begin in range(0, len(waveform) - 399, 160):
        energies = np.abs(np.fft.rfft(waveform[begin : begin + 400] * window, 512)) ** 2
        bands = []
        for low, center, high in zip(edges, edges[1:], edges[2:], strict=False):
            rising, falling = (bins - low) / (center - low), (high - bins) / (high - center)
            weights = np.maximum(0, np.minimum(rising, falling))
            bands.append(np.log(energies @ weights + 1e-6))
        frames.append(bands)
    return np.array(frames)


def test_features_are_those_of_a_slow_reference():
    waveforms = np.stack([NOISE[:, 0] / 2**31, sine(1000, RATE)[:4001], sine(50, RATE)[:4001]])
    found = log_mel(waveforms.astype(np.float32), **FEATURES)
    assert found.dtype == tf.float32
    assert found.shape == [3, 1 + (4001 - 400) // 160, 40]
    np.testing.assert_allclose(found, np.stack(list(map(slow_log_mel, waveforms))), atol=0.01)


@pytest.mark.parametrize("hertz", [100, 440, 1000, 3000, 7000])
def test_a_pure_tone_is_in_the_band_of_its_pitch(hertz):
    tone = sine(hertz, RATE).astype(np.float32)
    found = log_mel(tone[np.newaxis], **FEATURES)[0].numpy().mean(axis=0)
    centers = np.linspace(mel(60), mel(7600), 42)[1:-1]
    nearest = np.abs(centers - mel(hertz)).argmin()
    assert abs(found.argmax() - nearest) <= 1
    far = np.abs(centers - mel(hertz)) > 300
    assert found[far].max() < found.max() - 6, "26 dB less in other bands"


def test_silence_is_finite():
    found = log_mel(np.zeros([2, RATE], np.float32), **FEATURES)
    np.testing.assert_allclose(found, np.log(1e-6), rtol=1e-6)


def test_features_in_a_dataset_are_the_same():
    waveforms = np.stack([sine(440, RATE), sine(880, RATE)]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensors(waveforms).map(lambda each: log_mel(each, **FEATURES))
    assert dataset.element_spec.shape == [2, 98, 40]
    (found,) = dataset.as_numpy_iterator()
    np.testing.assert_allclose(found, log_mel(waveforms, **FEATURES), atol=1e-4)


# ---- recorded ----------------------------------------------------------------------------------


def test_windows_of_files_are_recorded_and_replayed(tmp_path, monkeypatch):
    random = np.random.default_rng(1)
    for name in ("passenger", "tug"):
        signal = random.integers(-(2**31), 2**31, 150_000).astype(np.int32)
        write(tmp_path / "data", **{f"{name}_1_wav": encoded(signal, subtype="PCM_32")})
    monkeypatch.chdir(tmp_path)

    num_elems = 10
    elements_per_file = 4
    ds = dataset_from_dir("./data", infinite=True)
    ds = dataset_signal_slice_windows(ds, win_len=32768)
    record_dataset(
        ds, num_elems=num_elems, elements_per_file=elements_per_file, output_dir="./records"
    )
    replayed = replay_dataset("./records")

    files = sorted(Path("records").glob("*.tfrecord"))
    records = [sum(1 for _ in tf.data.TFRecordDataset(str(file))) for file in files]
    keys = {"class", "filepath", "index", "num_classes", "sample_rate", "signal", "target"}
    assert replayed.element_spec.keys() == keys | {"win_start_idx"}
    assert [count // len(replayed.element_spec) for count in records] == [4, 4, 2]
    expected, found = elements(ds.take(10)), elements(replayed)
    assert [each["win_start_idx"] for each in found] == [0, 32768, 65536, 98304] * 2 + [0, 32768]
    for one, other in zip(expected, found, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])
