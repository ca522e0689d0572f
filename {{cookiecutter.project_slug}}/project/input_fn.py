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
    Pipeline,
    Reader,
    Source,
    cached,
    read_by_id,
    read_in_order,
    read_stream,
    read_strings,
    shuffle_and_repeat,
)
from library.estimator import export as estimator_export
from library.images import blank_picture, standard_bytes
from project.settings import Hyperparameters, Settings


def blank(hyperparameters: Hyperparameters) -> bytes:
    """Stands for a file that cannot be used, where a prediction has to be made of something."""
    return blank_picture()


def standard(content: bytes, hyperparameters: Hyperparameters) -> bytes:
    """The content of a file as `prediction_input` and the exported model take it.

    Not all of a JPEG is looked at, which would take as long as to decode it once more.

    Raises:
        BadFileError: it cannot be used.
    """
    return standard_bytes(content, checked=False)


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
    return train_pipeline(
        settings,
        hyperparameters,
        start,
        num_workers=num_workers,
        worker=worker,
        batch_parts=batch_parts,
    ).dataset()


def train_pipeline(
    settings: Settings,
    hyperparameters: Hyperparameters,
    start: int,
    *,
    num_workers: int = 1,
    worker: int = 0,
    batch_parts: int = 1,
) -> Pipeline:
    """The stages of `train_input`."""
    image_size = hyperparameters.input_size

    def seeds_of(number: tf.Tensor) -> list[tf.Tensor]:
        """Of crop and flip: from the number of the sample in the run."""
        seed = tf.stack([tf.constant(settings.random_seed, tf.int64), number])
        return tf.unstack(tf.random.experimental.stateless_split(seed, 2))

    def decode(number: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        _, record = example
        encoded, label, _ = images.parse_example(record)
        window_of = functools.partial(
            images.random_window,
            min_area=hyperparameters.min_crop_area,
            seed=seeds_of(number)[0],
        )
        return number, images.decode_window(encoded, window_of, image_size=image_size), label

    def augment(
        number: tf.Tensor, image: tf.Tensor, label: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        image = images.resize(image, image_size=image_size, antialias=hyperparameters.antialias)
        if hyperparameters.random_flip:
            image = tf.image.stateless_random_flip_left_right(image, seeds_of(number)[1])
        return {"image": images.to_dtype(image, image_size, hyperparameters.input_dtype)}, label

    numbers = tf.data.Dataset.range(start + worker, tf.int64.max, num_workers)
    return Pipeline(
        records=tf.data.Dataset.zip((numbers, train_records(settings, start, num_workers, worker))),
        maps={"decode": decode, "augment": augment},
        batch_size=settings.train_batch_size // batch_parts,
        num_parallel_calls=settings.num_parallel_calls,
        prefetch_size=settings.prefetch_size,
        deterministic=settings.deterministic,
        device=settings.prefetch_to_device,
    )


def train_records(
    settings: Settings, start: int, num_workers: int = 1, worker: int = 0
) -> tf.data.Dataset:
    """The training data after so many examples, shuffled: (number, record) without end.

    Another source comes in here: see `library.sources`.
    """
    seed = settings.random_seed
    if settings.shuffle == "stream":
        buffer_mb = settings.shuffle_buffer_mb
        records = read_stream(settings.train_data, seed, start, buffer_mb=buffer_mb)
        return records.shard(num_workers, worker)
    # Ids are shuffled, and never pictures: all of them, at the cost of no memory.
    source = train_source(settings)
    num_examples = min(source.num_examples, settings.limit_train_examples or source.num_examples)
    ids = shuffle_and_repeat(num_examples, seed, start).shard(num_workers, worker)
    return ids.apply(read_by_id(source, settings.num_parallel_calls))


def train_source(settings: Settings) -> Source:
    """The training data by number, from its shards or from a cache."""
    if settings.cache == "none":
        return Reader(settings.train_data)
    convert = images.decoded_examples if settings.cache_decoded else images.encoded_examples
    return cached(settings.train_data, settings.cache, convert, folder=settings.cache_dir)


def num_train_examples(settings: Settings, card: Card) -> int:
    """The examples of an epoch: all, or as many as `limit_train_examples` leaves."""
    return min(card.num_examples, settings.limit_train_examples or card.num_examples)


def overfit_input(settings: Settings, hyperparameters: Hyperparameters) -> tf.data.Dataset:
    """Central crops of `overfit` examples, the same ones in the same batches again and again.

    Returns:
        Batches of ({"image": [batch, size, size, 3]}, int64 [batch]) without end.
    """
    uncached = dataclasses.replace(settings, cache="none")
    batches = (
        train_records(uncached, 0)
        .take(settings.overfit)
        .map(lambda _, record: evaluation_example(record, hyperparameters))
        .batch(settings.train_batch_size)
    )
    return batches.cache().repeat()


def keys_of_batch(settings: Settings, start: int, batch: int) -> list[str]:
    """The file names of the pictures of a batch, counted from 0, of a run that began at `start`."""
    size = settings.train_batch_size
    records = train_records(settings, start).skip(batch * size).take(size)
    keys = records.map(lambda _, record: images.parse_example(record)[2])
    return [key.decode(errors="replace") for key in keys.as_numpy_iterator()]


def central_crop(encoded: tf.Tensor, hyperparameters: Hyperparameters) -> tf.Tensor:
    """What the network sees of a picture in evaluation, prediction and serving."""
    return images.central_crop(
        encoded,
        image_size=hyperparameters.input_size,
        antialias=hyperparameters.antialias,
        dtype=hyperparameters.input_dtype,
    )


def evaluation_example(
    record: tf.Tensor, hyperparameters: Hyperparameters
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """A record -> features and label, nothing in them by lot."""
    encoded, label, _ = images.parse_example(record)
    return {"image": central_crop(encoded, hyperparameters)}, label


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
        features, label = evaluation_example(record, hyperparameters)
        return {**features, "key": images.parse_example(record)[2]}, label

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
    """At most so many pictures, spread over a data set, as `prediction_input` takes them."""
    step = max(1, Card.load(f"{path}.json").num_examples // count)
    records = read_in_order(path).shard(step, 0).take(count)
    return [images.parse_example(record)[0].numpy() for _, record in records]
