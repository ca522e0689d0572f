"""A run that is killed again and again ends with the weights of one that was left alone.

The tests kill it five times. More often, as a program of its own:

python tests/test_survival.py 20 [remote]
"""

import contextlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import library.estimator  # noqa: F401  chooses Keras 2 before TensorFlow is imported

import forked
import numpy as np
import pytest
import tensorflow as tf
from conftest import convert, copy_project, small_model
from storage_server import Server

from project.settings import modality

OPTIONS = ["--train_epochs", "8", "--epochs_between_evals", "1", "--train_batch_size", "16"]
OPTIONS += [*small_model(), "--num_parallel_calls", "2", "--log_steps", "1"]
OPTIONS += ["--learning_rate_schedule", "cosine", "--decay_epochs", "8", "--keep_best_max", "2"]
STREAM = ["--shuffle", "stream", "--shuffle_buffer_mb", "0.02"]
MIXTURE = ["--extra_data", "data/extra", "--mixture_weights", "3", "1", "--sampling", "sqrt"]

HOLD = """
import os, time
replace, left = os.replace, int(os.environ["HOLD_AT"])

def holding(old, new, **options):
    global left
    if not str(old).endswith(".new"):  # not of a block of the cache
        left -= 1
        while left < 0:  # until the process is killed
            if os.path.isfile(old):
                os.truncate(old, os.path.getsize(old) // 2)
            open("held", "w").close()
            time.sleep(600)
    replace(old, new, **options)

os.replace = holding
"""
"""Runs at the start of Python, as sitecustomize: one of the files stays half written."""
PATIENCE = [
    ("library/data/remote.py", "BLOCK = 2**20", "BLOCK = 2**11"),
    ("library/data/remote.py", "PER_MB = 60.0, 10.0", "PER_MB = 1.0, 10.0"),
    ("library/data/remote.py", "SECS = 6, 0.5", "SECS = 6, 0.01"),
    ("library/audio/remote.py", "MOST_PAGES = 2**20, 64", "MOST_PAGES = 2**11, 999"),
    ("library/config/settings.py", 'at most", minimum=0.01', 'at most", minimum=0'),
]
"""What is smaller in a project that reads from a server: the same as with large data, but soon."""


def start(folder: Path, **environment: str) -> forked.Process:
    options = (folder / "options").read_text().split()
    for name in ("stdout", "held"):
        (folder / name).unlink(missing_ok=True)
    return forked.start(["run.py", *options], folder, environment, [folder / "stdout"] * 2)


def shown_steps(folder: Path) -> int:
    """Steps that have been printed since the last start."""
    stdout = folder / "stdout"
    return len(re.findall("^step ", stdout.read_text(), re.M)) if stdout.exists() else 0


def leftovers(folder: Path) -> list[str]:
    """Files half written, by us or by TensorFlow, below a folder."""
    return [
        entry.name
        for place in (folder / "runs/default/checkpoints", folder / "runs/default/best")
        if place.exists()
        for entry in os.scandir(place)
        if ".tempstate" in entry.name or (entry.name[0] == "." and entry.name.endswith(".tmp"))
    ]


def kill(folder: Path, *, skipped: int | None, steps: int, seconds: float) -> list[str] | None:
    """Start training and kill it.

    Args:
        folder: of the project.
        skipped: kill it before a file gets its name, after so many others did; None: at a step.
        steps: after which it is killed otherwise, and
        seconds: later.

    Returns:
        The files that were half written; None when the run came to its end before.
    """
    hold = {"PYTHONPATH": str(folder / "hold"), "HOLD_AT": str(skipped)}
    process = start(folder, **({} if skipped is None else hold))
    while process.poll() is None:
        if skipped is None and shown_steps(folder) >= steps:
            time.sleep(seconds)
            break
        if (folder / "held").exists():
            break
        time.sleep(0.01)  # the server is in this process
    process.kill()
    process.wait()
    return leftovers(folder) if process.returncode < 0 else None


def stop(folder: Path) -> None:
    """Start training, and stop it after a step where it is not at its end."""
    process = start(folder)
    while process.poll() is None and not shown_steps(folder):
        time.sleep(0.01)
    process.terminate()
    process.wait()


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
    assert start(folder).wait() == 0, (folder / "stdout").read_text()
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


def make_project(folder: Path, *more: str) -> Path:
    """Make a project with data of its own, and more options."""
    folder.mkdir()
    copy_project(folder)
    (folder / "options").write_text(" ".join([*OPTIONS, *more]))
    (folder / "hold").mkdir()
    (folder / "hold" / "sitecustomize.py").write_text(HOLD)
    modality.sample_data.make(folder / "samples", per_class={"train": 16})
    for name, rest in {"train": ["--validation_fraction", 0.25], "extra": []}.items():
        convert(folder / "samples/train", folder / "data", name, *rest, "--num_shards", 3)
    return folder


def train_in_peace(folder: Path, *more: str) -> Path:
    finish(make_project(folder, *more))
    return folder


def survive(folder: Path, peace: Path, kills: int, *more: str, remote: bool = False) -> int:
    """Train with kills, and compare with the project that had peace; return how many hit a file.

    If `remote`, it reads its data from a server, through a cache of a tenth of them.
    """
    war = make_project(folder / "war", *more)
    with reading_from_a_server(war) if remote else contextlib.nullcontext(0) as limit:
        hits = kill_often(war, kills, limit)
        finish(war)
    expected, found = weights(peace), weights(war)
    assert found.keys() == expected.keys()
    different = [name for name in expected if found[name] != expected[name]]
    assert different == []
    assert best(war) == best(peace)
    print(f"{kills} kills, {hits} with a file half written: {len(found)} tensors byte for byte")
    return hits


def kill_often(war: Path, kills: int, limit: int) -> int:
    """Train with kills; return how many hit a file.

    Every other kill waits for a file that is being written, and after every third one the run is
    stopped by SIGTERM once, which saves it.
    """
    moments, done, hits = random.Random(0), 0, 0
    while done < kills:
        if done % 3 == 1:
            stop(war)
        found = kill(
            war,
            skipped=moments.randrange(10) if done % 2 == 0 else None,  # not always the first one
            steps=moments.randrange(1, 8),
            seconds=moments.uniform(0, 0.3),
        )
        if found is None:  # at its end: once more from the beginning
            shutil.rmtree(war / "runs")
            continue
        done, hits = done + 1, hits + bool(found)
        latest = tf.train.latest_checkpoint(war / "runs/default/checkpoints")
        checkpoint = Path(latest or "none").name
        print(f"kill {done}: latest {checkpoint}; half written: {', '.join(found) or 'none'}")
        assert cached(war) <= limit
    return hits


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9"),
]


@pytest.fixture(scope="module")
def peace(tmp_path_factory):
    return train_in_peace(tmp_path_factory.mktemp("left_alone") / "peace")


def test_a_run_that_is_killed_five_times_ends_with_the_same_weights(tmp_path, peace):
    assert survive(tmp_path, peace, 5) >= 2


@pytest.mark.parametrize("order", [STREAM, MIXTURE], ids=["stream", "mixture"])
def test_another_order_that_is_killed_twice_ends_with_the_same_weights(tmp_path, order):
    survive(tmp_path, train_in_peace(tmp_path / "peace", *order), 2, *order)


def test_a_run_on_a_server_that_fails_and_is_killed_twice_ends_with_the_same_weights(
    tmp_path, peace
):
    survive(tmp_path, peace, 2, remote=True)


if __name__ == "__main__":
    del __file__  # which each process that is forked would run, too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = train_in_peace(folder / "peace")
        survive(folder, alone, int(sys.argv[1]), remote="remote" in sys.argv)
