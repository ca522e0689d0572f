"""The input: for training, evaluation, prediction and serving. Change the augmentation here.

Images are in [0, 255], float32 or uint8 by the hyperparameter `input_dtype`; the network's first
layer is `images.normalize`.
"""

import functools
from collections.abc import Callable, Iterable

import tensorflow as tf

from library import images
from library.data import (
    BlockCache,
    Convert,
    one_call,
    prefetch_to_device,
    read_in_order,
    read_strings,
    stage,
    train_records,
)
from library.estimator import export as estimator_export
from library.nn import LITE0_FEATURES, lite0_file
from library.train import Run
from project.networks import NETWORKS
from project.settings import Hyperparameters

Features = dict[str, tf.Tensor]


def train_input(run: Run) -> tf.data.Dataset:
    """Random crops of all training images, in a new order each epoch, without end.

    The order and every crop follow from (random_seed, number of the sample in the run), so that
    training that stopped after `run.start` examples sees what it would have seen.

    Returns:
        Batches of ({"image": [batch, size, size, 3]}, labels [batch, ...]); with record_features,
        of {"features": [batch, LITE0_FEATURES]} instead.
    """
    settings, params, target = run.settings, run.hyperparameters, run.model.target
    size = params.input_size

    def seeds_of(number: tf.Tensor) -> list[tf.Tensor]:
        """Of crop and flip: from the number of the sample in the run."""
        seed = tf.stack([tf.constant(run.seed, tf.int64), number])
        return tf.unstack(tf.random.experimental.stateless_split(seed, 2))

    def decode(number: tf.Tensor, _: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = images.parse_example(record, target)
        window_of = functools.partial(
            images.random_window, min_area=params.min_crop_area, seed=seeds_of(number)[0]
        )
        window = images.decode_window(example["encoded"], window_of, image_size=size)
        return number, window, example["label"]

    def features_of(_: tf.Tensor, __: tf.Tensor, record: tf.Tensor) -> tuple[Features, tf.Tensor]:
        example = images.parse_example(record, target)
        features = images.features_of(example["encoded"], LITE0_FEATURES)
        return {"features": features}, example["label"]

    def augment(
        number: tf.Tensor, image: tf.Tensor, label: tf.Tensor
    ) -> tuple[Features, tf.Tensor]:
        image = images.resize(image, image_size=size, antialias=params.antialias)
        if params.random_flip:
            image = tf.image.stateless_random_flip_left_right(image, seeds_of(number)[1])
        return {"image": images.to_dtype(image, size, params.input_dtype)}, label

    to_cache: Convert | None = images.decoded_examples if settings.cache_decoded else None
    steps: tuple[Callable, ...] = (decode, augment)
    if params.network == "efficientnet_lite0":
        lite0_file()  # asked for before anything is written; a trained model is whole without it
    if params.record_features:  # the network sees each image once, and is left out of each step
        settings = run.replace(cache="memory" if settings.cache == "memory" else "file").settings
        to_cache, steps = frozen_features(run), (features_of,)
    return (
        # Ids are shuffled, never images: a shuffle of all, at the cost of no memory.
        train_records(
            settings,
            run.start,
            num_workers=run.cluster.num_workers,
            worker=run.cluster.worker,
            to_cache=to_cache,
            classes_of=images.classes_of,
        )
        .apply(stage("read"))
        # One example a call: several are decoded at the same time, and none waits for a batch.
        .apply(one_call(*steps, num_parallel_calls=settings.num_parallel_calls))
        # Without the last partial batch of the run, which would learn at another rate.
        .batch(run.batch_size, drop_remainder=True)
        # The next batches are made while the network works on this one.
        .prefetch(settings.prefetch_size)
        .apply(stage("batch"))
        # Last, or the copy to the device is not ahead of the step.
        .apply(prefetch_to_device(settings.prefetch_to_device))
    )


def frozen_features(run: Run) -> Convert:
    """What a cache keeps of each image for a frozen network: the features of its central crop.

    They are computed again after a change of the data, the weights, or what `version` lists.
    """
    params = run.hyperparameters
    network = functools.partial(
        NETWORKS[params.network], training=False, dtype="float32", params=params, seed=run.seed
    )
    shown = (params.image_size, params.central_share, params.antialias, params.input_dtype)
    version = f"{lite0_file().stem} {' '.join(map(str, shown))}"
    return images.FrozenFeatures(
        lambda record: evaluation_example(run, record)[0]["image"], network, version
    )


def overfit_input(run: Run) -> tf.data.Dataset:
    """Batches of `overfit` training examples as in evaluation, the same ones again and again."""
    settings = run.replace(cache="none", cache_decoded=False, sampling="natural").settings
    return (
        train_records(settings)
        .take(settings.overfit)
        .map(lambda number, id_, record: evaluation_example(run, record))
        .batch(settings.train_batch_size)
        .cache()
        .repeat()
    )


def evaluation_example(run: Run, record: tf.Tensor) -> tuple[Features, tf.Tensor]:
    """A record -> features and label, nothing in them at random."""
    example = images.parse_example(record, run.model.target)
    image = central_crop(example["encoded"], run.hyperparameters)
    return {"image": image, "key": example["key"]}, example["label"]


def central_crop(encoded: tf.Tensor, params: Hyperparameters) -> tf.Tensor:
    """What the network sees of an image in evaluation, prediction and serving."""
    return images.central_crop(
        encoded,
        image_size=params.input_size,
        share=params.central_share,
        antialias=params.antialias,
        dtype=params.input_dtype,
    )


def evaluation_input(run: Run, path: str) -> tf.data.Dataset:
    """Central crops of all images of a dataset, once and in order.

    Returns:
        Batches of ({"image": [batch, size, size, 3], "key": string [batch], the names of the
        files}, labels [batch, ...]), the last one smaller where the number of images asks for it.
    """
    settings = run.settings
    return (
        read_in_order(path, blocks=BlockCache.of(settings))
        .map(
            lambda number, record: evaluation_example(run, record),
            num_parallel_calls=settings.num_parallel_calls,
        )
        .batch(settings.eval_batch_size)
        .prefetch(settings.prefetch_size)
    )


def prediction_input(run: Run, pairs: Iterable[tuple[bytes, bytes]]) -> tf.data.Dataset:
    """Central crops of encoded images, in order, but for those that cannot be decoded.

    Args:
        pairs: key and encoded image, one by one; the keys come out beside the predictions.

    Returns:
        Batches of {"key": string [batch], "image": [batch, size, size, 3]}.
    """
    settings, params = run.settings, run.hyperparameters
    return (
        read_strings(pairs)
        .map(
            lambda key, encoded: {"key": key, "image": central_crop(encoded, params)},
            num_parallel_calls=settings.num_parallel_calls,
        )
        .ignore_errors()
        .batch(settings.eval_batch_size)
        .prefetch(settings.prefetch_size)
    )


def serving_input(run: Run) -> estimator_export.ServingInputReceiver:
    """What the exported model takes, by the name of the signature.

    Returns:
        `serving_default`: `image_bytes`, string [batch], encoded images; `single`: `image_bytes`,
        a string, one of them; `tensors`: `image`, [batch, size, size, 3] in [0, 255].
    """
    params = run.hyperparameters
    one = tf.compat.v1.placeholder(tf.string, [], name="one_image_bytes")
    default = tf.compat.v1.placeholder_with_default
    encoded = default(one[tf.newaxis], [None], name="image_bytes")
    cropped = tf.map_fn(
        lambda each: central_crop(each, params),
        encoded,
        fn_output_signature=tf.as_dtype(params.input_dtype),
    )
    features = {"image": default(cropped, cropped.shape, name="image")}
    others = {"single": {"image_bytes": one}, "tensors": features}
    return estimator_export.ServingInputReceiver(features, {"image_bytes": encoded}, others)


def device_input(run: Run) -> estimator_export.ServingInputReceiver:
    """What a LiteRT model takes: `image`, [1, size, size, 3] in [0, 255]."""
    params = run.hyperparameters
    shape = [1, params.input_size, params.input_size, 3]
    image = tf.compat.v1.placeholder(params.input_dtype, shape, name="image")
    return estimator_export.ServingInputReceiver({"image": image}, {"image": image})


def canonicalize(content: bytes, params: Hyperparameters) -> bytes:
    """The content of a file as `prediction_input` and the exported model take it.

    A large image is scaled down, as a conversion would do, so that many may wait for the model.
    Not all of a JPEG is looked at, which would take as long as to decode it once more.

    Raises:
        BadFileError: it cannot be used.
    """
    return images.canonical_bytes(content, scaled_for=params.input_size)


def blank(params: Hyperparameters) -> bytes:
    """A file that stands for one that is missing, where a request has to have one."""
    return images.blank_image()
