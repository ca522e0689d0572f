"""Any tf.data pipeline recorded to TFRecord files, and replayed from them.

    record_dataset(windows, "recorded/train", num_elems=10_000)
    dataset = replay_dataset("recorded/train", shuffle=True, seed=1, epochs=None)

An element is a row of records, one for each tensor that tf.nest.flatten finds in it with
expand_composites, as tf.io.serialize_tensor makes them. `recording.json` describes the elements and
names the files. It is replaced after each of them, so that a recording replays at any time, even
when the process that made it was killed.
"""

import concurrent.futures
import contextlib
import itertools
import numbers
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from library.config import URL
from library.data import recording_card
from library.data.card import expect_sizes
from library.data.order import shuffle_and_repeat
from library.data.recording_card import CARD, RecordFile, Recording, describe, spec_of
from library.data.sources import read_by_id
from library.data.stages import without_autotuner
from library.data.tfrecord import Records, frame, index_of
from library.util import Progress, UserError, check_folder, replacing

OURS = re.compile(r"recording\.json|record-\d{5,}\.tfrecord|\.record(ing|-\d{5,})\..+\.tmp")
ELEMENTS_AT_ONCE = 16
BUFFER_SIZE = 2**20


def _check_folder(output_dir: str | Path) -> Path:
    if URL.match(str(output_dir)):
        raise UserError(f"output_dir: must be a folder on this machine (got {output_dir})")
    return Path(output_dir)


def _check_count(name: str, value: Any, minimum: int = 1) -> None:
    if not isinstance(value, numbers.Integral) or value < minimum:
        raise UserError(f"{name}: must be a whole number of at least {minimum} (got {value!r})")


# ---- recording ---------------------------------------------------------------------------------


def record_dataset(
    dataset: tf.data.Dataset,
    output_dir: str | Path,
    num_elems: int | None = None,
    elements_per_file: int = 1024,
    *,
    compression: str | None = None,
    overwrite: bool = False,
) -> int:
    """Write the elements of a dataset to `record-00000.tfrecord`, `record-00001.tfrecord`, ...

    When it is interrupted, or the dataset fails, what was written so far is kept; of a dataset that
    fails, a few of the last elements may be missing.

    Args:
        dataset: of tensors, also ragged and sparse ones, of any shapes, in dicts and tuples.
        output_dir: a folder for this recording alone.
        num_elems: how many elements to write at most; None: all.
        elements_per_file: in all files but the last one, which may have fewer.
        compression: "GZIP" or "ZLIB" for smaller files, which cannot be shuffled.
        overwrite: whether to replace a recording that exists: it is deleted first, so the dataset
            must not read from it.

    Returns:
        The number of elements written.

    Raises:
        UserError: an argument is out of its range, the dataset has no end, or holds what cannot be
            recorded, or the folder holds something else.
    """
    folder = _check_folder(output_dir)
    try:
        recording = Recording(describe(dataset.element_spec), compression)
    except ValueError as error:
        raise UserError(f"dataset: {error}") from error
    if not _leaves_of(dataset.element_spec):
        raise UserError("dataset: its elements hold no tensor")
    if compression not in recording_card.COMPRESSIONS:
        raise UserError(f"compression: must be None, GZIP or ZLIB (got {compression!r})")
    _check_count("elements_per_file", elements_per_file)
    _check_count("num_elems", 1 if num_elems is None else num_elems)
    dataset = dataset.take(-1 if num_elems is None else num_elems)
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise UserError("num_elems: must be given, since the dataset has no end")
    _make_room(folder, overwrite)
    recording.save(folder)
    rows = _Rows(dataset, spec_of(recording.element))
    # Only the main thread is interrupted: never in the middle of an element, or of a file.
    with concurrent.futures.ThreadPoolExecutor(1) as writer:
        try:
            writer.submit(_write_files, rows, folder, recording, elements_per_file).result()
        except KeyboardInterrupt as interrupt:
            rows.stop.set()
            writer.shutdown()
            kept = f"{recording.num_elements} elements are recorded in {folder}, and replay"
            raise KeyboardInterrupt(kept) from interrupt
    return recording.num_elements


def _make_room(folder: Path, overwrite: bool) -> None:
    """Make the folder, or empty it of a recording."""
    check_folder("output_dir", folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(os.listdir(folder), key=lambda name: (name != CARD, name))
    for name in names:
        if not OURS.fullmatch(name):
            raise UserError(f"output_dir: {folder} holds {name}, which is not of a recording")
    if CARD in names and b'"format_version"' not in (folder / CARD).read_bytes():
        raise UserError(f"{folder / CARD}: not the card of a recording")
    if names and not overwrite:
        what = "a recording" if CARD in names else f"{names[0]}, left by a killed recording"
        raise UserError(f"output_dir: {folder} holds {what}: use overwrite=True to replace it")
    for name in names:  # the card first
        (folder / name).unlink()


def _leaves_of(structure: Any) -> list[Any]:
    """The tensors of a structure, or the specs: ragged and sparse ones as a whole."""
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


def _is_open(leaf: Any) -> bool:
    """Whether a dense tensor, or the spec of one, leaves something of its shape open."""
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec)) and not leaf.shape.is_fully_defined()


class _Rows:
    """The elements of a dataset as rows of records, until its end, its failure or the stop."""

    def __init__(self, dataset: tf.data.Dataset, spec: Any):
        self.dataset, self.spec = dataset, spec
        self.open: list[bool] = []  # of each tensor, whether something of its shape is open
        for leaf in _leaves_of(spec):
            self.open += [_is_open(leaf)] * len(tf.nest.flatten(leaf, expand_composites=True))
        self.shapes: list[tf.TensorShape | None] = [None] * sum(self.open)
        """What the tensors whose shape is open have in common in all elements."""
        self.failure: tf.errors.OpError | None = None
        self.stop = threading.Event()

    def __iter__(self) -> Iterator[list[bytes]]:
        """Several at once, since TensorFlow's threads and Python wait for each other each time."""
        rows = without_autotuner(self.dataset).map(self._row, tf.data.AUTOTUNE, deterministic=True)
        try:
            for batch in rows.batch(ELEMENTS_AT_ONCE).prefetch(1):
                yield from map(self._records, batch.numpy().tolist())
                if self.stop.is_set():
                    return
        except tf.errors.OpError as error:
            self.failure = error

    def _row(self, *element: Any) -> tf.Tensor:
        """The records of an element, and the shapes that were open, as "3,4": strings [n]."""
        tensors = tf.nest.flatten(_leaves_of(element), expand_composites=True)
        shapes = map(tf.shape, itertools.compress(tensors, self.open))
        texts = [tf.strings.reduce_join(tf.as_string(each), separator=",") for each in shapes]
        return tf.stack([*map(tf.io.serialize_tensor, tensors), *texts])

    def _records(self, row: list[bytes]) -> list[bytes]:
        """Note the shapes of a row, and leave the records."""
        width = len(self.open)
        for number, text in enumerate(row[width:]):
            shape = tf.TensorShape([int(size) for size in text.split(b",") if size])
            common = self.shapes[number]
            common = shape if common is None else common
            self.shapes[number] = common.most_specific_compatible_shape(shape)
        return row[:width]

    def common_spec(self) -> Any:
        """The spec, with the shapes that all elements had in common."""
        shapes = iter(self.shapes)
        return tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(next(shapes), leaf.dtype) if _is_open(leaf) else leaf,
            self.spec,
        )


def _write_files(rows: _Rows, folder: Path, recording: Recording, elements_per_file: int) -> None:
    total, left = int(rows.dataset.cardinality()), iter(rows)
    with Progress(max(total, 0) or None, "elements") as progress:
        for first in left:
            file, count = f"record-{len(recording.files):05}.tfrecord", 0
            with replacing(folder / file) as temporary:
                with _writer(temporary, recording.compression) as write:
                    rest = itertools.islice(left, elements_per_file - 1)
                    for count, row in enumerate(itertools.chain([first], rest), 1):  # noqa: B007
                        for record in row:
                            write(record)
                        progress.update(1, sum(map(len, row)))
                size = os.path.getsize(temporary)
            recording.files.append(RecordFile(file, count, size))
            recording.element = describe(rows.common_spec())
            recording.save(folder)
    if rows.failure:
        raise rows.failure
    recording.complete = not rows.stop.is_set()
    recording.save(folder)


@contextlib.contextmanager
def _writer(path: Path, compression: str | None) -> Iterator[Callable[[bytes], None]]:
    if compression:
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            yield writer.write
    else:  # in half of the CPU time
        with open(path, "wb", buffering=BUFFER_SIZE) as file:
            yield lambda record: file.writelines(frame(record))


# ---- replaying ---------------------------------------------------------------------------------


def replay_dataset(
    output_dir: str | Path,
    shuffle: bool = False,
    *,
    seed: int = 0,
    start: int = 0,
    epochs: int | None = 1,
) -> tf.data.Dataset:
    """Read a recording: the elements in their structure, with their dtypes and shapes.

    Where a shape was open, it has what the shapes of all elements had in common.

    Args:
        output_dir: the folder of the recording.
        shuffle: whether each epoch has all elements in an order of its own, read by their number.
        seed: fixes these orders.
        start: number of elements to leave out at the beginning of the run.
        epochs: counted from the beginning of the run; None: without end.

    Raises:
        UserError: there is no recording, a file of it is missing or was changed, or it is to be
            shuffled and is compressed.
    """
    folder = _check_folder(output_dir)
    _check_count("start", start, 0)
    _check_count("epochs", 1 if epochs is None else epochs)
    recording = Recording.load(folder)
    spec, total = spec_of(recording.element), recording.num_elements
    components = tf.nest.flatten(spec, expand_composites=True)
    width = sum(component is not None for component in components)
    sizes = {str(folder / file.file): file.bytes for file in recording.files}
    expect_sizes(sizes, str(folder / CARD))
    if shuffle and recording.compression:
        raise UserError(f"shuffle: {folder} is compressed, and can be read in order only")
    if shuffle and total:
        ids = shuffle_and_repeat(total, seed, start, epochs)
        elements = _Elements(folder, list(sizes), width, total)
        rows = ids.apply(read_by_id(elements, tf.data.AUTOTUNE)).map(lambda number, row: row)
    else:
        first_epoch, skipped = divmod(start, max(total, 1))
        rows = without_autotuner(tf.data.TFRecordDataset(list(sizes), recording.compression))
        rows = rows.batch(width, drop_remainder=True) if width > 1 else rows
        rows = rows.repeat(epochs and max(0, epochs - first_epoch)).skip(skipped)

    def parse(row: tf.Tensor) -> Any:
        """Records, strings [width], or a scalar where that is 1 -> an element."""
        records = iter(tf.unstack(row, width) if width > 1 else [row])
        tensors = [
            spec and tf.ensure_shape(tf.io.parse_tensor(next(records), spec.dtype), spec.shape)
            for spec in components
        ]
        return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

    size = max(0, epochs * total - start) if epochs else tf.data.INFINITE_CARDINALITY
    try:
        parsed = rows.map(parse, tf.data.AUTOTUNE, deterministic=True)
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / CARD}: describes no element: {error}") from error
    return parsed.apply(tf.data.experimental.assert_cardinality(size if total else 0))


class _Elements(Records):
    """Rows of records by the number of their element: a `library.data.Source`."""

    def __init__(self, folder: Path, files: list[str], width: int, total: int):
        index = index_of(files)
        if len(index) != total * width:
            raise UserError(f"{folder / CARD}: its files hold another number of records")
        super().__init__(files, index)
        self.width, self.shape = width, (width,) if width > 1 else ()

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The elements of these numbers: int64 [n] -> bytes objects [n, width], or [n]."""
        numbers = ids[:, None] * self.width + np.arange(self.width)
        return super().read(numbers.ravel()).reshape(-1, *self.shape)
