"""Pictures: encoded bytes -> examples of a data set -> tensors for a network."""

import tensorflow as tf

from library.pictures import Jpeg

ASPECT_RATIOS = (3 / 4, 4 / 3)
"""Width to height of a random crop, as in Szegedy et al. 2014, https://arxiv.org/abs/1409.4842."""


# ---- examples ----------------------------------------------------------------------------------


def to_example(jpeg: Jpeg, label: int, class_name: str, filename: str) -> bytes:
    """A serialized tf.train.Example, with the keys of TensorFlow's own models."""
    bytes_values = {
        "image/encoded": jpeg.data,
        "image/format": b"jpeg",
        "image/class/text": class_name.encode(),
        "image/filename": filename.encode(errors="surrogateescape"),
    }
    int64_values = {
        "image/height": jpeg.height,
        "image/width": jpeg.width,
        "image/class/label": label,
    }
    feature = {
        key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        for key, value in bytes_values.items()
    } | {
        key: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for key, value in int64_values.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


def parse_example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The inverse: a string scalar -> encoded picture, string; label, int64; file name, string."""
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
            "image/filename": tf.io.FixedLenFeature([], tf.string, default_value=""),
        },
    )
    return features["image/encoded"], features["image/class/label"], features["image/filename"]


# ---- tensors -----------------------------------------------------------------------------------


def _resize(image: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Resize to float32; averaging areas when it shrinks, which leaves no aliases."""
    size = tf.stack([height, width])
    return tf.cond(
        tf.reduce_all(tf.shape(image)[:2] >= size),
        lambda: tf.image.resize(image, size, method="area"),
        lambda: tf.image.resize(image, size, method="bilinear"),
    )


def _to_network(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """[0, 255] -> [-1, 1], with its shape known."""
    return tf.ensure_shape(image, [image_size, image_size, 3]) / 127.5 - 1.0


def random_crop(
    encoded: tf.Tensor, *, image_size: int, min_area: float, flip: bool, seed: tf.Tensor
) -> tf.Tensor:
    """A random part of a JPEG, at times mirrored: the input of a network in training.

    Only the rows that the crop needs are decoded.

    Args:
        encoded: string scalar, a JPEG.
        image_size: edge of the result in pixels.
        min_area: the smallest part of the picture's area that a crop takes, in (0, 1].
        flip: whether left and right are exchanged in every other picture.
        seed: int64 [2]; the same seed gives the same crop.

    Returns:
        float32 [image_size, image_size, 3] in [-1, 1].
    """
    crop_seed, flip_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(encoded),
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=crop_seed,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT_RATIOS,
        area_range=(min_area, 1.0),
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
    image = _resize(image, image_size, image_size)
    if flip:
        image = tf.image.stateless_random_flip_left_right(image, flip_seed)
    return _to_network(image, image_size)


def central_crop(encoded: tf.Tensor, *, image_size: int) -> tf.Tensor:
    """The central square of a picture: the input of a network everywhere but in training.

    Args:
        encoded: string scalar, a JPEG, PNG, BMP or GIF (its first frame).
        image_size: edge of the result in pixels.

    Returns:
        float32 [image_size, image_size, 3] in [-1, 1].
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image = tf.ensure_shape(image, [None, None, 3])
    height, width = tf.unstack(tf.shape(image)[:2])
    edge = tf.minimum(height, width)
    square = tf.image.crop_to_bounding_box(
        image, (height - edge) // 2, (width - edge) // 2, edge, edge
    )
    return _to_network(_resize(square, image_size, image_size), image_size)
