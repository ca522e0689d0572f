"""The input: for training, evaluation, prediction and serving."""

from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from library import images
from library.estimator import export as estimator_export
from library.shuffling import shuffle_and_repeat
from library.tfrecord import Reader, read_by_id, read_stream
from project.settings import Hyperparameters, Settings


def train_input(
    settings: Settings,
    hyperparameters: Hyperparameters,
    start: int,
    *,
    num_workers: int = 1,
    worker: int = 0,
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

    Returns:
        Batches of ({"image": float32 [batch, size, size, 3]}, int64 [batch]).
    """

    def crop(number: tf.Tensor, record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        encoded, label, _ = images.parse_example(record)
        image = images.random_crop(
            encoded,
            image_size=hyperparameters.image_size,
            min_area=hyperparameters.min_crop_area,
            flip=hyperparameters.random_flip,
            seed=tf.stack([tf.constant(settings.random_seed, tf.int64), number]),
        )
        return {"image": image}, label

    # The number of the sample in the run is the seed of its crop.
    numbers = tf.data.Dataset.range(start + worker, tf.int64.max, num_workers)
    records = train_records(settings, start, num_workers, worker)
    options = tf.data.Options()
    options.deterministic = settings.deterministic
    dataset = (
        tf.data.Dataset.zip((numbers, records))
        # One picture a call: several are decoded at the same time, and none waits for a batch.
        .map(crop, num_parallel_calls=settings.num_parallel_calls)
        .batch(settings.train_batch_size, drop_remainder=True)
        .with_options(options)
        # The next batches are made while the network works on this one.
        .prefetch(settings.prefetch_size)
    )
    if settings.prefetch_to_device:  # last, or the copy to the device is not ahead of the step
        to_device = tf.data.experimental.prefetch_to_device(settings.prefetch_to_device)
        dataset = dataset.apply(to_device)
    return dataset


def train_records(
    settings: Settings, start: int, num_workers: int = 1, worker: int = 0
) -> tf.data.Dataset:
    """The records of the training data after so many, shuffled: string scalars without end."""
    seed = settings.random_seed
    if settings.shuffle == "stream":
        buffer_mb = settings.shuffle_buffer_mb
        records = read_stream(settings.train_data, seed, start, buffer_mb=buffer_mb)
        return records.shard(num_workers, worker)
    # Ids are shuffled, and never pictures: all of them, at the cost of no memory.
    reader = Reader(settings.train_data)
    ids = shuffle_and_repeat(reader.card.num_examples, seed, start).shard(num_workers, worker)
    return ids.apply(read_by_id(reader, settings.num_parallel_calls))


def keys_of_batch(settings: Settings, start: int, batch: int) -> list[str]:
    """The file names of the pictures of a batch, counted from 0, of a run that began at `start`."""
    size = settings.train_batch_size
    records = train_records(settings, start).skip(batch * size).take(size)
    keys = records.map(lambda record: images.parse_example(record)[2])
    return [key.decode(errors="replace") for key in keys.as_numpy_iterator()]


def evaluation_input(
    path: Path, settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """Central crops of all pictures of a data set, once and in order.

    Returns:
        Batches of ({"image": float32 [batch, size, size, 3]}, int64 [batch]), the last one
        smaller where the number of pictures asks for it.
    """
    reader = Reader(path)

    def crop(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        encoded, label, _ = images.parse_example(record)
        image = images.central_crop(encoded, image_size=hyperparameters.image_size)
        return {"image": image}, label

    return (
        tf.data.Dataset.range(reader.card.num_examples)
        .apply(read_by_id(reader, settings.num_parallel_calls))
        .map(crop, num_parallel_calls=settings.num_parallel_calls)
        .batch(settings.eval_batch_size)
        .prefetch(settings.prefetch_size)
    )


def prediction_input(
    pictures: Iterable[bytes], settings: Settings, hyperparameters: Hyperparameters
) -> tf.data.Dataset:
    """Central crops of encoded pictures, in order.

    Returns:
        Batches of {"image": float32 [batch, size, size, 3]}.
    """
    return (
        tf.data.Dataset.from_generator(
            lambda: pictures, output_signature=tf.TensorSpec([], tf.string)
        )
        .map(
            lambda encoded: {
                "image": images.central_crop(encoded, image_size=hyperparameters.image_size)
            },
            num_parallel_calls=settings.num_parallel_calls,
        )
        .batch(settings.eval_batch_size)
        .prefetch(settings.prefetch_size)
    )


def serving_input(hyperparameters: Hyperparameters) -> estimator_export.ServingInputReceiver:
    """What the exported model takes: `image_bytes`, string [batch], encoded pictures."""
    encoded = tf.compat.v1.placeholder(tf.string, [None], name="image_bytes")
    image = tf.map_fn(
        lambda each: images.central_crop(each, image_size=hyperparameters.image_size),
        encoded,
        fn_output_signature=tf.float32,
    )
    return estimator_export.ServingInputReceiver({"image": image}, {"image_bytes": encoded})
