"""Audio files: what they hold, what is refused, and the canonical waveform."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from made_audio import MONO, NOISE, RATE, WAVEFORM, chunk, encoded, sine, upper, wav

from library.audio import canonical_waveform, measures, read_audio, wav_bytes
from library.util import BadFileError


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("extensible", [False, True])
def test_integers_keep_all_their_bits(bits, channels, extensible):
    expected = upper(NOISE[:, :channels], bits)
    data = wav(NOISE[:, :channels], bits, rate=22050, extensible=extensible)
    samples, rate = read_audio(data, "int32")
    assert (samples.dtype, rate) == (np.int32, 22050)
    np.testing.assert_array_equal(samples, expected)
    floats, _ = read_audio(data)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, expected / 2**31, rtol=0, atol=2**-25)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_floats_are_scaled_to_integers_and_clipped(subtype, channels):
    written = np.linspace(-1.5, 1.5, 1001 * channels).reshape(-1, channels).astype(np.float32)
    data = encoded(written, subtype=subtype)
    floats, _ = read_audio(data)
    np.testing.assert_array_equal(floats, written)
    samples, _ = read_audio(data, "int32")
    expected = np.clip(np.rint(written.astype(float) * 2**31), -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize(("subtype", "bits"), [("PCM_16", 16), ("PCM_24", 24)])
def test_flac_has_the_samples_of_the_wav(subtype, bits):
    samples, rate = read_audio(encoded(NOISE[:, :2], "FLAC", subtype, 44100), "int32")
    np.testing.assert_array_equal(samples, upper(NOISE[:, :2], bits))
    assert rate == 44100


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("WAV", "ULAW")],
)
def test_what_is_compressed_with_losses_is_nearly_the_same(kind, subtype):
    tone = sine(440, RATE)
    samples, rate = read_audio(encoded(tone, kind, subtype))
    assert (rate, len(samples)) == (RATE, RATE)
    middle = slice(2000, -2000)
    assert np.abs(samples[middle, 0] - tone[middle]).max() < 0.03
    whole, _ = read_audio(encoded(tone, kind, subtype), "int32")
    np.testing.assert_allclose(whole / 2**31, np.clip(samples, -1, 1), atol=1e-6)


LIST = chunk(b"LIST", b"INFOINAM\x03\0\0\0ab\0")  # of an odd size, and filled up by a byte


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
    samples, rate = read_audio(data, "int32")
    assert rate == RATE
    np.testing.assert_array_equal(samples[: len(MONO)], upper(MONO, bits))
    assert len(samples) <= len(MONO) + 10  # without a length, what follows is read as samples


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
        (b"This is a text.\n" * 99, "not an audio file"),
        (bytes(9999), "not an audio file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "not an audio file"),
        (wav(MONO)[:-100], "truncated: 100 bytes are missing"),
        (wav(MONO)[:44], "truncated: 8,002 bytes are missing"),
        (wav(MONO, before=LIST)[:-1], "truncated: 1 bytes are missing"),
        (wav(MONO)[:40], "broken audio file: .*data"),
        (wav(MONO)[:20], "broken audio file: .*fmt"),
        (wav(MONO)[:3], "not an audio file"),
        (wav(MONO[:0]), "no samples"),
        (wav(MONO, size=0), "no samples"),
        (wav(MONO, rate=0), "broken audio file: "),
        (encoded(WAVEFORM, "AIFF")[:-9], "truncated: 9 bytes are missing"),
        (encoded(WAVEFORM, "W64")[:-9], "truncated: 9 bytes are missing"),
        (encoded(WAVEFORM, "RF64")[:-9], "truncated: 9 bytes are missing"),
        (encoded(WAVEFORM, "AU")[:-9], "truncated: 9 bytes are missing"),
        (shorter(encoded(WAVEFORM, "FLAC"), 0.5), "broken audio file: "),
        (shorter(encoded(sine(440, RATE), "OGG", "VORBIS"), 0.5), "no samples|broken audio file"),
        (
            shorter(encoded(sine(440, RATE), "MP3", "MPEG_LAYER_III"), 0.5),
            "truncated: .* of 16,000 samples are missing",
        ),
        (flac_of_length(0), "its header does not say how long it is"),
        (flac_of_length(2**36 - 1), "too long: 68,719,476,735 samples of 1 channels"),
        (with_a_sample(np.nan), "broken audio file: a sample is not a finite number"),
        (with_a_sample(np.inf), "broken audio file: a sample is not a finite number"),
    ],
)
def test_what_cannot_be_used_has_one_reason(data, reason):
    for dtype in ("float32", "int32"):
        with pytest.raises(BadFileError, match=reason) as error:
            read_audio(data, dtype)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(BadFileError, match=reason):
        canonical_waveform(data, sample_rate=8000)


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
            waveform = canonical_waveform(bytes(data), sample_rate=RATE)
            assert (waveform.dtype, waveform.ndim) == (np.int16, 1)
            assert len(waveform)
            used += 1
    assert 40 < used < 360


@pytest.mark.filterwarnings("error")
def test_headers_of_changed_bytes_are_read_in_silence(tmp_path):
    random, file = np.random.default_rng(0), tmp_path / "x"
    for _ in range(200):
        data = bytearray(encoded(WAVEFORM, "AIFF"))
        for position in random.integers(100, size=3):
            data[position] ^= 1 << random.integers(8)
        file.write_bytes(data)
        measures(file)  # the traceback of what libsndfile calls would be a warning


# ---- the canonical waveform ---


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "AIFF"])
def test_16_bit_of_one_channel_and_this_rate_stay_as_they_are(kind):
    waveform = canonical_waveform(encoded(WAVEFORM, kind), sample_rate=RATE)
    assert waveform.dtype == np.int16
    np.testing.assert_array_equal(waveform, WAVEFORM)


def test_channels_are_averaged():
    stereo = (NOISE[:, :2] >> 16).astype(np.int16)
    waveform = canonical_waveform(encoded(stereo), sample_rate=RATE)
    np.testing.assert_array_equal(waveform, np.rint(stereo.mean(axis=1)))
    six = canonical_waveform(wav(NOISE, 24), sample_rate=RATE)
    expected = upper(NOISE, 24).mean(axis=1) / 2**16
    np.testing.assert_allclose(six, expected, atol=0.51)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_another_rate_keeps_pitch_and_level(rate):
    """Within 0.1 % of the amplitude, where the ends of the tone are not heard."""
    data = encoded(sine(1000, rate), subtype="FLOAT", rate=rate)
    waveform = canonical_waveform(data, sample_rate=RATE)
    assert abs(len(waveform) - RATE) <= 1
    expected = 32768 * sine(1000, RATE)[: len(waveform)]
    middle = slice(1000, -1000)
    assert np.abs(waveform - expected)[middle].max() < 0.001 * 16384


def test_what_a_lower_rate_cannot_hold_is_not_mirrored():
    waveform = canonical_waveform(encoded(sine(10000, 44100), rate=44100), sample_rate=RATE)
    assert np.abs(waveform[1000:-1000]).max() < 0.001 * 16384


def test_what_is_too_loud_is_clipped():
    loud = np.array([0.0, 1.5, -1.5, 0.5, 1.0, -1.0])
    waveform = canonical_waveform(encoded(loud, subtype="FLOAT"), sample_rate=RATE)
    assert waveform.tolist() == [0, 32767, -32768, 16384, 32767, -32768]


def test_a_rate_that_would_take_more_memory_than_there_is_is_refused():
    slow = wav(np.zeros([40000, 1], np.int32), rate=1)
    with pytest.raises(BadFileError, match="too long: 40,000 samples, 1 per second"):
        canonical_waveform(slow, sample_rate=RATE)
    with pytest.raises(BadFileError, match="no samples at this rate"):
        canonical_waveform(wav(MONO, rate=2**31 - 1), sample_rate=1000)


@pytest.mark.parametrize("waveform", [WAVEFORM, np.int16([7]), np.int16([-32768, 32767])])
def test_tensorflow_decodes_what_is_encoded(waveform):
    decoded, rate = tf.audio.decode_wav(wav_bytes(waveform, sample_rate=11025))
    assert rate == 11025
    np.testing.assert_array_equal(decoded[:, 0] * 32768, waveform)
    again = canonical_waveform(wav_bytes(waveform, sample_rate=11025), sample_rate=11025)
    np.testing.assert_array_equal(again, waveform)
