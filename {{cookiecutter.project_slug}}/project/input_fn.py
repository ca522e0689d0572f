"""The input: for training, evaluation, prediction and serving.

Pictures are in [0, 255], float32 or uint8 by the hyperparameter `input_dtype`; the network's first
layer is `images.normalize`.
"""

import dataclasses
import functools
from collections.abc import Iterable

import tensorflow as tf

from library import images
from library.data import (
    Card,
    Target,
    num_train_examples,  # noqa: F401
    one_call,
    prefetch_to_device,
    read_in_order,
    read_strings,
    stage,
)
from library.data import train_records as records_of
from library.estimator import export as estimator_export
from project.settings import Hyperparameters, Settings


def blank(hyperparameters: Hyperparameters) -> bytes:
    """Stands for a file that cannot be used, where a prediction has to be made of something."""
    return images.blank_image()


def standard(content: bytes, hyperparameters: Hyperparameters) -> bytes:
    """The content of a file as `prediction_input` and the exported model take it.

    Not all of a JPEG is looked at, which would take as long as to decode it once more.

    Raises:
        BadFileError: it cannot be used.
    """
    return images.canonical_bytes(content, checked=False)


def train_input(
    settings: Settings,
    hyperparameters: Hyperparameters,
    start: int,
    *,
    num_workers: int = 1,
    worker: int = 0,
    batch_parts: int = 1,
) -> tf.data.Dataset:
    """Random crops of all training pictures, in a new order each epoch, without end.

    The order and every crop follow from (random_seed, number of the sample in the run), so that
    training that stopped after `start` examples sees what it would have seen.

    Args:
        settings: the data, the batch size, and how the data is read.
        hyperparameters: the size of the pictures, and their augmentation.
        start: number of examples that the run has behind it.
        num_workers: the processes that train together: each reads its share of the samples.
        worker: the number of this process among them.
        batch_parts: into which a batch is cut for devices or workers: one of them is made.

    Returns:
        Batches of ({"image": [batch, size, size, 3]}, int64 [batch]).
    """
    image_size = hyperparameters.input_size
    target = target_of(settings.train_data)

    def seeds_of(number: tf.Tensor) -> list[tf.Tensor]:
        """Of crop and flip: from the number of the sample in the run."""
        seed = tf.stack([tf.constant(settings.random_seed, tf.int64), number])
        return tf.unstack(tf.random.experimental.stateless_split(seed, 2))

    def decode(number: tf.Tensor, _: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = images.parse_example(record, target)
        window_of = functools.partial(
            images.random_window,
            min_area=hyperparameters.min_crop_area,
            seed=seeds_of(number)[0],
        )
        image = images.decode_window(example["encoded"], window_of, image_size=image_size)
        return number, image, example["label"]

    def augment(
        number: tf.Tensor, image: tf.Tensor, label: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        image = images.resize(image, image_size=image_size, antialias=hyperparameters.antialias)
        if hyperparameters.random_flip:
            image = tf.image.stateless_random_flip_left_right(image, seeds_of(number)[1])
        return {"image": images.to_dtype(image, image_size, hyperparameters.input_dtype)}, label

    options = tf.data.Options()
    options.deterministic = settings.deterministic
    return (
        train_records(settings, start, num_workers, worker)
        .with_options(options)
        .apply(stage("read"))
        # One example a call: several are decoded at the same time, and none waits for a batch.
        .apply(one_call(decode, augment, num_parallel_calls=settings.num_parallel_calls))
        .batch(settings.train_batch_size // batch_parts, drop_remainder=True)
        # The next batches are made while the network works on this one.
        .prefetch(settings.prefetch_size)
        .apply(stage("batch"))
        .apply(prefetch_to_device(settings.prefetch_to_device))
    )


def train_records(
    settings: Settings, start: int, num_workers: int = 1, worker: int = 0
) -> tf.data.Dataset:
    """(number of the sample, id, record) of the training data, shuffled, without end."""
    to_cache = images.decoded_examples if settings.cache_decoded else None
    return records_of(settings, start, num_workers=num_workers, worker=worker, to_cache=to_cache)


def target_of(path: str) -> Target:
    """Which labels a dataset has."""
    return Card.load(f"{path}.json").target


def overfit_input(settings: Settings, hyperparameters: Hyperparameters) -> tf.data.Dataset:
    """Central crops of `overfit` examples, the same ones in the same batches again and again.

    Returns:
        Batches of ({"image": [batch, size, size, 3]}, int64 [batch]) without end.
    """
    uncached = dataclasses.replace(settings, cache="none", cache_decoded=False)
    target = target_of(settings.train_data)
    batches = (
        train_records(uncached, 0)
        .take(settings.overfit)
        .map(lambda _, __, record: evaluation_example(record, target, hyperparameters))
        .batch(settings.train_batch_size)
    )
    return batches.cache().repeat()


def keys_of_batch(settings: Settings, start: int, batch: int) -> list[str]:
    """The file names of the images of a batch, counted from 0, of a run that began at `start`."""
    size = settings.train_batch_size
    return images.train_keys(settings, start, (batch + 1) * size)[-size:]


def central_crop(encoded: tf.Tensor, hyperparameters: Hyperparameters) -> tf.Tensor:
    """What the network sees of a picture in evaluation, prediction and serving."""
    return images.central_crop(
        encoded,
        image_size=hyperparameters.input_size,
        antialias=hyperparameters.antialias,
        dtype=hyperparameters.input_dtype,
    )


def evaluation_example(
    record: tf.Tensor, target: Target, hyperparameters: Hyperparameters
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """A record -> features and label, nothing in them at random."""
    example = images.parse_example(record, target)
    return {"image": central_crop(example["encoded"], hyperparameters)}, example["label"]


def evaluation_input(
    path: str, settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """Central crops of all pictures of a data set, once and in order.

    Returns:
        Batches of ({"image": [batch, size, size, 3], "key": string [batch], the names of the
        files}, int64 [batch]), the last one smaller where the number of pictures asks for it.
    """

    def named_example(
        number: tf.Tensor, record: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        features, label = evaluation_example(record, target, hyperparameters)
        return {**features, "key": images.parse_example(record, target)["key"]}, label

    target = target_of(path)

    return (
        read_in_order(path)
        .map(named_example, num_parallel_calls=settings.num_parallel_calls)
        .batch(settings.eval_batch_size)
        .prefetch(settings.prefetch_size)
    )


def prediction_input(
    pictures: Iterable[tuple[bytes, bytes]], settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """Central crops of encoded pictures, in order, but for those that cannot be decoded.

    Args:
        pictures: key and encoded picture, one by one; the keys come out beside the predictions.
        settings, hyperparameters: as for evaluation.

    Returns:
        Batches of {"key": string [batch], "image": [batch, size, size, 3]}.
    """
    return (
        read_strings(pictures)
        .map(
            lambda key, encoded: {"key": key, "image": central_crop(encoded, hyperparameters)},
            num_parallel_calls=settings.num_parallel_calls,
        )
        .ignore_errors()
        .batch(settings.eval_batch_size)
        .prefetch(settings.prefetch_size)
    )


def serving_input(hyperparameters: Hyperparameters) -> estimator_export.ServingInputReceiver:
    """What the exported model takes, by the name of the signature.

    Returns:
        `serving_default`: `image_bytes`, string [batch], encoded pictures; `single`: `image_bytes`,
        a string, one of them; `tensors`: `image`, [batch, size, size, 3] in [0, 255].
    """
    one = tf.compat.v1.placeholder(tf.string, [], name="one_image_bytes")
    default = tf.compat.v1.placeholder_with_default
    encoded = default(one[tf.newaxis], [None], name="image_bytes")
    cropped = tf.map_fn(
        lambda each: central_crop(each, hyperparameters),
        encoded,
        fn_output_signature=tf.as_dtype(hyperparameters.input_dtype),
    )
    features = {"image": default(cropped, cropped.shape, name="image")}
    others = {"single": {"image_bytes": one}, "tensors": features}
    return estimator_export.ServingInputReceiver(features, {"image_bytes": encoded}, others)


def device_input(hyperparameters: Hyperparameters) -> estimator_export.ServingInputReceiver:
    """What a model for TFLite takes: `image`, [1, size, size, 3] in [0, 255]."""
    size = hyperparameters.image_size
    image = tf.compat.v1.placeholder(hyperparameters.input_dtype, [1, size, size, 3], name="image")
    return estimator_export.ServingInputReceiver({"image": image}, {"image": image})


def encoded_examples(path: str, count: int, hyperparameters: Hyperparameters) -> list[bytes]:
    """At most so many images, spread over a dataset, as `prediction_input` takes them."""
    return images.encoded_examples(path, count)
