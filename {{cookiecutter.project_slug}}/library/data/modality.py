"""The protocols of sources and of a modality: what images and audio clips do differently."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from library.data.card import Label, Shard, Target

EDGE = 16
"""Of a thumbnail, in places of brightness or loudness."""


class Source(Protocol):
    """Examples that can be read in any order."""

    dtype: np.dtype = np.dtype(object)
    shape: Sequence[int] = ()
    """Of one content; dtype object stands for bytes."""

    @property
    def num_examples(self) -> int: ...

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The contents of these ids, int64 [n] -> [n, *shape]; called from several threads."""


class Examples(Source, Protocol):
    """An open dataset."""

    shards: Sequence[str]

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each example."""


class Modality(Protocol):
    """What a dataset is made of: the packages library.images and library.audio."""

    __name__: str  # of the package, which workers import
    UNIT: str  # as in "96 images"
    SUFFIX: str  # of a shard, as ".tfrecord"
    HELP: str  # a paragraph of convert_dataset.py's --help
    ShardOptions: Any  # a dataclass of the options of its own
    FLOAT_OPS: str  # of TFLite, with spaces between them, which an int8 model leaves in float32
    sample_data: ModuleType  # make(folder, per_class=..., seed=...) writes files to learn from

    def resolve_options(self, options: Any, some: Sequence[Path], known: Mapping[str, Any]) -> Any:
        """The ShardOptions, with what they leave to the files, of which there are some.

        `known` are the options of the dataset that this one is for, as a test set.
        """

    def canonicalize(self, data: bytes, options: Any) -> Any:
        """What is kept of a file; BadFileError where it cannot be used.

        Its `thumbnail` has few bytes, the same number of each, near for what looks or sounds the
        same: EDGE x EDGE of brightness or loudness, and any number that tell more.
        """

    def measures(self, path: Path) -> dict[str, float]:
        """What can be measured of a file without decoding it; nothing of one that is broken."""

    def preview(self, data: bytes) -> tuple[str, bytes]:
        """A small image or sound that a page shows of a file: its type, as image/jpeg, and bytes.

        BadFileError where it cannot be used.
        """

    def write_shard(
        self, path: Path, examples: Iterable[tuple[str, Label, Any]], target: Target
    ) -> tuple[Shard, np.ndarray]:
        """Write name, label and what `canonicalize` gave of each; the card's entry, index rows."""

    def check_shard(
        self, path: Path, target: Target, bad: Mapping[int, str], tell: Callable[[int, int], None]
    ) -> Iterator[tuple[str, Sequence[int]]]:
        """What is wrong with each example of a shard, or "", and the numbers of its classes.

        `bad` are examples that must not be decoded, by their number, with the reason. `tell` is
        called with the number of an example and its bytes, before it is decoded.

        Raises:
            DamagedRecordError: what follows cannot be found.
        """

    def open_data(self, path: str | Path) -> Examples:
        """The dataset `path`, as "data/train"."""

    def train_keys(self, settings: Any, start: int, count: int) -> list[str]:
        """File names of the examples from `start` on of a training."""

    def encoded_examples(self, path: str | Path, ids: Sequence[int]) -> list[bytes]:
        """The examples of these ids, rising, in the dataset `path`, as prediction takes them."""

    def playable(self, path: str | Path, names: Collection[str]) -> dict[str, bytes]:
        """FLAC files of the examples of these names, which a report plays."""
