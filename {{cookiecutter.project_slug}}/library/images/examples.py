"""Records of images in tf.data: parsed, cached decoded, listed."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from library.config import Settings
from library.data import UNLABELED, Joined, Reader, Source, Target, train_records
from library.images.ops import RAW, RAW_MARK
from library.images.records import CLASS, ENCODED, FILENAME, FORMAT, VALUE, Example

FEATURE_DTYPE = np.dtype("<f4")
FEATURES_AT_ONCE = 16
"""Images that a frozen network takes at once."""
CLASS_WITHIN = 64
"""Bytes at the beginning of a record."""


@tf.autograph.experimental.do_not_convert  # which takes 0.3 s
def parse_example(record: tf.Tensor, target: Target) -> dict[str, tf.Tensor]:
    """Take a record apart, a string scalar: the inverse of `records.to_example`.

    Returns:
        `encoded`, the image, string; `key`, the name of its file, string; `label`, int64, -1 for
        none; or of several classes, float32 [classes], each 0 or 1; or a value, float32.
    """
    label_of: dict[str, object] = {
        "class": tf.io.FixedLenFeature([], tf.int64, default_value=UNLABELED),
        "value": tf.io.FixedLenFeature([], tf.float32),
    }
    several = tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    label_key = VALUE if target.label == "value" else CLASS
    keys = {
        ENCODED: tf.io.FixedLenFeature([], tf.string),
        FILENAME: tf.io.FixedLenFeature([], tf.string, default_value=""),
        label_key: label_of.get(target.label, several),
    }
    features = tf.io.parse_single_example(record, keys)
    label = tf.constant(UNLABELED, tf.int64) if target.label == "none" else features[label_key]
    if target.label == "labels":
        one_hot = tf.one_hot(label, len(target.classes), on_value=True, off_value=False)
        label = tf.cast(tf.reduce_any(one_hot, axis=0), tf.float32)
    return {"encoded": features[ENCODED], "label": label, "key": features[FILENAME]}


def decoded_examples(records: tf.data.Dataset) -> Iterator[bytes]:
    """Records with their images decoded, for a cache: `decode_window` takes them as well.

    It gives the same pixels of them, except where it would decode at a fraction of the size, and
    for the colors at the left and right edge of a window, which JPEG smooths into each other.
    """

    def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded = parse_example(record, Target("none"))["encoded"]
        return record, tf.io.decode_image(encoded, channels=3, expand_animations=False)

    decoded = records.map(decode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
    for record, pixels in decoded.as_numpy_iterator():
        raw = RAW.pack(RAW_MARK, *pixels.shape[:2]) + pixels.tobytes()
        yield _replaced(record, raw, b"raw")


@dataclasses.dataclass(frozen=True)
class FrozenFeatures:
    """Records with features in place of their image, for a cache: computed once, in one session."""

    image_of: Callable[[tf.Tensor], tf.Tensor]  # record, string -> [height, width, 3]
    network: Callable[[tf.Tensor], tf.Tensor]  # [batch, height, width, 3] -> float32 [batch, size]
    version: str  # names all that the features depend on

    def __call__(self, records: tf.data.Dataset) -> Iterator[bytes]:
        """The records, one by one; `features_of` takes the features out of them."""
        images = records.map(lambda record: (record, self.image_of(record)), tf.data.AUTOTUNE)
        batches = images.batch(FEATURES_AT_ONCE).prefetch(2)
        with tf.Graph().as_default() as graph:
            spec = batches.element_spec[1]
            image = tf.compat.v1.placeholder(spec.dtype, spec.shape)
            features = self.network(image)
            initializer = tf.compat.v1.global_variables_initializer()
        with contextlib.closing(tf.compat.v1.Session(graph=graph)) as session:
            session.run(initializer)
            for kept, pixels in batches.as_numpy_iterator():
                rows = session.run(features, {image: pixels})
                for record, row in zip(kept, rows, strict=True):
                    yield _replaced(record, row.astype(FEATURE_DTYPE).tobytes(), b"features")


def features_of(encoded: tf.Tensor, size: int) -> tf.Tensor:
    """What FrozenFeatures kept in place of an image: string -> float32 [size]."""
    return tf.ensure_shape(tf.io.decode_raw(encoded, tf.float32, little_endian=True), [size])


def _replaced(record: bytes, content: bytes, kind: bytes) -> bytes:
    """A record with another content in place of the image."""
    example = Example.FromString(record)
    example.features.feature[ENCODED].bytes_list.value[:] = [content]
    example.features.feature[FORMAT].bytes_list.value[:] = [kind]
    return example.SerializeToString(deterministic=True)


def train_keys(settings: Settings, start: int, count: int) -> list[str]:
    """The names of the files of `count` training examples, from the sample `start` of a run."""
    # A cache may hold something else than contents, as features.
    uncached = dataclasses.replace(settings, cache="none", cache_decoded=False)
    records = train_records(uncached, start, classes_of=classes_of).take(count)
    keys = records.map(lambda number, key, record: parse_example(record, Target("none"))["key"])
    return [key.decode(errors="replace") for key in keys.as_numpy_iterator()]


def classes_of(source: Source) -> np.ndarray:
    """The class of each image, int64 [n], of the first bytes of its record: keys are sorted."""
    if isinstance(source, Joined):
        return np.concatenate([*map(classes_of, source.sources)])
    records: Iterable[bytes]
    if isinstance(source, Reader):
        records = source.beginnings(CLASS_WITHIN)
    else:  # in memory
        records = source.read(np.arange(source.num_examples))
    feature = Example().features.feature[CLASS]

    def class_of(record: bytes) -> int:
        _, _, value = record[:CLASS_WITHIN].partition(CLASS.encode() + b"\x12")  # field 2, a byte
        feature.ParseFromString(value[1 : 1 + value[0]])  # behind its length, a byte
        return feature.int64_list.value[0]

    return np.fromiter(map(class_of, records), np.int64)


def encoded_examples(path: str | Path, ids: Sequence[int]) -> list[bytes]:
    """The encoded images of these ids, rising, in the dataset `path`."""
    examples = map(Example.FromString, Reader(path).read(np.array(ids, np.int64)))
    return [each.features.feature[ENCODED].bytes_list.value[0] for each in examples]


def playable(path: str | Path, names: Collection[str]) -> dict[str, bytes]:
    """Nothing of images."""
    return {}
