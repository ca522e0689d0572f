"""Audio for tests: files byte by byte, noise, and archives of it."""

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import tensorflow as tf

from library import audio
from library.data import Card, Target, write_index

RATE = 16000
NOISE = np.random.default_rng(0).integers(-(2**31), 2**31, [4001, 6]).astype(np.int32)
"""Samples of 32 bit, for six channels."""
MONO = NOISE[:, :1]
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


FILES = ["a/0.wav", "käse/1.wav", "a/no\udcfftext.wav", "b/one, two.wav", "b/4.wav"]
CLASSES = Target("class", ("a", "b"))


def write_set(path: Path, waveforms: list[np.ndarray], shards: int = 1, **more) -> str:
    """A dataset as a conversion writes it: of two classes in turns, unless labels are given."""
    target = more.get("target", CLASSES)
    labels = more.get("labels", [number % 2 for number in range(len(waveforms))])
    path.parent.mkdir(parents=True, exist_ok=True)
    examples = [
        (FILES[number % 5], label, (waveform, 100))
        for number, (label, waveform) in enumerate(zip(labels, waveforms, strict=True))
    ]
    per_shard = -(-len(examples) // shards)
    written = [
        audio.write_shard(
            path.with_name(f"{path.name}-{n:05}-of-{shards:05}.h5"),
            examples[n * per_shard : (n + 1) * per_shard],
            target,
        )
        for n in range(shards)
    ]
    write_index(path, [rows for _, rows in written])
    options = {"sample_rate": RATE}
    entries = [shard for shard, _ in written]
    numbers = labels if target.label == "class" else []
    counts = {name: numbers.count(number) for number, name in enumerate(target.classes)}
    Card(list(target.classes), counts, entries, options, label=target.label).save(f"{path}.json")
    return str(path)


def noises(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(-(2**15), 2**15, length).astype(np.int16) for length in lengths]


WAVEFORMS = noises(250, 1, 1000, 99, 100, 101, 640)


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


def samples_of(numbers: range, clips: int = 7) -> tf.data.Dataset:
    """(number of the sample, id) of a run, the clips one after another."""
    dataset = tf.data.Dataset.range(numbers.start, numbers.stop)
    return dataset.map(lambda number: (number, number % clips))
