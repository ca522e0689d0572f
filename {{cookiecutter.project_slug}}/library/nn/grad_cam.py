"""Grad-CAM: where a convolutional network finds what speaks for its prediction."""

import tensorflow as tf

FEATURE_MAPS = ("feature_maps",)
"""The collection for what `global_pool` gets; a tuple, so that no checkpoint lists it."""


def global_pool(x: tf.Tensor) -> tf.Tensor:
    """The mean over all positions: [b, h, w, c] -> [b, c]; `heat_maps` are made of what it gets."""
    tf.compat.v1.add_to_collection(FEATURE_MAPS, x)
    return tf.reduce_mean(x, axis=[1, 2])


def heat_maps(outputs: tf.Tensor) -> tf.Tensor | None:
    """How much each position speaks for the largest of the outputs, [b, units], of an example.

    Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391. float32 [b, h, w], at least 0, as large
    as the features before `global_pool`; None where the network has none. Of audio clips, b is the
    number of windows.
    """
    features = tf.compat.v1.get_collection(FEATURE_MAPS)[:1]  # of the first view
    (gradients,) = tf.gradients(tf.reduce_max(outputs, axis=-1), features) if features else [None]
    if gradients is None:
        return None
    weights = tf.reduce_mean(gradients, axis=[1, 2], keepdims=True)
    return tf.nn.relu(tf.reduce_sum(weights * features[0], axis=-1))
