"""A shard of pictures: how it is written, compared with others, and verified.

What is here is what a conversion of another kind of file has in another way.
"""

import collections
import contextlib
import dataclasses
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from PIL import Image

from library.config import option
from library.convert import Task, Tell, write_report
from library.data import EDGE, FOOTER, HEADER, Shard, length_in, masked_crc, tfrecord
from library.images.example import Example, to_example
from library.images.files import Jpeg, opened, standard_jpeg

UNIT = "pictures"
SUFFIX = ".tfrecord"
HELP = """
JPEG, PNG, GIF, BMP, TIFF and WebP are told by their content.
"""


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """The flags that are about pictures."""

    max_edge: int = option(
        384, "longer edge that pictures are scaled down to, in pixels", group="shards", minimum=16
    )
    jpeg_quality: int = option(
        95, "of pictures that are encoded", group="shards", minimum=1, maximum=100
    )


def standard(data: bytes, options: ShardOptions) -> Jpeg:
    """What is kept of a file.

    Raises:
        BadFileError: it cannot be used.
    """
    return standard_jpeg(data, max_edge=options.max_edge, quality=options.jpeg_quality)


def write_shard(path: Path, examples: Iterable[tuple[str, int, str, Jpeg]]) -> Shard:
    """Write a file of examples: name of the file, label, name of the class, picture."""
    records = (to_example(jpeg, label, name, file) for file, label, name, jpeg in examples)
    shard, _ = tfrecord.write_shard(path, records)
    return shard


def open_data(path: str | Path) -> tfrecord.Reader:
    """The examples of the data set `path`; an index that does not fit is written anew."""
    return tfrecord.Reader(path)


def thumbnail(data: bytes) -> bytes:
    """What an encoded picture looks like when tiny: gray, EDGE x EDGE bytes.

    Raises:
        BadFileError: it cannot be used.
    """
    with opened(data) as image:
        image.draft("L", (8 * EDGE, 8 * EDGE))
        return image.convert("L").resize((EDGE, EDGE), Image.Resampling.BILINEAR).tobytes()


def write_index(path: Path, shards: Sequence[Path]) -> None:
    """Write where every example of the data set `path` stands."""
    rows = tfrecord.index_of(shards)
    parts = [rows[rows["shard"] == number] for number in range(len(shards))]
    tfrecord.write_index(Path(f"{path}.index"), parts)


def verify_shard(task: Task, bad: Mapping[int, str], tell: Tell) -> None:
    """Write a report of a shard: its faults, and what it holds."""
    (shard, _), *_ = task.files
    faults, number = [], 0
    count: collections.Counter[str] = collections.Counter()
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        file: BinaryIO
        try:
            file = stack.enter_context(open(task.root / shard, "rb"))
        except OSError as error:
            faults.append(f"{shard}: {error.strerror}")
            file = io.BytesIO()
        while header := file.read(HEADER.size):
            digest.update(header)
            length = length_in(header)
            if length is None:
                faults.append(f"{shard}: record {number} has a damaged header")
                break
            tell(number, length)
            record, footer = file.read(length), file.read(FOOTER.size)
            digest.update(record + footer)
            if len(footer) < FOOTER.size:
                faults.append(f"{shard}: record {number} is cut off")
                break
            if FOOTER.unpack(footer)[0] != masked_crc(record):
                fault = "is damaged"
            else:
                fault = bad.get(number) or _fault_of(record, task.classes, count)
            if fault:
                faults.append(f"{shard}: record {number} {fault}")
            number += 1
        while rest := file.read(2**20):
            digest.update(rest)
    write_report(
        task,
        faults=faults,
        examples=number,
        examples_per_class=count,
        sha256=digest.hexdigest(),
    )


def _fault_of(record: bytes, classes: Sequence[str], count: collections.Counter[str]) -> str:
    """What is wrong with an example, or ""; its class is counted."""
    try:
        feature = Example.FromString(record).features.feature
        (encoded,) = feature["image/encoded"].bytes_list.value
    except (DecodeError, ValueError):
        return "is no example of a picture"
    if classes:
        labels = feature["image/class/label"].int64_list.value
        if len(labels) != 1 or not 0 <= labels[0] < len(classes):
            return f"has no label from 0 to {len(classes) - 1}"
        count[classes[labels[0]]] += 1
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            image.load()
    except (OSError, SyntaxError, ValueError) as error:
        return f"has a broken picture: {error}"
    return ""
