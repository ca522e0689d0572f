"""Heads: losses, metrics and predictions against NumPy, and a head of one's own."""

import dataclasses

import numpy as np
import tensorflow as tf

from library.data import Target
from library.heads import HEADS, Head
from library.report import StatsHook

RANDOM = np.random.default_rng(0)
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
SIZE = 21
LOGITS = RANDOM.normal(size=[SIZE, 7]).astype(np.float32) * 2
CLASSES = np.arange(SIZE) % 6  # there is no gnu
LABELS = (RANDOM.random([SIZE, 7]) < 0.4).astype(np.float32) * (np.arange(7) < 6)
VALUES = RANDOM.normal(1990, 30, SIZE).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Params:
    xentropy_label_smoothing: float = 0.1


def head_of(name: str, **changes) -> Head:
    target = Target(HEADS[name].label, NAMES, 1990.0, 30.0)
    return HEADS[name](dataclasses.replace(target, **changes), Params())


def now(build, *arrays):
    """What a graph of these arrays gives."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(build(*map(tf.constant, arrays)))


def evaluated(head: Head, labels, logits, *, batch_size: int = 5, images=None):
    """The metrics of an evaluation in batches, and the hook's stats."""
    keys = [f"{i}.jpg" for i in range(len(labels))]
    images = np.zeros([len(labels), 4, 4, 3], np.uint8)
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensor_slices((labels, logits, images, keys))
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset.batch(batch_size)).get_next()
        head.collect(*batch)
        ops = head.metrics(*batch[:2])
        values = {name: value for name, (value, _) in ops.items()}
        hooks = [StatsHook(head), tf.compat.v1.train.FinalOpsHook(values)]
        with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run([update for _, update in ops.values()])
    return hooks[1].final_ops_values, hooks[0].stats
