"""The option print_model: the layers of the network, their outputs, parameters and FLOPs."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from library.estimator import ModeKeys
from library.train.run import Run

OF_VARIABLES = ("VarHandleOp", "VariableV2", "ReadVariableOp", "Const", "Identity")


def print_model(run: Run) -> None:
    """Print a row for each layer that has variables, for one example; FLOPs count a * b + c as 2.

    What a SavedModel computes inside is not counted.
    """
    with tf.Graph().as_default() as graph:
        tf.compat.v1.train.create_global_step()
        features = run.inputs.device_input(run).features
        run.model_fn(features, None, ModeKeys.PREDICT, run.hyperparameters, run=run)
        sizes: dict[str, int] = {}
        for variable in tf.compat.v1.trainable_variables():
            layer = variable.op.name.rpartition("/")[0]
            sizes[layer] = sizes.get(layer, 0) + variable.shape.num_elements()
        flops = dict(_flops(graph))
    print(f"{'layer':32}{'output':>20}{'parameters':>14}{'MFLOPs':>10}")
    for layer, size in sizes.items():
        inside = [op for op in graph.get_operations() if op.name.startswith(f"{layer}/")]
        shapes = [
            op.outputs[0].shape
            for op in inside
            if op.outputs and op.type not in OF_VARIABLES and op.outputs[0].dtype.is_floating
        ]
        shape = " x ".join(map(str, shapes[-1][1:])) if shapes else ""
        here = sum(flops.get(op.name, 0) for op in inside)
        print(f"{layer:32}{shape:>20}{size:14,}{here / 1e6:10.2f}")
    print(f"{'all':52}{sum(sizes.values()):14,}{sum(flops.values()) / 1e6:10.2f}")


def _flops(graph: tf.Graph) -> Iterator[tuple[str, int]]:
    """Of each operation."""
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    root = profiler.profile(graph, cmd="scope", options=options.with_empty_output().build())
    nodes: list[Any] = [root]
    while nodes:
        node = nodes.pop()
        yield node.name, node.float_ops
        nodes += node.children
