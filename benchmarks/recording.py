"""Recording a dataset, and reading it back, beside other ways: python benchmarks/recording.py

2,500 elements as an audio pipeline makes them: a window of 32,768 samples in int32 and six small
fields, 328 MB. All writers write the same elements, in turns, and all readers read them.
"""

import argparse
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import in_turns, system_name, timed

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library.data import record_dataset, replay_dataset

ELEMENTS, SAMPLES, WINDOWS = 2500, 32_768, 100
MEGABYTES = ELEMENTS * SAMPLES * 4 / 1e6


def windows() -> tf.data.Dataset:
    """Windows of a signal that is in memory."""
    noise = np.random.default_rng(0).integers(-(2**31), 2**31, [WINDOWS, SAMPLES], np.int32)
    signal = tf.constant(noise)

    def window(index: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "signal": signal[index % WINDOWS],
            "class": tf.constant("dog"),
            "filepath": tf.constant("clips/dog/2019-07-21_0001.wav"),
            "index": index,
            "num_classes": tf.constant(10),
            "target": tf.constant(3),
            "win_start_idx": tf.cast(index * 7919, tf.int32),
        }

    return tf.data.Dataset.range(ELEMENTS).map(window, tf.data.AUTOTUNE, deterministic=True)


# ---- writers: a dataset and a folder that is not there yet -------------------------------------


def record(dataset: tf.data.Dataset, folder: Path) -> None:
    record_dataset(dataset, folder)


def save(dataset: tf.data.Dataset, folder: Path) -> None:
    dataset.save(str(folder))


def write_examples(dataset: tf.data.Dataset, folder: Path) -> None:
    """One Example after the other, made in Python."""
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "examples")) as writer:
        for element in dataset:
            features = {}
            for key, value in element.items():
                content = tf.io.serialize_tensor(value).numpy()
                features[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def write_signals(dataset: tf.data.Dataset, folder: Path) -> None:
    """Only the signals, each a record."""
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "signals")) as writer:
        for element in dataset.map(tf.io.serialize_tensor):
            writer.write(element.numpy())


# ---- readers -----------------------------------------------------------------------------------


def read_examples(folder: Path, spec: dict[str, tf.TensorSpec]) -> tf.data.Dataset:
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in spec}

    def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
        example = tf.io.parse_single_example(record, features)
        return {key: tf.io.parse_tensor(example[key], spec[key].dtype) for key in spec}

    return tf.data.TFRecordDataset(str(folder / "examples")).map(parse, tf.data.AUTOTUNE)


def read_signals(folder: Path) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(str(folder / "signals")).map(
        lambda record: tf.io.parse_tensor(record, tf.int32), tf.data.AUTOTUNE
    )


def read(dataset: tf.data.Dataset) -> None:
    dataset.reduce(np.int64(0), lambda count, element: count + 1)


def compare(title: str, rounds: int, runs: dict[str, Callable[[], object]]) -> None:
    """Run the first, which is ours, in turns with the others, and print what they take."""
    times = in_turns(rounds, {name: timed(run) for name, run in runs.items()}, warm_up=1)
    wall, cpu = next(iter(times.values()))
    for name, (each_wall, each_cpu) in times.items():
        print(
            f"{title:8}{name:28}{MEGABYTES / each_wall:5,.0f} MB/s, {each_cpu:.2f} CPU s; "
            f"ours: {each_wall / wall:.2f} x the MB/s, {cpu / each_cpu:.2f} x the CPU time"
        )


def compare_readers(ways: dict[str, tf.data.Dataset], rounds: int) -> None:
    compare("read", rounds, {name: functools.partial(read, way) for name, way in ways.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians are printed")
    rounds = parser.parse_args().rounds
    print(system_name())
    dataset = windows()
    signals = dataset.map(lambda element: element["signal"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def written(write: Callable, name: str, elements: tf.data.Dataset = dataset) -> Callable:
            """A run that writes the folder `name` anew."""

            def run() -> None:
                shutil.rmtree(folder / name, ignore_errors=True)
                write(elements, folder / name)

            return run

        compare(
            "write",
            rounds,
            {
                "ours": written(record, "ours"),
                "Dataset.save": written(save, "saved"),
                "Examples made in Python": written(write_examples, "examples"),
            },
        )
        written(record, "ours, signals", signals)()
        written(write_signals, "signals", signals)()
        ways = {
            "ours": replay_dataset(folder / "ours"),
            "parse_single_example": read_examples(folder / "examples", dataset.element_spec),
            "ours, shuffled": replay_dataset(folder / "ours", shuffle=True),
            "Dataset.load": tf.data.Dataset.load(str(folder / "saved")),
        }
        compare_readers(ways, rounds)
        ways = {
            "ours, signals alone": replay_dataset(folder / "ours, signals"),
            "parse_tensor": read_signals(folder / "signals"),
        }
        compare_readers(ways, rounds)


if __name__ == "__main__":
    main()
