"""Windows of audio clips, and features made once or each time: python benchmarks/sound.py

Random windows of one second come from archives by the number of the audio clip, and from the same
archives opened and closed again for each window; and from a server of this machine, through a cache
that has all of them. Log-mel features of such windows are made in the
pipeline, or replayed from what was recorded.
"""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from common import PROJECT, drain, in_turns, output_of, show_rates, system_name, timed

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library.audio import Archive, log_mel, random_windows, to_float, write_shard
from library.data import (
    NO_CACHE,
    BlockCache,
    Card,
    Target,
    record_dataset,
    replay_dataset,
    shuffle_and_repeat,
    write_index,
)

RATE, SECONDS, CLIPS, SHARDS, ROUNDS = 16000, 4, 1000, 4, 3
WINDOWS, ELEMENTS = 10_000, 2000


def make_archives(path: Path) -> None:
    """Clips of noise in archives of equal size."""
    random, written = np.random.default_rng(0), []
    for shard in range(SHARDS):
        file = path.with_name(f"{path.name}-{shard:05}-of-{SHARDS:05}.h5")
        waveforms = random.integers(-(2**15), 2**15, [CLIPS // SHARDS, RATE * SECONDS])
        examples = [("", 0, (each.astype(np.int16), RATE)) for each in waveforms]
        written.append(write_shard(file, examples, Target("class", ("noise",))))
    card = Card(["noise"], {"noise": CLIPS}, [shard for shard, _ in written], {})
    write_index(path, [rows for _, rows in written])
    card.save(f"{path}.json")


def opened_each_time(archive: Archive, samples: tf.data.Dataset) -> tf.data.Dataset:
    """The straightforward way: a call of Python for a window opens the file, and closes it."""

    def read(number: int) -> np.ndarray:
        shard = archive.index["shard"][number]
        with h5py.File(archive.shards[shard]) as file:
            waveform = file[f"{number - archive.first[shard]:06}/waveform"]
            start = np.random.randint(len(waveform) - RATE + 1)
            return waveform[start : start + RATE]

    def window(_: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(read, [number], tf.int16)

    return samples.map(window, num_parallel_calls=tf.data.AUTOTUNE)


def kept_open(archive: Archive, samples: tf.data.Dataset) -> tf.data.Dataset:
    """Ours."""
    windows = samples.apply(random_windows(archive, RATE, seed=0))
    return windows.map(lambda number, example, window: window)


def features_of(window: tf.Tensor) -> tf.Tensor:
    frames = {"sample_rate": RATE, "frame_secs": 0.025, "hop_secs": 0.01}
    bands = {"mel_bands": 64, "min_hz": 60.0, "max_hz": 7600.0}
    return log_mel(to_float(window)[tf.newaxis], **frames, **bands)[0]


WAYS = {
    "opened for each window": opened_each_time,
    "random_windows": kept_open,
}


def time_windows(name: str, path: str, cache: str = "") -> None:
    """Print wall and CPU seconds of a way, in a process of its own: HDF5 knows what is open."""
    archive = Archive(path, BlockCache(cache, 1) if cache else NO_CACHE)
    windows = WAYS[name](archive, shuffle_and_repeat(CLIPS, seed=0).enumerate())
    batches = windows.take(WINDOWS).batch(64).prefetch(2)
    print(json.dumps(in_turns(1, {name: timed(drain, batches)}, warm_up=1)[name]))


def main() -> None:
    if sys.argv[1:]:
        time_windows(*sys.argv[1:])
        return
    print(system_name(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise"
        make_archives(path)
        processes = {
            name: functools.partial(output_of, sys.executable, __file__, name, path)
            for name in WAYS
        }
        server = [sys.executable, PROJECT / "tests" / "storage_server.py", folder]
        with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}/noise"
            words = (sys.executable, __file__, "random_windows", url, folder)
            processes["random_windows, from a URL"] = functools.partial(output_of, *words)
            show_rates(in_turns(ROUNDS, processes), WINDOWS, "windows")
            process.kill()

        samples = shuffle_and_repeat(CLIPS, seed=0).enumerate()
        windows = kept_open(Archive(path), samples)
        made = windows.map(features_of, num_parallel_calls=tf.data.AUTOTUNE)
        record_dataset(made.take(ELEMENTS), Path(folder) / "features")
        ways = {
            "features on the fly": made.take(ELEMENTS),
            "features replayed, in order": replay_dataset(Path(folder) / "features"),
            "features replayed, shuffled": replay_dataset(Path(folder) / "features", shuffle=True),
        }
        runs = {name: timed(drain, way.batch(64).prefetch(2)) for name, way in ways.items()}
        show_rates(in_turns(ROUNDS, runs, warm_up=1), ELEMENTS, "examples")


if __name__ == "__main__":
    main()
