"""The Estimator API of TensorFlow 2.15, tried out: python -m tf_estimator_compat tests/features.py

Each feature trains, evaluates, predicts or exports something small. Prints "yes" or the error for
each, as JSON in the last line. `tests/matrix.py` asks each TensorFlow, and prints the table of
docs/from_tensorflow_2.15.md.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

LIMIT_SECS = 1200
"""Seconds after which a cluster hangs, however slow and busy the machine is."""

tf.get_logger().setLevel("ERROR")
e, v1, fc = tf.estimator, tf.compat.v1, tf.feature_column
FEATURES: dict[str, Callable[[], None]] = {}

X = fc.numeric_column("x", [3])
WORD = fc.categorical_column_with_hash_bucket("word", 10)


def feature(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Try the function under this name."""
    return lambda function: FEATURES.setdefault(name, function)


# ---- data and a model ----------------------------------------------------------------------------


def classes() -> tf.data.Dataset:
    """Batches of 16: three numbers and a word, in two classes."""
    random = np.random.default_rng(0)
    x = random.normal(size=[32, 3]).astype(np.float32)
    words = np.array(["a", "b", "c", "d"])[random.integers(0, 4, [32, 1])]
    examples = ({"x": x, "word": words}, np.int64(x.sum(1, keepdims=True) > 0))
    return tf.data.Dataset.from_tensor_slices(examples).repeat().batch(16, drop_remainder=True)


def values() -> tf.data.Dataset:
    """The same with labels that are numbers."""
    return classes().map(lambda features, labels: (features, tf.cast(labels, tf.float32)))


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Linear regression."""
    outputs = features["x"] @ v1.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
    if mode == e.ModeKeys.PREDICT:
        return e.EstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean((outputs - labels) ** 2, name="loss")
    metrics = {"mae": v1.metrics.mean_absolute_error(labels, outputs)}
    train_op = v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return e.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def new(model: Callable = model_fn, **config: Any) -> Any:
    return e.Estimator(model, config=e.RunConfig(tempfile.mkdtemp(), **config))


def raw_receiver() -> Any:
    x = v1.placeholder(tf.float32, [None, 3])
    return e.export.ServingInputReceiver({"x": x}, x)


def whole_way(model: Any, input_fn: Callable, receiver: Callable = raw_receiver) -> None:
    """Train, evaluate, predict, export, and load the export."""
    model.train(input_fn, steps=3)
    assert np.isfinite(model.evaluate(input_fn, steps=2)["loss"])
    next(model.predict(input_fn))
    folder = os.fsdecode(model.export_saved_model(tempfile.mkdtemp(), receiver))
    assert tf.saved_model.load(folder).signatures


# ---- models --------------------------------------------------------------------------------------


@feature("`Estimator` with a `model_fn`: `train`, `evaluate`, `predict`, `export_saved_model`")
def _() -> None:
    whole_way(new(), values)


@feature("`tf.compat.v1.layers` in a `model_fn`")
def _() -> None:
    def layers(features: Any, labels: Any, mode: str) -> Any:
        hidden = v1.layers.dense(features["x"], 3, tf.nn.relu)
        normal = v1.layers.batch_normalization(hidden, training=mode == e.ModeKeys.TRAIN)
        return model_fn({"x": normal}, labels, mode)

    whole_way(new(layers), values)


def canned(family: str, **options: Any) -> None:
    """The classifier, the regressor and the estimator with a head; their export parses examples."""
    used = [column for name in options if name.endswith("columns") for column in options[name]]
    receiver = raw_receiver
    if used:
        spec = fc.make_parse_example_spec(used)
        receiver = e.export.build_parsing_serving_input_receiver_fn(spec)
    whole_way(getattr(e, f"{family}Classifier")(**options), classes, receiver)
    whole_way(getattr(e, f"{family}Regressor")(**options), values, receiver)
    whole_way(getattr(e, f"{family}Estimator")(e.RegressionHead(), **options), values, receiver)


@feature("`BaselineClassifier`, `BaselineRegressor`, `BaselineEstimator`")
def _() -> None:
    canned("Baseline")


@feature("`LinearClassifier`, `LinearRegressor`, `LinearEstimator`")
def _() -> None:
    canned("Linear", feature_columns=[X, WORD])


@feature("`DNNClassifier`, `DNNRegressor`, `DNNEstimator`")
def _() -> None:
    used = [X, fc.embedding_column(WORD, 2)]
    canned("DNN", hidden_units=[4], feature_columns=used, dropout=0.1, batch_norm=True)


@feature("Wide and deep: `DNNLinearCombinedClassifier`, `...Regressor`, `...Estimator`")
def _() -> None:
    columns = {"linear_feature_columns": [WORD], "dnn_feature_columns": [X]}
    canned("DNNLinearCombined", dnn_hidden_units=[4], **columns)


@feature("`experimental.RNNClassifier`, `RNNEstimator`")
def _() -> None:
    def words() -> tf.data.Dataset:
        return classes().map(lambda f, labels: ({"word": tf.sparse.from_dense(f["word"])}, labels))

    column = fc.sequence_categorical_column_with_hash_bucket("word", 10)
    columns, head = [fc.embedding_column(column, 2)], e.BinaryClassHead()
    e.experimental.RNNClassifier(columns, units=[4], cell_type="lstm").train(words, steps=2)
    e.experimental.RNNEstimator(head, columns, units=[4], cell_type="gru").train(words, steps=2)


@feature("`experimental.LinearSDCA`")
def _() -> None:
    def with_keys() -> tf.data.Dataset:
        return classes().map(lambda f, labels: ({**f, "key": tf.as_string(tf.range(16))}, labels))

    optimizer = e.experimental.LinearSDCA("key", symmetric_l2_regularization=1.0)
    e.LinearClassifier([X], optimizer=optimizer).train(with_keys, steps=2)


@feature("`tf.keras.estimator.model_to_estimator`")
def _() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[3])])
    model.compile("adam", "mse")
    made = tf.keras.estimator.model_to_estimator(model, model_dir=tempfile.mkdtemp())
    made.train(lambda: values().map(lambda f, labels: (f["x"], labels)), steps=2)


@feature("`TPUEstimator` with `use_tpu=False`")
def _() -> None:
    tpu = v1.estimator.tpu

    def with_params(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = model_fn(features, labels, mode)
        return tpu.TPUEstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op)

    config = tpu.RunConfig(model_dir=tempfile.mkdtemp())
    model = tpu.TPUEstimator(with_params, config=config, use_tpu=False, train_batch_size=16)
    model.train(lambda params: values(), steps=2)


# ---- feature columns and heads -------------------------------------------------------------------


@feature("Feature columns: bucketized, vocabulary, crossed, weighted, shared embeddings")
def _() -> None:
    def columns(f: Any, labels: Any) -> Any:
        one = {"one": f["x"][:, :1], "word": f["word"], "other": f["word"]}
        return {**one, "id": labels, "id2": labels}, labels

    words = fc.categorical_column_with_vocabulary_list("word", ["a", "b"], num_oov_buckets=1)
    ids = [fc.categorical_column_with_identity(name, 3) for name in ("id", "id2")]
    used = [
        fc.bucketized_column(fc.numeric_column("one"), [0.0, 1.0]),
        fc.indicator_column(words),
        fc.indicator_column(fc.crossed_column(["word", "other"], 10)),
        fc.indicator_column(fc.weighted_categorical_column(words, "one")),
    ]
    with tf.Graph().as_default():  # as TensorFlow asks for
        used += fc.shared_embeddings(ids, dimension=2)
    e.DNNClassifier([4], used).train(lambda: classes().map(columns), steps=2)


@feature("`classifier_parse_example_spec`, `regressor_parse_example_spec`")
def _() -> None:
    assert e.classifier_parse_example_spec([X], "label").keys() == {"x", "label"}
    assert e.regressor_parse_example_spec([X], "label").keys() == {"x", "label"}


@feature("`BinaryClassHead`, `MultiClassHead`, `MultiLabelHead`, the three regression heads")
def _() -> None:
    def both(f: Any, labels: Any) -> Any:
        return f, tf.concat([labels, 1 - labels], 1)

    for head in (e.BinaryClassHead(), e.MultiClassHead(3)):
        e.DNNEstimator(head, [4], [X]).train(classes, steps=2)
    e.DNNEstimator(e.MultiLabelHead(2), [4], [X]).train(lambda: classes().map(both), steps=2)
    for head in (e.RegressionHead(), e.PoissonRegressionHead(), e.LogisticRegressionHead()):
        e.DNNEstimator(head, [4], [X]).train(values, steps=2)


@feature("`MultiHead`")
def _() -> None:
    def two(f: Any, labels: Any) -> Any:
        return f, {"a": labels, "b": tf.cast(labels, tf.float32)}

    head = e.MultiHead([e.BinaryClassHead(name="a"), e.RegressionHead(name="b")])
    e.DNNEstimator(head, [4], [X]).train(lambda: classes().map(two), steps=2)


@feature("`add_metrics`")
def _() -> None:
    def metrics(labels: Any, predictions: Any) -> dict[str, Any]:
        error = tf.keras.metrics.MeanAbsoluteError()
        error.update_state(labels, predictions["logits"])
        return {"error": error}

    model = e.add_metrics(e.DNNClassifier([4], [X]), metrics)
    model.train(classes, steps=1)
    assert "error" in model.evaluate(classes, steps=1)


# ---- training and export -------------------------------------------------------------------------


@feature("`train_and_evaluate` with `BestExporter`, `LatestExporter`, `FinalExporter`")
def _() -> None:
    model = new(save_checkpoints_steps=2)
    kinds = (e.BestExporter, e.LatestExporter, e.FinalExporter)
    exporters = [kind(kind.__name__, serving_input_receiver_fn=raw_receiver) for kind in kinds]
    spec = e.EvalSpec(values, 1, exporters=exporters, start_delay_secs=0, throttle_secs=0)
    e.train_and_evaluate(model, e.TrainSpec(values, max_steps=4), spec)
    assert len(os.listdir(f"{model.model_dir}/export")) == 3


@feature("The ten hooks of training: checkpoints, summaries, logging, stop, feed, profile...")
def _() -> None:
    folder, model = tempfile.mkdtemp(), new()
    with tf.Graph().as_default():  # as a writer of summaries asks for
        hooks = [
            e.CheckpointSaverHook(folder, save_steps=1, listeners=[e.CheckpointSaverListener()]),
            e.LoggingTensorHook(["global_step"], every_n_iter=1),
            e.StepCounterHook(1, output_dir=folder),
            e.StopAtStepHook(last_step=2),
            e.SummarySaverHook(1, output_dir=folder, scaffold=v1.train.Scaffold()),
            e.NanTensorHook("loss:0"),
            e.FeedFnHook(dict),
            e.FinalOpsHook("global_step:0"),
            e.GlobalStepWaiterHook(0),
            e.ProfilerHook(save_steps=10, output_dir=folder),
        ]
    model.train(values, hooks=hooks, steps=5)
    assert tf.train.load_variable(folder, "global_step") == 2


@feature("`experimental`: early stopping by five hooks, `InMemoryEvaluatorHook`")
def _() -> None:
    x, model = e.experimental, new(save_checkpoints_steps=1)
    hooks = [
        x.make_early_stopping_hook(model, lambda: False),
        x.stop_if_no_decrease_hook(model, "loss", 100),
        x.stop_if_no_increase_hook(model, "loss", 100),
        x.stop_if_higher_hook(model, "loss", 100.0),
        x.stop_if_lower_hook(model, "loss", 0.0),
        x.make_stop_at_checkpoint_step_hook(model, 100),
        x.InMemoryEvaluatorHook(model, values, steps=1, every_n_iter=1),
    ]
    model.train(values, hooks=hooks, steps=3)


@feature("Warm start: `WarmStartSettings`, `warm_start_from`")
def _() -> None:
    first = new().train(values, steps=2)
    settings = e.WarmStartSettings(first.model_dir, vars_to_warm_start="w")
    model = e.Estimator(model_fn, tempfile.mkdtemp(), warm_start_from=settings)
    assert model.train(values, max_steps=1).get_variable_value("w").any()


@feature("Receivers for export: own, raw, parsing, supervised; several modes in one")
def _() -> None:
    model, build = new().train(values, steps=1), e.export
    raw = build.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    spec = fc.make_parse_example_spec([X])
    parsing = build.build_parsing_serving_input_receiver_fn(spec)
    for receiver in (raw_receiver, raw, parsing):
        model.export_saved_model(tempfile.mkdtemp(), receiver)
    build_supervised = e.experimental.build_raw_supervised_input_receiver_fn
    supervised = build_supervised({"x": tf.zeros([1, 3])}, tf.zeros([1, 1]))
    modes = {e.ModeKeys.PREDICT: raw_receiver, e.ModeKeys.TRAIN: supervised}
    model.experimental_export_all_saved_models(tempfile.mkdtemp(), modes)


@feature("Signatures: `PredictOutput`, `RegressionOutput`, `ClassificationOutput`")
def _() -> None:
    def signatures(features: Any, labels: Any, mode: str) -> Any:
        spec = model_fn(features, labels, mode)
        y = (spec.predictions or {}).get("y")
        found = {}
        if y is not None:
            found["serving_default"] = e.export.PredictOutput({"y": y})
            found["regression"] = e.export.RegressionOutput(y)
            found["classification"] = e.export.ClassificationOutput(scores=y)
        return spec._replace(export_outputs=found or None)

    spec = fc.make_parse_example_spec([X])
    receiver = e.export.build_parsing_serving_input_receiver_fn(spec)
    model = new(signatures).train(values, steps=1)
    folder = os.fsdecode(model.export_saved_model(tempfile.mkdtemp(), receiver))
    assert len(tf.saved_model.load(folder).signatures) >= 3


# ---- devices and machines ------------------------------------------------------------------------


@feature(
    "`RunConfig` with `OneDevice-`, `Mirrored-` (one and two devices), `CentralStorageStrategy`"
)
def _() -> None:
    kinds, two = tf.distribute, v1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
    for strategy in (
        kinds.OneDeviceStrategy("/cpu:0"),
        kinds.MirroredStrategy(["/cpu:0"]),
        kinds.MirroredStrategy(["/cpu:0", "/cpu:1"]),
        kinds.experimental.CentralStorageStrategy(["/cpu:0"]),
    ):
        model = new(train_distribute=strategy, session_config=two)
        model.train(values, steps=2)


def run_task(folder: str, all_reduce: bool) -> None:
    """What each process of a cluster does; its TF_CONFIG tells it which it is."""
    v1.disable_eager_execution()
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if all_reduce else None
    config = e.RunConfig(folder, train_distribute=strategy, save_checkpoints_steps=2)
    spec = e.EvalSpec(values, 1, start_delay_secs=0, throttle_secs=0)
    e.train_and_evaluate(e.Estimator(model_fn, config=config), e.TrainSpec(values, 4), spec)


def run_cluster(*jobs: str, how: str) -> None:
    """A process for each job; all but parameter servers, which never end, have to succeed."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in jobs]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    spec: dict[str, list[str]] = {}
    for job, address in zip(jobs, addresses, strict=True):
        spec.setdefault(job, []).append(address)
    words = [sys.executable, "-m", "tf_estimator_compat", __file__, how, tempfile.mkdtemp()]
    processes: list[subprocess.Popen] = []
    try:
        for number, job in enumerate(jobs):
            task = {"type": job, "index": jobs[:number].count(job)}
            known = {**os.environ, "TF_CONFIG": json.dumps({"cluster": spec, "task": task})}
            processes.append(subprocess.Popen(words, env=known, stderr=subprocess.PIPE, text=True))
        for job, process in zip(jobs, processes, strict=True):
            if job != "ps":
                _, errors = process.communicate(timeout=LIMIT_SECS)
                assert process.returncode == 0, errors.splitlines()[-1]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@feature("`TF_CONFIG`: a chief, a worker, a parameter server and an evaluator")
def _() -> None:
    run_cluster("chief", "worker", "ps", "evaluator", how="--asynchronous")


@feature("`TF_CONFIG`: `MultiWorkerMirroredStrategy` on two workers, and an evaluator")
def _() -> None:
    run_cluster("worker", "worker", "evaluator", how="--all_reduce")


def main() -> None:
    if sys.argv[1:]:
        run_task(sys.argv[2], sys.argv[1] == "--all_reduce")
        return
    cpu, two = (
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    tf.config.set_logical_device_configuration(cpu, two)
    found = {}
    for name, function in FEATURES.items():
        try:
            function()
            found[name] = "yes"
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            found[name] = f"{type(error).__name__}: {lines[0]}"
            print(name, found[name], sep="\n    ", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
