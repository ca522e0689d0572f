"""Grad-CAM: heat lies on what decides the class, and on the report's worst mistakes."""

import numpy as np
import pytest
import tensorflow as tf

from library.data import Target
from library.heads import HEADS
from library.nn import Adam, global_pool, heat_maps
from project.networks import outputs_of
from project.settings import Hyperparameters

SIZE, PATCH = 192, 96  # pixels of an image, and of the patch in it, whose color is its class


def planted(number: int, random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Images of noise, the classes of their patches, and where these are: 1 inside, 0 outside."""
    images = random.uniform(0, 255, (number, SIZE, SIZE, 3)).astype(np.float32)
    labels = random.integers(0, 3, number)
    inside = np.zeros((number, SIZE, SIZE), np.float32)
    for image, label, mask in zip(images, labels, inside, strict=True):
        top, left = random.integers(0, SIZE - PATCH, 2)
        place = slice(top, top + PATCH), slice(left, left + PATCH)
        image[place] = image[place] * 0.5 + 127 * np.eye(3)[label]
        mask[place] = 1
    return images, labels, inside


def test_a_heat_map_shows_what_speaks_for_the_largest_output():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant([[[[1.0, 0.0], [0.0, 2.0]]]])  # [1, 1, 2, 2]
        outputs = global_pool(x) @ tf.constant([[3.0, 0.0], [0.0, 1.0]])
        assert session.run(heat_maps(outputs)).tolist() == [[[1.5, 0.0]]]
    with tf.Graph().as_default():
        assert heat_maps(tf.zeros([1, 2])) is None
        global_pool(tf.zeros([1, 2, 2, 3]))
        assert heat_maps(tf.zeros([1, 2])) is None  # which do not depend on it


@pytest.mark.slow
def test_heat_lies_on_a_planted_patch_that_decides_the_class():
    random = np.random.default_rng(0)
    params = Hyperparameters(image_size=SIZE, dropout_rate=0.0)
    head = HEADS["classification"](Target("class", ("red", "green", "blue")), params)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        images = tf.compat.v1.placeholder(tf.float32, [None, SIZE, SIZE, 3])
        labels = tf.compat.v1.placeholder(tf.int64, [None])
        tf.compat.v1.train.create_global_step()
        options = {"dtype": "float32", "params": params, "seed": 0}
        with tf.compat.v1.variable_scope("", reuse=tf.compat.v1.AUTO_REUSE):
            tested = outputs_of({"image": images}, head, training=False, **options)
            maps = heat_maps(tested)
            logits = outputs_of({"image": images}, head, training=True, **options)
        step = Adam(1e-3).minimize(tf.reduce_mean(head.losses(labels, logits)))
        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(40):
            batch, classes, _ = planted(8, random)
            session.run([step, updates], {images: batch, labels: classes})
        batch, classes, inside = planted(16, random)
        found, heat = session.run([tested, maps], {images: batch})
        assert np.mean(found.argmax(-1) == classes) > 0.9
        heat = tf.image.resize(heat[..., np.newaxis], [SIZE, SIZE]).eval()[..., 0]
    mass = (heat * inside).sum(axis=(1, 2)) / heat.sum(axis=(1, 2))
    print("heat on the patch:", mass.mean(), np.quantile(mass, [0.1, 0.5, 0.9]))
    assert mass.mean() >= 0.6  # of 0.25 by chance
