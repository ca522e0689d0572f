"""A run that is killed again and again ends with the weights of one that was left alone.

The tests kill it five times. More often, as a program of its own:

python tests/test_survival.py 20 [remote]
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
from conftest import copy_project, small_model
from storage_server import Server

from project.settings import modality

OPTIONS = ["--train_epochs", "12", "--epochs_between_evals", "1", "--train_batch_size", "16"]
OPTIONS += [*small_model(), "--num_parallel_calls", "2"]
OPTIONS += ["--learning_rate_schedule", "cosine", "--decay_epochs", "12", "--keep_best_max", "2"]
STREAM = ["--shuffle", "stream", "--shuffle_buffer_mb", "0.02"]
MIXTURE = ["--extra_data", "data/extra", "--mixture_weights", "3", "1", "--sampling", "sqrt"]

SLOW = """
import os, time
replace = os.replace

def slow_replace(old, new, **options):
    time.sleep(0 if str(old).endswith(".new") else 0.5)  # not of a block of the cache
    replace(old, new, **options)

os.replace = slow_replace
"""
"""Runs at the start of Python, as sitecustomize: a file is a little longer without its name."""
PATIENCE = [
    ("library/data/remote.py", "BLOCK = 2**20", "BLOCK = 2**11"),
    ("library/data/remote.py", "PER_MB = 60.0, 10.0", "PER_MB = 1.0, 10.0"),
    ("library/data/remote.py", "SECS = 6, 0.5", "SECS = 6, 0.01"),
    ("library/audio/remote.py", "MOST_PAGES = 2**20, 64", "MOST_PAGES = 2**11, 999"),
    ("library/config/settings.py", 'at most", minimum=0.01', 'at most", minimum=0'),
]
"""What is smaller in a project that reads from a server: the same as with large data, but soon."""


def start(folder: Path, **environment: str) -> subprocess.Popen:
    options = (folder / "options").read_text().split()
    return subprocess.Popen(
        [sys.executable, "run.py", *options],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def leftovers(folder: Path) -> list[str]:
    """Files half written, by us or by TensorFlow, below a folder."""
    return [
        entry.name
        for place in (folder / "runs/default/checkpoints", folder / "runs/default/best")
        if place.exists()
        for entry in os.scandir(place)
        if ".tempstate" in entry.name or (entry.name[0] == "." and entry.name.endswith(".tmp"))
    ]


def kill(folder: Path, *, while_writing: bool, skipped: int, seconds: float) -> list[str] | None:
    """Start training and kill it.

    Args:
        folder: of the project.
        while_writing: whether to wait for a file that is being written, or for `seconds`.
        skipped: files that are left to be written first.
        seconds: from the first step on.

    Returns:
        The files that were half written; None when the run came to its end before.
    """
    process = start(folder, **{"PYTHONPATH": str(folder / "slow")} if while_writing else {})
    process.stdout.readline()  # "training from ...", when TensorFlow is imported
    deadline = time.monotonic() + seconds
    before: list[str] = []
    while process.poll() is None:
        if while_writing:
            now = leftovers(folder)
            if now and not before:
                skipped -= 1
                if skipped < 0:
                    break
            before = now
        elif time.monotonic() > deadline:
            break
        time.sleep(0.01)  # the server is in this process
    process.kill()
    process.communicate()
    return leftovers(folder) if process.returncode < 0 else None


def stop(folder: Path) -> None:
    """Start training, and stop it between two evaluations where it is not at its end."""
    process = start(folder)
    process.stdout.readline()
    time.sleep(1.5)
    process.terminate()
    process.communicate()


def weights(folder: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, those of the optimizer too."""
    checkpoint = tf.train.latest_checkpoint(folder / "runs/default/checkpoints")
    names = [name for name, _ in tf.train.list_variables(checkpoint)]
    return {name: np.asarray(tf.train.load_variable(checkpoint, name)).tobytes() for name in names}


def best(folder: Path) -> list[tuple[int, float]]:
    """Steps and values of the best checkpoints, each of which can be read."""
    record = json.loads((folder / "runs/default/best/best.json").read_text())
    for one in record["kept"]:
        checkpoint = str(folder / f"runs/default/best/model.ckpt-{one['step']}")
        for name, _ in tf.train.list_variables(checkpoint):
            tf.train.load_variable(checkpoint, name)
    return [(one["step"], one["value"]) for one in record["kept"]]


def finish(folder: Path) -> None:
    process = start(folder)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    assert leftovers(folder) == []


def cached(folder: Path) -> int:
    """Bytes in the cache of what comes from elsewhere."""
    return sum(file.stat().st_size for file in folder.glob("data/cache/blocks/*-*"))


@contextlib.contextmanager
def reading_from_a_server(folder: Path) -> Iterator[int]:
    """Of its requests one in twenty fails, and one in a hundred hangs; the limit of the cache."""
    for name, value, smaller in PATIENCE:
        if (path := folder / name).exists():  # there is no library/audio in a project of images
            assert value in (text := path.read_text())
            path.write_text(text.replace(value, smaller))
    limit = sum(file.stat().st_size for file in folder.glob(f"data/[tv]*{modality.SUFFIX}")) // 10
    with (
        Server(folder, failing=0.05, hanging=0.01) as server,
        open(folder / "options", "a") as file,
    ):
        url = f"http://127.0.0.1:{server.port}/data"
        file.write(f" --train_data {url}/train --validation_data {url}/validation")
        file.write(f" --cache_gb {limit / 1e9:.9f}")
        file.flush()
        yield limit
        print(f"{server.faults} requests failed and {server.hangs} hung; cache: {limit} bytes")
        assert server.faults
        assert server.hangs
        assert cached(folder)


def survive(folder: Path, kills: int, *more: str, seed: int = 0, remote: bool = False) -> int:
    """Train once in peace and once with kills, and compare; return how many hit a file.

    The one with kills reads its data from a server if `remote`, through a cache of a tenth of them.
    """
    peace, war = folder / "peace", folder / "war"
    samples = folder / "samples"
    modality.sample_data.make(samples, per_class={"train": 16})
    for place in (peace, war):
        place.mkdir()
        copy_project(place)
        (place / "options").write_text(" ".join([*OPTIONS, *more]))
        (place / "slow").mkdir()
        (place / "slow" / "sitecustomize.py").write_text(SLOW)
        for name, rest in {"train": "--validation_fraction 0.25", "extra": ""}.items():
            words = f"--dataset_dir {samples}/train --tfrecord_filename {name} --tfrecord_dir data"
            command = [sys.executable, "convert_dataset.py", *words.split(), *rest.split()]
            command += ["--num_shards", "3"]
            subprocess.run(command, cwd=place, check=True, stdout=sys.stderr)
    begin = time.monotonic()
    finish(peace)
    whole = time.monotonic() - begin
    with reading_from_a_server(war) if remote else contextlib.nullcontext(0) as limit:
        hits = kill_often(war, kills, whole, seed, limit)
        finish(war)
    expected, found = weights(peace), weights(war)
    assert found.keys() == expected.keys()
    different = [name for name in expected if found[name] != expected[name]]
    assert different == []
    assert best(war) == best(peace)
    print(f"{kills} kills, {hits} with a file half written: {len(found)} tensors byte for byte")
    return hits


def kill_often(war: Path, kills: int, whole: float, seed: int, limit: int) -> int:
    """Train with kills; return how many hit a file.

    Every other kill waits for a file that is being written, and after every third one the run is
    stopped by SIGTERM once, which saves it. A run takes about `whole` seconds.
    """
    moments, done, hits, missed = random.Random(seed), 0, 0, 0
    while done < kills:
        if done % 3 == 1:
            stop(war)
        found = kill(
            war,
            while_writing=done % 2 == 0 and missed < 3,
            skipped=0 if missed else moments.randrange(6),  # not always the first one
            # The rest of the whole are imports; the machine may have become faster since then.
            seconds=moments.uniform(0.05, 0.5) * whole / 2**missed,
        )
        if found is None:  # at its end: once more from the beginning
            subprocess.run(["rm", "-r", war / "runs"], check=True)
            missed += 1
            continue
        done, hits, missed = done + 1, hits + bool(found), 0
        latest = tf.train.latest_checkpoint(war / "runs/default/checkpoints")
        checkpoint = Path(latest or "none").name
        print(f"kill {done}: latest {checkpoint}; half written: {', '.join(found) or 'none'}")
        assert cached(war) <= limit
    return hits


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_run_that_is_killed_five_times_ends_with_the_same_weights(tmp_path):
    assert survive(tmp_path, 5) >= 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
@pytest.mark.parametrize("order", [STREAM, MIXTURE], ids=["stream", "mixture"])
def test_another_order_that_is_killed_twice_ends_with_the_same_weights(tmp_path, order):
    survive(tmp_path, 2, *order)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_run_on_a_server_that_fails_and_is_killed_twice_ends_with_the_same_weights(tmp_path):
    survive(tmp_path, 2, "--train_epochs", "6", "--decay_epochs", "6", remote=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        survive(Path(folder), int(sys.argv[1]), remote="remote" in sys.argv)
