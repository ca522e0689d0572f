"""How well examples are mixed, and what that takes: python benchmarks/order.py

A dataset of 100 classes, sorted by class as a conversion without a shuffle would leave it: the
number of different classes in a batch of 64, for our order, for the buffer that tutorials use, and
for a perfect shuffle. Then 10 million ids.
"""

import resource
import time

import numpy as np
from common import PROJECT  # noqa: F401  finds library

import tensorflow as tf  # isort: skip  after library, which chooses its Keras
from library.data import shuffle_and_repeat

CLASSES, PER_CLASS, BATCH, BUFFER = 100, 1000, 64, 10_000
MANY = 10_000_000


def resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    n = CLASSES * PER_CLASS
    orders = {
        "ours": shuffle_and_repeat(n, seed=1, epochs=1),
        f"a buffer of {BUFFER:,}": tf.data.Dataset.range(n).shuffle(BUFFER, seed=1),
        "perfect (NumPy)": tf.data.Dataset.from_tensor_slices(
            np.random.default_rng(1).permutation(n)
        ),
    }
    for name, order in orders.items():
        batches = order.batch(BATCH, drop_remainder=True).as_numpy_iterator()
        different = [len(set((batch // PER_CLASS).tolist())) for batch in batches]
        print(
            f"{name:18} {np.mean(different):5.1f} of {CLASSES} classes in a batch of {BATCH}, "
            f"{min(different)} to {max(different)}"
        )

    before, begin = resident_mb(), time.perf_counter()
    next(iter(shuffle_and_repeat(MANY, seed=2, start=MANY // 2)))
    print(f"{MANY:,} ids, first one from the middle: {time.perf_counter() - begin:.3f} s")
    begin = time.perf_counter()
    for _ in shuffle_and_repeat(MANY, seed=2, epochs=1).batch(65_536):
        pass
    print(
        f"all of them through tf.data: {time.perf_counter() - begin:.2f} s, "
        f"{resident_mb() - before:.0f} MB more resident"
    )
    ids, key = tf.range(MANY, dtype=tf.int64), tf.constant([1, 2, 3], tf.uint32)
    begin = time.perf_counter()
    tf.raw_ops.RandomIndexShuffle(index=ids, seed=key, max_index=ids[-1], rounds=8)
    print(f"the permutation alone, as one vector: {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
