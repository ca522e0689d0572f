"""The networks and their layers, in a graph as the Estimator makes it."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from library.data import Target
from library.heads import HEADS
from library.nn import batch_norm, conv, dense, dropout, output_layer, resnet_features
from project.networks import NETWORKS, outputs_of
from project.settings import Hyperparameters

IMAGES = np.random.default_rng(0).uniform(0, 255, [8, 32, 32, 3]).astype(np.float32)


@pytest.fixture
def session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield session


def outputs(network: str, *, seed: int = 0, size: int = 32, classes: int = 5, **more: Any):
    params = Hyperparameters(network=network, **more)
    head = HEADS["classification"](Target("class", tuple(map(str, range(classes)))), params)
    features = {"image": tf.constant(IMAGES) if size == 32 else tf.zeros([1, size, size, 3])}
    options = {"training": True, "dtype": "float32", "params": params, "seed": seed}
    return outputs_of(features, head, **options)


def start(session) -> None:
    session.run(tf.compat.v1.global_variables_initializer())


def test_the_choices_are_the_networks():
    (field,) = (f for f in dataclasses.fields(Hyperparameters) if f.name == "network")
    assert set(field.metadata["choices"]) == set(NETWORKS)


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet", marks=pytest.mark.slow)])
def test_a_network_gives_logits_that_start_small(session, name):
    logits = outputs(name, seed=1, dropout_rate=0.0)
    start(session)
    values = session.run(logits)
    assert values.shape == (8, 5)
    assert 0 < np.abs(values).max() < 3


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet", marks=pytest.mark.slow)])
def test_the_seed_alone_decides_the_initial_weights(name):
    def weights(seed: int, extra_ops: int) -> list[np.ndarray]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            for _ in range(extra_ops):
                tf.constant(0)
            outputs(name, seed=seed, dropout_rate=0.5)
            start(session)
            return session.run(tf.compat.v1.trainable_variables())

    first = weights(1, 0)
    assert all((a == b).all() for a, b in zip(first, weights(1, 7), strict=True))
    assert any((a != b).any() for a, b in zip(first, weights(2, 0), strict=True))


def test_kernels_have_the_deviation_of_he_and_differ_by_name(session):
    for scope in ("one", "two"):
        with tf.compat.v1.variable_scope(scope):
            conv(tf.zeros([1, 4, 4, 64]), 64, seed=0)
    start(session)
    one, two = session.run(tf.compat.v1.trainable_variables())
    assert np.std(one) == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    assert np.abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.02


def test_dense_is_an_affine_map(session):
    with tf.compat.v1.variable_scope("dense"):
        y = dense(tf.constant([[1.0, 2.0]]), 3, seed=0)
    start(session)
    bias, kernel = session.run(
        [v for name in ("bias", "kernel") for v in tf.compat.v1.global_variables("dense/" + name)]
    )
    np.testing.assert_allclose(session.run(y), [[1.0, 2.0]] @ kernel + bias, rtol=1e-6)


def test_the_output_layer_drops_features_in_training_only(session):
    x = tf.ones([4, 100])
    trained = output_layer(x, 2, rate=0.5, seed=0, training=True)
    with tf.compat.v1.variable_scope("", reuse=True):
        evaluated = output_layer(x, 2, rate=0.5, seed=0, training=False)
    start(session)
    assert np.ptp(session.run(evaluated), axis=0).max() < 1e-6
    assert np.ptp(session.run(trained), axis=0).min() > 1e-3
    assert {v.op.name for v in tf.compat.v1.trainable_variables()} == {
        "logits/kernel",
        "logits/bias",
    }


def test_batch_norm_normalizes_a_batch_and_learns_the_averages(session):
    x = tf.constant(IMAGES * 5 + 2)
    with tf.compat.v1.variable_scope("norm"):
        y = batch_norm(x, training=True)
    with tf.compat.v1.variable_scope("norm", reuse=True):
        evaluated = batch_norm(x, training=False)
    start(session)
    assert np.abs(session.run(y).mean((0, 1, 2))).max() < 1e-3
    assert np.abs(session.run(y).std((0, 1, 2)) - 1).max() < 1e-2
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    assert len(updates) == 2
    for _ in range(300):
        session.run(updates)
    assert np.abs(session.run(evaluated) - session.run(y)).max() < 1e-2


def test_dropout_follows_from_seed_and_step(session):
    step = tf.compat.v1.train.create_global_step()
    x = tf.ones([1000])
    dropped = dropout(x, 0.3, seed=1)
    start(session)
    first, again = session.run(dropped), session.run(dropped)
    session.run(step.assign_add(1))
    later = session.run(dropped)
    assert (first == again).all()
    assert (first != later).any()
    assert set(np.unique(first.round(5))) == {0, np.float32(1 / 0.7).round(5)}
    assert (first == 0).mean() == pytest.approx(0.3, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "parameters"), [("18", 11_689_512), ("34", 21_797_672), ("50", 25_557_032)]
)
def test_a_resnet_has_as_many_parameters_as_the_published_one(layers, parameters):
    """As https://pytorch.org/vision/stable/models/resnet.html counts them, for 1,000 classes."""
    with tf.Graph().as_default():
        outputs("resnet", resnet_layers=layers, size=224, classes=1000)
        variables = tf.compat.v1.trainable_variables()
        assert sum(variable.shape.num_elements() for variable in variables) == parameters


@pytest.mark.slow
def test_a_residual_block_begins_as_the_identity(session):
    """Its last batch norm begins at 0, so that its gradient is the only one that flows at first."""
    resnet_features(tf.constant(IMAGES), "18", training=True, seed=1)
    start(session)
    last = [v for v in tf.compat.v1.trainable_variables() if v.name.endswith("second/scale:0")]
    assert len(last) == 8
    assert not any(session.run(variable).any() for variable in last)
