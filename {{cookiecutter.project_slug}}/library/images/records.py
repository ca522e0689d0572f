"""Images in a shard: how a record is written and verified. Imports no TensorFlow.

A worker process of a conversion is a tenth as large without it.
"""

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from PIL import Image

from library.data import Example, Label, Reader, Shard, Target, find_records, read_record
from library.data import write_shard as write_records
from library.images.files import Jpeg

UNIT = "images"
SUFFIX = ".tfrecord"
HELP = """
JPEG, PNG, GIF, BMP, TIFF and WebP are detected from their content.
"""

ENCODED, FORMAT, FILENAME = "image/encoded", "image/format", "image/filename"
HEIGHT, WIDTH = "image/height", "image/width"
CLASS, CLASS_NAME, VALUE = "image/class/label", "image/class/text", "image/value"
"""Keys of a record: those of TensorFlow's own models, and the value that is learned."""

open_data = Reader


def to_example(jpeg: Jpeg, label: Label, filename: str, target: Target) -> bytes:
    """A serialized tf.train.Example of an image, its label, and the name of its file."""
    example = Example()
    feature = example.features.feature
    feature[ENCODED].bytes_list.value.append(jpeg.data)
    feature[FORMAT].bytes_list.value.append(b"jpeg")
    feature[FILENAME].bytes_list.value.append(filename.encode(errors="surrogateescape"))
    feature[HEIGHT].int64_list.value.append(jpeg.height)
    feature[WIDTH].int64_list.value.append(jpeg.width)
    if target.label == "value":
        feature[VALUE].float_list.value.append(label)
    else:
        numbers = label if isinstance(label, tuple) else (int(label),)
        for number in (number for number in numbers if number >= 0):
            feature[CLASS].int64_list.value.append(number)
            feature[CLASS_NAME].bytes_list.value.append(target.classes[number].encode())
    return example.SerializeToString(deterministic=True)


def write_shard(
    path: Path, examples: Iterable[tuple[str, Label, Jpeg]], target: Target
) -> tuple[Shard, np.ndarray]:
    """Write name, label and image of each example; the card's entry, and the rows for the index."""
    return write_records(
        path, (to_example(jpeg, label, name, target) for name, label, jpeg in examples)
    )


def check_shard(
    path: Path, target: Target, bad: Mapping[int, str], tell: Callable[[int, int], None]
) -> Iterator[tuple[str, Sequence[int]]]:
    """Fault and classes of each example of a shard: see `library.data.Modality`."""
    with open(path, "rb", buffering=0) as file:
        for number, (length, offset) in enumerate(find_records(file)):
            tell(number, length)
            record = read_record(file, length, offset)
            fault, labels = bad.get(number, "is damaged"), list[int]()
            if record is not None and number not in bad:
                fault, labels = _fault_of(record, target)
            yield fault and f"record {number} {fault}", labels


def _fault_of(record: bytes, target: Target) -> tuple[str, list[int]]:
    """What is wrong with an example, or ""; its classes."""
    try:
        feature = Example.FromString(record).features.feature
        (encoded,) = feature[ENCODED].bytes_list.value
    except (DecodeError, ValueError):
        return "is no example of an image", []
    labels, values = list(feature[CLASS].int64_list.value), feature[VALUE].float_list.value
    within = all(0 <= label < len(target.classes) for label in labels)
    if target.label == "class" and not (within and len(labels) == 1):
        return f"has no label from 0 to {len(target.classes) - 1}", []
    if target.label == "labels" and not (within and len({*labels}) == len(labels)):
        return f"has labels {labels}, not some from 0 to {len(target.classes) - 1}", []
    if target.label == "value" and not (len(values) == 1 and math.isfinite(values[0])):
        return "has no value", []
    fault = ""
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            image.load()
    except (OSError, SyntaxError, ValueError) as error:
        fault = f"has a broken image: {error}"
    return fault, labels if target.classes else []
