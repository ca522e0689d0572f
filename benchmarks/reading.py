"""Reading by id in a global shuffle, against streaming: python benchmarks/reading.py

    python benchmarks/reading.py [ROUNDS]

The same JPEGs, about 500 x 375 pixels and 90 KB, through the same crops to 224 x 224 and the same
batches; only the way that the records come differs.
"""

import functools
import sys
import tempfile
from pathlib import Path

from common import drain, in_turns, make_dataset, make_jpeg, show_rates, timed

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library import images
from library.data import Card, Reader, read_by_id, read_stream, shuffle_and_repeat

IMAGES, SIZE, BATCH, ROUNDS = 1600, 224, 64, 7


def pipeline(records: tf.data.Dataset, card: Card) -> tf.data.Dataset:
    def crop(number: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(0, tf.int64), number])
        window_of = functools.partial(images.random_window, min_area=0.08, seed=seed)
        encoded = images.parse_example(record, card.target)["encoded"]
        image = images.decode_window(encoded, window_of, image_size=SIZE)
        image = images.resize(image, image_size=SIZE, antialias=True)
        return tf.image.stateless_random_flip_left_right(image, seed)

    cropped = records.enumerate().map(crop, num_parallel_calls=tf.data.AUTOTUNE)
    return cropped.batch(BATCH, drop_remainder=True).prefetch(2)


def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images"
        card = make_dataset(path, [make_jpeg(seed) for seed in range(IMAGES)], per_shard=200)
        print(f"{IMAGES} JPEGs, {sum(s.bytes for s in card.shards) / IMAGES / 1e3:.0f} KB each")
        files = tf.data.Dataset.from_tensor_slices([str(file) for file in card.files(path)])
        streams = files.interleave(
            tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
        )
        reader = Reader(path)
        ids = shuffle_and_repeat(IMAGES, seed=1, epochs=1)
        by_id = ids.apply(read_by_id(reader, tf.data.AUTOTUNE)).map(lambda _, record: record)
        buffer_mb = sum(shard.bytes for shard in card.shards) / 2**20 * 1000 / IMAGES
        exact = read_stream(path, 1, buffer_mb=buffer_mb).take(IMAGES)
        ways = {
            "streams, no shuffle": streams,
            "streams, buffer of 1,000": streams.shuffle(1000),
            "shuffle: stream, of the same buffer": exact.map(lambda _, record: record),
            "by id, global shuffle": by_id,
        }
        cropped = {name: pipeline(way, card) for name, way in ways.items()}
        for title, shown in (("decoded:", cropped), ("read only:", ways)):
            runs = {name: timed(drain, way) for name, way in shown.items()}
            show_rates(in_turns(rounds, runs, warm_up=1), IMAGES, "images", title)


if __name__ == "__main__":
    main()
