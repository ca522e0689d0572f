"""What the tests share: small data sets, and the programs run as processes."""

import contextlib
import dataclasses
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest

import convert_dataset
from library.config import Settings
from library.data import Card, write_index, write_shard
from library.util import RunError, UserError
from project.settings import Hyperparameters, modality

if TYPE_CHECKING:
    from library.train import Run

ROOT = Path(__file__).parent.parent

# A job that a shell started in the background ignores ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis keeps what it finds out about the code: not here.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{tempfile.gettempdir()}/hypothesis")


def copy_project(folder: Path) -> None:
    """The programs with all that they need, in a folder of their own; the network has one stage."""
    for name in ("library", "project"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("run.py", "convert_dataset.py", "project.yaml", "hyperparameters.yaml"):
        shutil.copy(ROOT / name, folder)
    networks = folder / "project/networks.py"
    text = networks.read_text(encoding="utf-8")
    networks.write_text(
        re.sub(r"enumerate\(\(\d.*\)\):", "enumerate((24,)):", text), encoding="utf-8"
    )


LIMIT_SECS = 1200
"""Seconds after which a program hangs, however slow and busy the machine is."""


def run_program(*words: object, cwd: Path, status: int = 0, **environment: str):
    """Run `python WORDS` as a user would; the outcome has stdout and stderr.

    The program is the one in `cwd`, or that of this project where there is none.
    """
    program = cwd / str(words[0])
    command = [str(program if program.exists() else ROOT / program.name), *map(str, words[1:])]
    process = new_process(command, cwd, {"TF_CPP_MIN_LOG_LEVEL": "2", **environment})
    assert process.returncode == status, process.stdout + process.stderr
    if status == 2:
        assert "Traceback" not in process.stderr
    return process


def new_process(
    command: list[str], cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess:
    """Run `python COMMAND` with this environment beside that of the tests."""
    words = [sys.executable, *command]
    if Path(command[0]).name == "convert_dataset.py":  # which uses no TensorFlow
        texts = {"capture_output": True, "text": True, "timeout": LIMIT_SECS}
        return subprocess.run(words, cwd=cwd, env={**os.environ, **environment}, **texts)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = forked.start(command, cwd, environment, outputs)
        try:
            status = process.wait(LIMIT_SECS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, status, *(each.read_text() for each in outputs))


def run_signaled(
    program: str,
    *words: object,
    cwd: Path,
    signals: Sequence[int],
    at_line: str = "",
    at_files: str = "",
):
    """Run a program that sends itself signals at a known moment: see signals/sitecustomize.py."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT / "tests" / "signals")}
    environment |= {"SIGNALS": " ".join(str(int(number)) for number in signals)}
    environment |= {"AT_LINE": at_line, "AT_FILES": at_files}
    command = [str(cwd / program if (cwd / program).exists() else ROOT / program)]
    process = new_process([*command, *map(str, words)], cwd, environment)
    status = -signal.SIGKILL if signal.SIGKILL in signals else 130
    assert process.returncode == status, process.stdout + process.stderr
    return process


@dataclasses.dataclass
class Outcome:
    """What a program printed."""

    stdout: str
    stderr: str


def run_convert(*words: object, cwd: Path, status: int = 0) -> Outcome:
    """convert_dataset.py with these words, in this process."""
    printed, errors, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            convert_dataset.main([*map(str, words), "--num_workers", "0"])
        found = 0
    except (UserError, RunError) as error:
        found = 2 if isinstance(error, UserError) else 1
        errors.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
    finally:
        os.chdir(before)
    assert found == status, printed.getvalue() + errors.getvalue()
    return Outcome(printed.getvalue(), errors.getvalue())


def convert(
    dataset_dir: Path, folder: Path, name: str, *more: object, status: int = 0, processes=False
):
    """Convert a folder into `folder`/`name`, in this process or as a user would."""
    words = ["--dataset_dir", dataset_dir, "--tfrecord_filename", name, "--tfrecord_dir", folder]
    if processes:
        return run_program("convert_dataset.py", *words, *more, cwd=folder.parent, status=status)
    return run_convert(*words, *more, cwd=folder.parent, status=status)


def small_model() -> list[str]:
    """Flags that make a step short, of those that the project has."""
    return [word for name, value in small_options().items() for word in (f"--{name}", str(value))]


def small_options() -> dict[str, Any]:
    """The options of a small model, of those that the project has."""
    values = {"image_size": 32, "mel_bands": 16, "window_secs": 0.4}
    fields = [field.name for field in dataclasses.fields(Hyperparameters)]
    return {name: values[name] for name in fields if name in values}


def make_run(data: Path, folder: Path, **options: Any) -> "Run":
    """The run of a small model on the datasets in `data`, with these options."""
    from library.train import Run
    from project import input_fn, networks
    from project.model_fn import HEADS, model_fn

    splits = ("train", "validation", "test")
    given = {f"{split}_data": str(data / split) for split in splits}
    given |= {"model_dir": folder / "checkpoints", "best_model_dir": folder / "best"}
    given |= {"live_progress": False} | small_options() | options
    of_settings = {field.name for field in dataclasses.fields(Settings)} & given.keys()
    return Run(
        settings=Settings(**{name: given.pop(name) for name in of_settings}),
        hyperparameters=Hyperparameters(**given),
        given=frozenset(options),
        modality=modality,
        inputs=input_fn,
        networks=networks,
        model_fn=model_fn,
        heads=HEADS,
    )


def quick_network(patch: pytest.MonkeyPatch) -> None:
    """The network cnn has one layer: a training takes less than half as long to build."""
    import tensorflow as tf

    from library.nn import batch_norm, conv, global_pool
    from project.networks import NETWORKS

    def network(x: Any, *, training: bool, seed: int, dtype: str = "float32", **_: Any) -> Any:
        with tf.compat.v1.variable_scope("stem"):
            x = conv(tf.cast(x, dtype) / 255, 8, stride=2, seed=seed)
            return global_pool(tf.nn.relu(batch_norm(x, training=training)))

    patch.setitem(NETWORKS, "cnn", network)


def quick_model_fn(features: Any, labels: Any, mode: str, params: Any, run: Any) -> Any:
    """That of the project, with a network of one layer."""
    from project.model_fn import model_fn

    with pytest.MonkeyPatch.context() as patch:
        quick_network(patch)
        return model_fn(features, labels, mode, params, run=run)


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_network(monkeypatch)


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """A run of a small network after two epochs, and its best. Do not train it further."""
    from library.train import start_training

    run = make_run(data, tmp_path_factory.mktemp("trained"), train_epochs=2, train_batch_size=8)
    run = run.replace(model_fn=quick_model_fn)
    start_training(run)
    return run


@pytest.fixture(scope="session")
def trained_cnn(data: Path, tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """The same of the network that run.py has."""
    from library.train import start_training

    run = make_run(data, tmp_path_factory.mktemp("cnn"), train_epochs=1, train_batch_size=8)
    start_training(run)
    return run


def events_of(folder: Path) -> list[list[Any]]:
    """The events in each of TensorBoard's files of a folder."""
    import tensorflow as tf

    files = sorted(folder.glob("events*"))
    return [[*tf.compat.v1.train.summary_iterator(str(file))] for file in files]


def summaries(folder: Path) -> list[tuple[int, Any]]:
    """The values in TensorBoard's files of a folder, each with its step."""
    events = [event for some in events_of(folder) for event in some]
    return [(event.step, value) for event in events for value in event.summary.value]


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 6 x 16 examples in train, and 6 x 4 in test."""
    folder = tmp_path_factory.mktemp("sample") / "samples"
    modality.sample_data.make(folder, per_class={"train": 16, "test": 4})
    return folder


@pytest.fixture(scope="session")
def data(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the converted sets train (in several shards), validation and test."""
    folder = tmp_path_factory.mktemp("converted") / "data"
    convert(samples / "train", folder, "train", "--validation_fraction", 0.25, "--num_shards", 3)
    convert(samples / "test", folder, "test")
    return folder


def write_records(path: Path, *shards: list[bytes]) -> str:
    """Write the dataset `path` of these records, by shard."""
    begin, end = f"{path.name}-", f"-of-{len(shards):05}.tfrecord"
    written = [
        write_shard(path.with_name(f"{begin}{number:05}{end}"), records)
        for number, records in enumerate(shards)
    ]
    write_index(path, [rows for _, rows in written])
    count = {"x": sum(map(len, shards))}
    Card(["x"], count, [shard for shard, _ in written], {}).save(f"{path}.json")
    return str(path)


def damaged(data: Path, folder: Path) -> Path:
    """Copy data sets to a folder, the first record of train damaged; return its shard."""
    for file in data.iterdir():
        shutil.copy(file, folder)
    (shard, *_) = sorted(folder.glob("train-*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    return shard


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 48 MB, which is room for three checkpoints and a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting takes the rights of root on Linux")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
