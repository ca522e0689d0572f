"""The card of a recording, recording.json: its files, and the structure of its elements.

A tensor is written as "float32[None, 3]", or "string[...]" for an unknown rank; a sparse one as
"sparse int64[3]"; a ragged one with its ragged rank and the dtype of its row splits, as
"ragged 1 int64 int8[2, None]".
"""

import collections
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from library.data.card import is_name
from library.util import UserError, read_card, write_json

FORMAT_VERSION = 1
CARD = "recording.json"
DTYPES = ["bool", "string", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
DTYPES += ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
"""Those that tf.io.serialize_tensor takes."""
COMPRESSIONS = (None, "GZIP", "ZLIB")
LEAF = re.compile(r"(?:(sparse) |ragged (\d+) (int32|int64) )?(\w+)\[(.*)\]")


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """A file of a recording."""

    file: str
    elements: int
    bytes: int


@dataclasses.dataclass
class Recording:
    """What a folder holds: the content of its `recording.json`."""

    element: Any  # as `describe` writes it
    compression: str | None
    complete: bool = False  # whether the dataset came to its end, or to num_elems
    files: list[RecordFile] = dataclasses.field(default_factory=list)
    format_version: int = FORMAT_VERSION

    @property
    def num_elements(self) -> int:
        return sum(file.elements for file in self.files)

    @classmethod
    def load(cls, folder: Path) -> "Recording":
        """Raises UserError: there is no recording, or not one that this version can read."""
        what, remedy = "the card of a recording", "record the dataset again"
        try:
            text = (folder / CARD).read_bytes()
        except FileNotFoundError as error:
            raise UserError(f"{folder}: holds no recording, since there is no {CARD}") from error
        place = folder / CARD
        return read_card(cls, text, place=place, what=what, remedy=remedy, prepare=_checked)

    def save(self, folder: Path) -> None:
        write_json(folder / CARD, dataclasses.asdict(self))


def _checked(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a card; an error where it is none."""
    tf.nest.flatten(spec_of(content["element"]))  # its keys can be compared
    good = all(is_name(file["file"]) and file["elements"] >= 0 for file in content["files"])
    if not good or content["compression"] not in COMPRESSIONS:
        raise ValueError
    return content


def describe(spec: Any) -> Any:
    """A structure of specs, as `Dataset.element_spec`, as JSON; ValueError but for DTYPES."""
    match spec:
        case tf.TensorSpec() | tf.RaggedTensorSpec() | tf.SparseTensorSpec():
            if spec.dtype.name in DTYPES:
                kind = "sparse " if isinstance(spec, tf.SparseTensorSpec) else ""
                if isinstance(spec, tf.RaggedTensorSpec):
                    kind = f"ragged {spec.ragged_rank} {spec.row_splits_dtype.name} "
                sizes = "..." if spec.shape.rank is None else str(spec.shape.as_list())[1:-1]
                return f"{kind}{spec.dtype.name}[{sizes}]"
        case Mapping() if all(isinstance(key, str) for key in spec):
            return {"dict": {key: describe(value) for key, value in spec.items()}}
        case Mapping() if all(isinstance(key, int) for key in spec):
            return {"items": [[key, describe(value)] for key, value in spec.items()]}
        case tuple() if hasattr(spec, "_asdict"):
            return {"namedtuple": type(spec).__name__, "fields": describe(spec._asdict())["dict"]}
        case tuple():
            return {"tuple": [describe(value) for value in spec]}
    if spec is None or type(spec).__name__ == "NoneTensorSpec":
        return None
    raise ValueError(
        f"{spec} cannot be recorded: only tensors of numbers and strings, in dicts and tuples"
    )


def spec_of(description: Any) -> Any:
    """The structure of specs that `describe` wrote; ValueError or TypeError if it is none."""
    match description:
        case None:
            return None
        case str() if leaf := LEAF.fullmatch(description):
            sparse, ragged_rank, splits, name, sizes = leaf.groups()
            known = [None if size == "None" else int(size) for size in re.findall(r"\w+", sizes)]
            shape, dtype = None if sizes == "..." else known, tf.as_dtype(name)
            if ragged_rank:
                return tf.RaggedTensorSpec(shape, dtype, int(ragged_rank), tf.as_dtype(splits))
            return tf.SparseTensorSpec(shape, dtype) if sparse else tf.TensorSpec(shape, dtype)
        case {"dict": dict(fields)}:
            return {key: spec_of(value) for key, value in fields.items()}
        case {"items": list(items)}:
            return {key: spec_of(value) for key, value in items}
        case {"namedtuple": str(name), "fields": dict(fields)}:
            return collections.namedtuple(name, fields)(*map(spec_of, fields.values()))
        case {"tuple": list(values)}:
            return tuple(map(spec_of, values))
    raise ValueError(f"{description} describes no structure")
