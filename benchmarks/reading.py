"""Reading by id in a global shuffle, against streaming: python benchmarks/reading.py

The same JPEGs, about 500 x 375 pixels and 90 KB, through the same crops to 224 x 224 and the same
batches; only the way that the records come differs.
"""

import functools
import tempfile
from pathlib import Path

from common import in_turns, make_data_set, photo

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library import images
from library.data import Reader, Target, read_by_id, shuffle_and_repeat

PICTURES, SIZE, BATCH, ROUNDS = 1600, 224, 64, 7


def pipeline(records: tf.data.Dataset) -> tf.data.Dataset:
    def crop(number: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(0, tf.int64), number])
        window_of = functools.partial(images.random_window, min_area=0.08, seed=seed)
        encoded = images.parse_example(record, Target("class", ("a", "b")))["encoded"]
        image = images.decode_window(encoded, window_of, image_size=SIZE)
        image = images.resize(image, image_size=SIZE, antialias=True)
        return tf.image.stateless_random_flip_left_right(image, seed)

    cropped = records.enumerate().map(crop, num_parallel_calls=tf.data.AUTOTUNE)
    return cropped.batch(BATCH, drop_remainder=True).prefetch(2)


def drain(dataset: tf.data.Dataset) -> None:
    for _ in dataset:
        pass


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photos"
        photos = [photo(seed) for seed in range(PICTURES)]
        card = make_data_set(path, photos, per_shard=200)
        print(f"{PICTURES} JPEGs, {sum(s.bytes for s in card.shards) / PICTURES / 1e3:.0f} KB each")
        files = tf.data.Dataset.from_tensor_slices([str(file) for file in card.files(path)])
        streams = files.interleave(
            tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
        )
        reader = Reader(path)
        ids = shuffle_and_repeat(PICTURES, seed=1, epochs=1)
        by_id = ids.apply(read_by_id(reader, tf.data.AUTOTUNE)).map(lambda _, record: record)
        ways = {
            "streams, no shuffle": streams,
            "streams, buffer of 1,000": streams.shuffle(1000),
            "by id, global shuffle": by_id,
        }
        for title, make in (("decoded", pipeline), ("read only", lambda records: records)):
            runs = {name: functools.partial(drain, make(way)) for name, way in ways.items()}
            times = in_turns(ROUNDS, **runs)
            streams_wall, streams_cpu = times["streams, no shuffle"]
            for name, (wall, cpu) in times.items():
                print(
                    f"{title:10} {name:25} {PICTURES / wall:7,.0f} images/s, "
                    f"{streams_wall / wall:.2f} x streams; "
                    f"{1e3 * cpu / PICTURES:.2f} CPU ms/image, {streams_cpu / cpu:.2f} x"
                )


if __name__ == "__main__":
    main()
