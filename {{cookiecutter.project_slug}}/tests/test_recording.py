"""What is recorded is replayed: structure, dtypes, shapes and every element, bit for bit."""

import collections
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forked
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from conftest import LIMIT_SECS, ROOT

from library.data import record_dataset, replay_dataset
from library.util import UserError

DTYPES = [tf.bool, tf.string, tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64]
DTYPES += [tf.complex128, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32]
DTYPES += [tf.uint64]

Point = collections.namedtuple("Point", "x y")  # noqa: PYI024


def tensors_of(element: Any) -> list[tf.Tensor]:
    return [each for each in tf.nest.flatten(element, expand_composites=True) if each is not None]


def same(first: tf.Tensor, second: tf.Tensor) -> bool:
    """Equal to the bit, NaN too."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype == tf.string:
        return np.array_equal(first.numpy(), second.numpy())
    return first.numpy().tobytes() == second.numpy().tobytes()


def expect_replay(
    folder: Path, dataset: tf.data.Dataset, count: int, elements: Sequence | None = None
) -> tf.data.Dataset:
    """The recording has the first `count` elements of the dataset, which may be known."""
    replayed = replay_dataset(folder)
    expected, found = list(dataset.take(count) if elements is None else elements), list(replayed)
    assert len(found) == len(expected) == replayed.cardinality() == count
    tf.nest.assert_same_structure(dataset.element_spec, replayed.element_spec)
    for one, other in zip(expected, found, strict=True):
        tf.nest.assert_same_structure(one, other, expand_composites=True)
        assert all(map(same, tensors_of(one), tensors_of(other)))
    return replayed


def values_of(dtype: tf.DType, shape: list[int], seed: int) -> tf.Tensor:
    """Any bits, for numbers; any bytes, for strings."""
    random = np.random.default_rng(seed)
    if dtype == tf.string:
        size = int(np.prod(shape))
        texts = [random.bytes(random.integers(0, 9)) for _ in range(size)]
        return tf.reshape(tf.constant(texts, tf.string), shape)
    if dtype == tf.bool:
        return tf.constant(random.integers(0, 2, shape) > 0)
    size = int(np.prod(shape)) * dtype.size
    bits = np.frombuffer(random.bytes(size), dtype.as_numpy_dtype)
    return tf.constant(bits.reshape(shape), dtype)


# ---- any structure, any dtype, any shape -------------------------------------------------------

LEAVES = st.tuples(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["fixed", "one length differs", "the rank differs"]),
)
STRUCTURES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.dictionaries(st.text(min_size=1, max_size=4), children, min_size=1, max_size=3),
        st.tuples(children, children),
        st.builds(Point, children, children),
    ),
    max_leaves=8,
)


def is_leaf(structure: Any) -> bool:
    return type(structure) is tuple and isinstance(structure[0], tf.DType)


def map_leaves(function, structure: Any) -> Any:
    if is_leaf(structure):
        return function(*structure)
    if isinstance(structure, dict):
        return {key: map_leaves(function, value) for key, value in structure.items()}
    values = [map_leaves(function, value) for value in structure]
    return Point(*values) if isinstance(structure, Point) else tuple(values)


def element_of(structure: Any, number: int) -> Any:
    def leaf(dtype: tf.DType, shape: list[int], kind: str) -> tf.Tensor:
        if kind == "one length differs" and shape:
            shape = [number % 3, *shape[1:]]
        elif kind == "the rank differs":
            shape = [1] * (number % 2) + shape
        return values_of(dtype, shape, number)

    return map_leaves(leaf, structure)


def spec_of(structure: Any) -> Any:
    def leaf(dtype: tf.DType, shape: list[int], kind: str) -> tf.TensorSpec:
        if kind == "one length differs" and shape:
            return tf.TensorSpec([None, *shape[1:]], dtype)
        return tf.TensorSpec(None if kind == "the rank differs" else shape, dtype)

    return map_leaves(leaf, structure)


@pytest.mark.slow
@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    structure=STRUCTURES,
    count=st.integers(0, 7),
    num_elems=st.one_of(st.none(), st.integers(1, 9)),
    elements_per_file=st.integers(1, 5),
    compression=st.sampled_from([None, None, "GZIP", "ZLIB"]),
)
def test_what_is_recorded_is_replayed(
    tmp_path_factory, structure, count, num_elems, elements_per_file, compression
):
    elements = [element_of(structure, number) for number in range(count)]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(elements), output_signature=spec_of(structure)
    )
    folder = tmp_path_factory.mktemp("recording")
    written = record_dataset(dataset, folder, num_elems, elements_per_file, compression=compression)
    expected = min(count, num_elems or count)
    assert written == expected
    expect_replay(folder, dataset, expected, elements[:expected])
    card = json.loads((folder / "recording.json").read_text())
    sizes = [file["elements"] for file in card["files"]]
    whole, rest = divmod(expected, elements_per_file)
    assert sizes == [elements_per_file] * whole + [rest] * bool(rest)
    assert card["complete"]
    if not compression:
        again = list(replay_dataset(folder, shuffle=True, seed=1))
        before = sorted(str(tensors_of(each)) for each in elements[:expected])
        assert sorted(str(tensors_of(each)) for each in again) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(7).map(
            lambda i: tf.RaggedTensor.from_row_lengths(tf.range(i), [i])
        ),
        lambda: tf.data.Dataset.range(7).map(lambda i: tf.range(i)).ragged_batch(3),
        lambda: tf.data.Dataset.range(5).map(
            lambda i: {"a": tf.sparse.from_dense([0, i, 0]), "b": None}
        ),
        lambda: tf.data.Dataset.range(10).map(lambda i: (i, {"x": tf.eye(2)})).batch(4),
        lambda: tf.data.Dataset.from_tensors(Point(1.0, ("two", 3))).repeat(3),
        lambda: tf.data.Dataset.from_tensors({2: 1.0, 10: 2.0, 1: "three"}).repeat(3),
        lambda: tf.data.Dataset.range(0).map(lambda i: {"never": tf.zeros([3, 4])}),
    ],
    ids=["ragged", "ragged batches", "sparse", "batches", "named tuples", "int keys", "none"],
)
def test_composite_and_batched_elements_are_replayed(tmp_path, make):
    dataset = make()
    count = record_dataset(dataset, tmp_path / "r", elements_per_file=2)
    replayed = expect_replay(tmp_path / "r", dataset, count)
    assert str(replayed.element_spec) == str(dataset.element_spec)


@pytest.mark.parametrize("elements_per_file", [1, 2, 5])
def test_no_element_is_lost_or_doubled_at_the_end_of_a_file(tmp_path, elements_per_file):
    for count in (0, 1, 4, 5, 6, 10, 11):
        folder = tmp_path / str(count)
        written = record_dataset(
            tf.data.Dataset.range(count), folder, elements_per_file=elements_per_file
        )
        assert written == count
        assert list(replay_dataset(folder).as_numpy_iterator()) == list(range(count))
        assert len(list(folder.glob("*.tfrecord"))) == -(-count // elements_per_file)


def test_windows_of_a_dataset_without_end_fill_their_files(tmp_path):
    signal = tf.range(40_000, dtype=tf.int32)
    dataset = tf.data.Dataset.range(2**40).map(
        lambda index: {"signal": signal[index : index + 32_768], "index": index}
    )
    record_dataset(dataset.repeat(), tmp_path / "r", num_elems=10, elements_per_file=4)
    card = json.loads((tmp_path / "r" / "recording.json").read_text())
    assert [file["elements"] for file in card["files"]] == [4, 4, 2]
    assert replay_dataset(tmp_path / "r").element_spec["signal"].shape == [32_768]
    expect_replay(tmp_path / "r", dataset, 10)


def test_shapes_are_those_that_all_elements_have_in_common(tmp_path):
    spec = (tf.TensorSpec(None), tf.TensorSpec([None, 3]), tf.TensorSpec(None))
    elements = [(np.zeros([4, 5]), np.zeros([n, 3]), np.zeros([1] * n)) for n in range(3)]
    dataset = tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)
    record_dataset(dataset, tmp_path / "r")
    shapes = [str(spec.shape) for spec in replay_dataset(tmp_path / "r").element_spec]
    assert shapes == ["(4, 5)", "(None, 3)", "<unknown>"]


# ---- in another order --------------------------------------------------------------------------


def test_a_shuffled_replay_has_each_element_once_an_epoch_and_starts_anywhere(tmp_path):
    dataset = tf.data.Dataset.range(50).map(lambda i: {"id": i, "text": tf.as_string(i)})
    record_dataset(dataset, tmp_path / "r", elements_per_file=8)

    def ids(**options) -> list[int]:
        replayed = replay_dataset(tmp_path / "r", shuffle=True, **options)
        for each in replayed.take(60):
            assert int(each["text"]) == each["id"]
        return [int(each["id"]) for each in replayed]

    epochs = ids(seed=1, epochs=2)
    assert sorted(epochs[:50]) == sorted(epochs[50:]) == list(range(50))
    assert epochs[:50] != epochs[50:]
    assert epochs == ids(seed=1, epochs=2)
    assert ids(seed=1, epochs=2, start=37) == epochs[37:]
    assert ids(seed=1, epochs=2, start=77) == epochs[77:]
    assert ids(seed=2) != epochs[:50]
    endless = replay_dataset(tmp_path / "r", shuffle=True, seed=1, epochs=None)
    assert [int(each["id"]) for each in endless.take(100)] == epochs


def test_a_replay_in_order_starts_anywhere(tmp_path):
    record_dataset(tf.data.Dataset.range(10), tmp_path / "r", elements_per_file=4)
    for start in (0, 3, 9, 10, 13, 20):
        found = list(replay_dataset(tmp_path / "r", start=start, epochs=2).as_numpy_iterator())
        assert found == [*range(10), *range(10)][start:]


# ---- what ends a recording ---------------------------------------------------------------------

RECORDS = """
import sys, time
import tensorflow as tf
from library.data import record_dataset

def slow(number):
    time.sleep(0.005)
    return number

dataset = tf.data.Dataset.range(100_000).map(
    lambda i: (tf.numpy_function(slow, [i], tf.int64), tf.fill([100], i))
)
record_dataset(dataset, "r", elements_per_file=int(sys.argv[1]))
"""


def start_recording(folder: Path, elements_per_file: int) -> forked.Process:
    (folder / "record.py").write_text(RECORDS)
    command, outputs = ["record.py", str(elements_per_file)], [folder / "out", folder / "err"]
    return forked.start(command, folder, {"PYTHONPATH": str(ROOT)}, outputs)


def wait_for(folder: Path, pattern: str, count: int, process: forked.Process) -> None:
    while len(list(folder.glob(pattern))) < count:
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.slow
def test_what_is_on_disk_replays_when_the_process_was_killed(tmp_path):
    process = start_recording(tmp_path, 40)
    wait_for(tmp_path, "r/record-*.tfrecord", 2, process)
    process.kill()
    process.wait()
    found = [int(first) for first, _ in replay_dataset(tmp_path / "r")]
    assert found == list(range(len(found)))
    assert len(found) >= 40, "recording.json comes after its last file"
    again = record_dataset(tf.data.Dataset.range(3), tmp_path / "r", overwrite=True)
    assert len(list(replay_dataset(tmp_path / "r"))) == again == 3
    assert len(os.listdir(tmp_path / "r")) == 2


@pytest.mark.slow
def test_ctrl_c_keeps_the_file_that_is_being_written(tmp_path):
    process = start_recording(tmp_path, 100_000)
    wait_for(tmp_path, "r/.record-*.tmp", 1, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_SECS) != 0
    found = [int(first) for first, _ in replay_dataset(tmp_path / "r")]
    assert found == list(range(len(found)))
    assert 0 < len(found) < 100_000
    assert f"{len(found)} elements are recorded in r, and replay" in (tmp_path / "err").read_text()


def test_what_a_failing_dataset_gave_is_kept(tmp_path):
    def checked(number: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less(number, np.int64(70))]):
            return tf.identity(number)

    dataset = tf.data.Dataset.range(100).map(checked)
    with pytest.raises(tf.errors.InvalidArgumentError):
        record_dataset(dataset, tmp_path / "r", elements_per_file=10)
    found = list(replay_dataset(tmp_path / "r").as_numpy_iterator())
    assert found == list(range(len(found)))
    assert len(found) > 50
    assert not json.loads((tmp_path / "r" / "recording.json").read_text())["complete"]


# ---- what is refused ---------------------------------------------------------------------------


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(5)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: numbers().repeat(), {}, "num_elems: must be given, since the dataset has no end"),
        (numbers, {"num_elems": 0}, r"num_elems: .* at least 1 \(got 0\)"),
        (numbers, {"elements_per_file": 0}, r"elements_per_file: .* at least 1 \(got 0\)"),
        (numbers, {"elements_per_file": None}, r"elements_per_file: .* \(got None\)"),
        (numbers, {"elements_per_file": 2.5}, r"elements_per_file: .* \(got 2.5\)"),
        (numbers, {"compression": "zip"}, "compression: must be None, GZIP or ZLIB"),
        (lambda: numbers().window(2), {}, "dataset: DatasetSpec.* cannot be recorded"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_anything_is_written(
    tmp_path, make, options, message
):
    with pytest.raises(UserError, match=message):
        record_dataset(make(), tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def test_a_folder_that_holds_something_is_not_written_to(tmp_path):
    folder = tmp_path / "r"
    record_dataset(numbers(), folder, elements_per_file=1)
    with pytest.raises(UserError, match="holds a recording: use overwrite=True"):
        record_dataset(numbers(), folder)
    record_dataset(numbers().take(2), folder, overwrite=True)
    assert sorted(os.listdir(folder)) == ["record-00000.tfrecord", "recording.json"]
    (folder / "recording.json").unlink()
    with pytest.raises(UserError, match="left by a killed recording: use overwrite=True"):
        record_dataset(numbers(), folder)
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="holds thesis.tex, which is not of a recording"):
        record_dataset(numbers(), folder, overwrite=True)
    assert (folder / "record-00000.tfrecord").exists()


def test_a_replay_starts_at_a_number(tmp_path):
    record_dataset(numbers(), tmp_path / "r")
    with pytest.raises(UserError, match=r"start: .* at least 0 \(got None\)"):
        replay_dataset(tmp_path / "r", start=None)


def change_card(folder: Path, **changes: Any) -> None:
    card = json.loads((folder / "recording.json").read_text())
    (folder / "recording.json").write_text(json.dumps({**card, **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "recording.json").unlink(), "holds no recording"),
        (lambda f: change_card(f, format_version=9), "format_version 9, but this program reads up"),
        (lambda f: (f / "recording.json").write_text("[1]"), "not the card of a recording"),
        (lambda f: change_card(f, element="float99[3]"), "not the card of a recording"),
        (lambda f: (f / "record-00001.tfrecord").unlink(), "record-00001.tfrecord: .*no such file"),
        (lambda f: (f / "record-00001.tfrecord").write_bytes(b"x"), "00001.tfrecord: 1 bytes, but"),
    ],
)
def test_a_recording_that_is_not_whole_is_named(tmp_path, damage, message):
    record_dataset(numbers(), tmp_path / "r", elements_per_file=3)
    damage(tmp_path / "r")
    with pytest.raises(UserError, match=message):
        replay_dataset(tmp_path / "r")


def test_a_compressed_recording_is_not_shuffled(tmp_path):
    record_dataset(numbers(), tmp_path / "r", compression="GZIP")
    with pytest.raises(UserError, match="is compressed, and can be read in order only"):
        replay_dataset(tmp_path / "r", shuffle=True)
