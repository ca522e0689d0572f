"""Files that the project wrote, mutated at random: used, or a line that names what is wrong.

    MUTATIONS=20000 python -m pytest -m slow tests/test_damaged_files.py

does so many of each; without MUTATIONS, 400.
"""

import contextlib
import copy
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from conftest import make_run, quick_network

from library.data import record_dataset, replay_dataset
from library.train import (
    BestCheckpointExporter,
    ModelCard,
    Plan,
    Run,
    find_checkpoint,
    run_record,
    start_training,
)
from library.util import UserError

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("MUTATIONS", "400"))
VALUES = [None, True, -1, 0, 1, 10**400, 2**63, 1e308, float("nan"), float("inf"), "", "x", "-1"]
VALUES += ["../foreign", "/", "a/b", "\ud800", "\0", "null", [], {}, [[]], [None], {"x": 1}]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, doubled or made up, or the end cut off."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randrange(len(data) + 1), rng.randint(1, 9)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + length] = rng.randbytes(length)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length]
            case 4 if rng.random() < 0.2:
                del data[at:]
    return bytes(data)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a structure of JSON, with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    """Some values replaced, left out or put elsewhere; JSON is YAML, too."""
    documents = content.decode().split("---\n")
    value = json.loads(documents[-1])
    for _ in range(rng.randint(1, 3)):
        if not (known := list(places(value))):
            break
        holder, key = rng.choice(known)
        other, from_key = rng.choice(known)
        match rng.randrange(5):
            case 0:
                del holder[key]
            case 1:
                holder[key] = copy.deepcopy(other[from_key])
            case 2 if isinstance(holder, dict):
                holder[rng.choice(["x", "", "format_version", "../x"])] = copy.deepcopy(
                    rng.choice(VALUES)
                )
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    text = "[" * 10**5 if rng.random() < 0.01 else json.dumps(value)
    return "---\n".join([*documents[:-1], text]).encode("utf-8", "surrogatepass")


def fuzz(
    file: Path, read: Callable[[], object], count: int = COUNT, lines_at_least: float = 0.05
) -> None:
    """Mutate a file again and again, and read it: that works, or is a line.

    Nothing changes in the folders beside that of the file, nor above it.
    """
    content, rng = file.read_bytes(), random.Random(file.name)
    foreign = file.parent.parent / "foreign"
    foreign.write_text("foreign")
    beside = sorted(file.parent.parent.iterdir())
    kinds = [mutated]
    with contextlib.suppress(ValueError):
        mutated_json(content, random.Random(0))
        kinds.append(mutated_json)
    lines, quiet = 0, io.StringIO()
    for number in range(count):
        damaged = rng.choice(kinds)(content, rng)
        file.write_bytes(damaged)
        try:
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                read()
        except UserError:
            lines += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number} of {file.name}: {damaged[:2000]!r}") from error
        if foreign.read_text() != "foreign" or sorted(foreign.parent.iterdir()) != beside:
            raise AssertionError(f"mutation {number} of {file.name}: something foreign is written")
    file.write_bytes(content)
    read()
    assert lines >= lines_at_least * count


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> Run:
    """A run after two epochs, with checkpoints that are read in no time."""
    run = make_run(data, tmp_path_factory.mktemp("run"), train_epochs=2, train_batch_size=8)
    with pytest.MonkeyPatch.context() as patch:
        quick_network(patch)
        start_training(run)
    return run


@pytest.fixture
def copied(data, trained, tmp_path) -> Run:
    """A run with its own copies of datasets and folders."""
    shutil.copytree(data, tmp_path / "in" / "data")
    for name in ("checkpoints", "best"):
        shutil.copytree(trained.dir / name, tmp_path / name)
    return make_run(tmp_path / "in" / "data", tmp_path, train_epochs=3, train_batch_size=8)


def test_the_card_of_a_dataset(copied):
    path = Path(copied.settings.train_data)

    def read() -> None:
        run = copied.for_training()
        run.modality.open_data(str(path))
        str(run.card("train_data").target)
        run.head.columns(3)

    fuzz(path.with_suffix(".json"), read)


def test_the_index_of_a_dataset(copied):
    path = Path(copied.settings.train_data)
    file = path.with_suffix(".index")
    if not file.exists():
        pytest.skip("its datasets have no index")

    def read() -> None:
        reader = copied.modality.open_data(str(path))
        assert len(reader.read(range(reader.num_examples))) == reader.num_examples

    fuzz(file, read, lines_at_least=0)  # it is made again


def start(copied: Run) -> Callable[[], object]:
    """What a start of training reads."""
    run = copied.for_training()

    def read() -> None:
        folder = run.settings.best_model_dir
        Plan.of(run, 72)
        exporter = BestCheckpointExporter(folder, measured_with={"x": 1})
        assert isinstance(exporter.outdated, list)
        assert exporter.evaluations_without_improvement >= 0
        find_checkpoint("best", model_dir=run.settings.model_dir, best_model_dir=folder)

    return read


def test_the_record_of_the_best(copied):
    fuzz(copied.settings.best_model_dir / "best.json", start(copied))


def test_the_record_of_patience(copied):
    fuzz(copied.settings.best_model_dir / "patience.json", start(copied))


def test_the_record_of_the_run(copied):
    """As YAML, and as the JSON that it is as well."""
    folder, read = copied.settings.model_dir, start(copied)
    file = folder / "run.yaml"

    def read_all() -> None:
        read()
        run_record.last_options(folder)
        before = file.read_bytes()
        run_record.append(folder, record)
        file.write_bytes(before)

    (record,) = run_record.load(folder)
    fuzz(file, read_all, COUNT // 2)
    file.write_text("---\n" + json.dumps(record))
    fuzz(file, read_all, COUNT // 2)


def test_the_card_of_a_model(copied):
    folder, plan = copied.settings.best_model_dir, start(copied)
    shutil.copy(folder / "model.json", copied.settings.model_dir)

    def read() -> None:
        run, _ = copied.trained()
        run.head.columns(3)
        str(run.head.target)
        model = ModelCard.load(folder)
        copied.for_training().model.must_equal(model, folder)

    fuzz(folder / "model.json", read)
    plan()


def test_the_card_of_a_recording(tmp_path):
    folder = tmp_path / "recording"
    element = {"x": [1.0, 2.0], "y": ([[1], [2]], ["a", "b"])}
    record_dataset(tf.data.Dataset.from_tensor_slices(element), folder)

    def read() -> None:
        with contextlib.suppress(tf.errors.OpError):  # of an element that is not as it says
            list(replay_dataset(folder))

    fuzz(folder / "recording.json", read)


@pytest.mark.parametrize("part", ["checkpoint", ".index", ".data-00000-of-00001"])
def test_a_checkpoint(copied, part):
    folder = copied.settings.model_dir
    latest = tf.train.latest_checkpoint(folder)
    file = folder / part if part == "checkpoint" else Path(f"{latest}{part}")

    def read() -> None:
        for model in ("latest", latest):
            found = find_checkpoint(model, model_dir=folder, best_model_dir="")
            assert Path(found).parent == folder

    fuzz(file, read, lines_at_least=0 if part == "checkpoint" else 0.05)  # it can be done without
