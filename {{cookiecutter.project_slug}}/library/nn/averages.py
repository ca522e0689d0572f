"""Moving averages of the weights: what is evaluated, predicted with and exported.

The average of the last steps of training is better than the last weights, and evaluations of it do
not fluctuate (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046). It is kept beside each
variable, in a variable of its own, so that training that was killed continues with it.
"""

import tensorflow as tf

AVERAGE = "/average"
"""Ends the name of a variable that is the average of another one."""


def update_averages(decay: float, step: tf.Tensor) -> tf.Operation:
    """An op that updates the averages of all weights, and of the statistics of batch norm.

    Args:
        decay: of the averages; less in the first steps, so that they begin at the weights.
        step: steps of training before this one: int64 scalar.
    """
    decay = tf.minimum(decay, tf.cast(step / (step + 9), tf.float32))  # 0 at the first step
    updates, rest = [], 1 - decay
    for variable in _averaged():
        average = tf.compat.v1.get_variable(
            variable.name.split(":")[0] + AVERAGE,
            variable.shape,
            initializer=tf.zeros_initializer(),
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,  # they are equal on all
        )
        value = decay * average + rest * variable.read_value()
        updates.append(average.assign(value, read_value=False))
    return tf.group(updates)


def averages_scaffold() -> tf.compat.v1.train.Scaffold:
    """For an EstimatorSpec: restores the averages into the variables of this graph."""
    averaged = {variable.ref() for variable in _averaged()}
    names = {
        variable.op.name + AVERAGE * (variable.ref() in averaged): variable
        for variable in tf.compat.v1.global_variables()
    }
    return tf.compat.v1.train.Scaffold(saver=tf.compat.v1.train.Saver(names, sharded=True))


def _averaged() -> list[tf.Variable]:
    """The trainable variables, and the statistics that batch norm adds to a collection."""
    return tf.compat.v1.trainable_variables() + tf.compat.v1.moving_average_variables()
