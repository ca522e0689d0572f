"""Tensors of images: decoded, cropped, resized and normalized for a network."""

import functools
import struct
from collections.abc import Callable

import tensorflow as tf

ASPECT_RATIOS = (3 / 4, 4 / 3)
"""Width to height of a random crop, as in Szegedy et al. 2014, https://arxiv.org/abs/1409.4842."""
FRACTIONS = (1, 2, 4, 8)
"""A JPEG can be decoded at 1/1, 1/2, 1/4 and 1/8 of its size: its blocks have 8 pixels."""
RAW = struct.Struct("<4s2i52x")
"""What stands before pixels that are cached decoded: a mark, height, width. It has 64 bytes, so
that TensorFlow takes the pixels behind it without a copy."""
RAW_MARK = b"RAW3"
FLOAT_OPS = ""
"""Operations of TFLite for which 8 bits are too few: none."""


@tf.autograph.experimental.do_not_convert  # nothing here branches on tensors in Python
def decode_window(
    encoded: tf.Tensor, window_of: Callable[[tf.Tensor], tf.Tensor], *, image_size: int
) -> tf.Tensor:
    """A part of an image, decoded no larger than needed.

    Of a JPEG, only the rows of the window are decoded, and a window that is 2, 4 or 8 times as
    large as the network's input is decoded at that fraction of its size, which is antialiased and
    faster. The window is first moved to a multiple of the fraction, by less than 8 pixels: the
    result would be off by a part of a pixel otherwise.

    Args:
        encoded: string scalar, a JPEG, PNG, BMP, GIF (its first frame), or one that
            `decoded_examples` made.
        window_of: the shape of an image, int32 [3] -> top, left, height and width of the part,
            int32 [4].
        image_size: edge of what the part is resized to, in pixels.

    Returns:
        uint8 [height, width, 3], at least `image_size` high and wide where the window is.
    """

    def from_jpeg() -> tf.Tensor:
        window = window_of(tf.image.extract_jpeg_shape(encoded))
        times = tf.reduce_min(window[2:]) // image_size
        branch = tf.reduce_sum(tf.cast(times >= tf.constant(FRACTIONS[1:]), tf.int32))

        def decode(fraction: int) -> tf.Tensor:
            return tf.image.decode_and_crop_jpeg(
                encoded, window // fraction, channels=3, ratio=fraction
            )

        return tf.switch_case(branch, [functools.partial(decode, each) for each in FRACTIONS])

    def from_another() -> tf.Tensor:
        is_raw = tf.equal(tf.strings.substr(encoded, 0, len(RAW_MARK)), RAW_MARK)
        image = tf.cond(
            is_raw,
            lambda: _from_raw(encoded),
            lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
        )
        window = window_of(tf.shape(image))
        return tf.slice(image, [*tf.unstack(window[:2]), 0], [*tf.unstack(window[2:]), 3])

    return tf.cond(tf.io.is_jpeg(encoded), from_jpeg, from_another)


def _from_raw(encoded: tf.Tensor) -> tf.Tensor:
    """uint8 [height, width, 3], as it is."""
    content = tf.io.decode_raw(encoded, tf.uint8)
    height, width = tf.unstack(tf.bitcast(tf.reshape(content[4:12], [2, 4]), tf.int32))
    return tf.reshape(content[RAW.size :], [height, width, 3])


def random_window(shape: tf.Tensor, *, min_area: float, seed: tf.Tensor) -> tf.Tensor:
    """A random part of an image, of at least the share `min_area`, in (0, 1], of its area.

    Shape, int32 [3], and seed, int64 [2] -> top, left, height and width in pixels, int32 [4].
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT_RATIOS,
        area_range=(min_area, 1.0),
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def central_square(shape: tf.Tensor, share: float = 1.0) -> tf.Tensor:
    """The square in the middle, its edge the share of the largest one's, and at least a pixel.

    Shape, int32 [3] -> top, left, height and width in pixels, int32 [4].
    """
    height, width = tf.unstack(shape[:2])
    edge = tf.cast(share * tf.cast(tf.minimum(height, width), tf.float32), tf.int32)
    edge = tf.maximum(edge, 1)
    return tf.stack([(height - edge) // 2, (width - edge) // 2, edge, edge])


@tf.autograph.experimental.do_not_convert
def resize(image: tf.Tensor, *, image_size: int, antialias: bool) -> tf.Tensor:
    """Any image as a square: uint8 [height, width, 3] -> float32 in [0, 255].

    With antialias, areas are averaged where it shrinks in both directions, instead of picking
    points: 6 to 12 dB nearer to an exact resize, for a little more work.
    """
    size = [image_size, image_size]
    pixels = tf.cast(image, tf.float32)  # first: resizing reads floats faster than bytes
    if not antialias:
        return tf.image.resize(pixels, size, method="bilinear")
    return tf.cond(
        tf.reduce_all(tf.shape(image)[:2] >= size),
        lambda: tf.image.resize(pixels, size, method="area"),
        lambda: tf.image.resize(pixels, size, method="bilinear"),
    )


def to_dtype(image: tf.Tensor, image_size: int, dtype: str) -> tf.Tensor:
    """A resized image as the network gets it: `float32`, or rounded to `uint8`."""
    image = tf.ensure_shape(image, [image_size, image_size, 3])
    return image if dtype == "float32" else tf.cast(tf.round(image), dtype)


def normalize(images: tf.Tensor) -> tf.Tensor:
    """Images of any dtype in [0, 255] -> float32 in [-1, 1]: the first layer of a network."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0


@tf.autograph.experimental.do_not_convert
def central_crop(
    encoded: tf.Tensor,
    *,
    image_size: int,
    share: float = 1.0,
    antialias: bool = True,
    dtype: str = "float32",
) -> tf.Tensor:
    """A central square of an image: the input of a network everywhere except in training.

    What `decode_window` takes -> [image_size, image_size, 3] in [0, 255], float32 or uint8.
    """
    window_of = functools.partial(central_square, share=share)
    image = decode_window(encoded, window_of, image_size=image_size)
    return to_dtype(resize(image, image_size=image_size, antialias=antialias), image_size, dtype)


def views_of(images: tf.Tensor, test_augmentation: str) -> list[tf.Tensor]:
    """The images and their mirror images, and with flip_and_crop also the center of both."""
    views = [images, tf.reverse(images, [2])]
    if test_augmentation == "flip_and_crop":
        size = images.shape[1]
        margin = size // 16
        for view in views[:2]:
            center = view[:, margin:-margin, margin:-margin]
            views.append(tf.image.resize(center, [size, size]))
    return views
