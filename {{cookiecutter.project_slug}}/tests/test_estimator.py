"""The Estimator API on this TensorFlow: all names, distribution strategies, TF_CONFIG, no noise."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python.distribute.distribute_config import DistributeConfig

from library import estimator

# The public names of tf.estimator in TensorFlow 2.15.
NAMES = """
BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead
CheckpointSaverHook CheckpointSaverListener DNNClassifier DNNEstimator DNNLinearCombinedClassifier
DNNLinearCombinedEstimator DNNLinearCombinedRegressor DNNRegressor Estimator EstimatorSpec
EvalSpec Exporter FeedFnHook FinalExporter FinalOpsHook GlobalStepWaiterHook Head LatestExporter
LinearClassifier LinearEstimator LinearRegressor LoggingTensorHook LogisticRegressionHead ModeKeys
MultiClassHead MultiHead MultiLabelHead NanLossDuringTrainingError NanTensorHook
PoissonRegressionHead ProfilerHook RegressionHead RunConfig SecondOrStepTimer SessionRunArgs
SessionRunContext SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook
TrainSpec VocabInfo WarmStartSettings add_metrics classifier_parse_example_spec experimental
experimental.InMemoryEvaluatorHook experimental.LinearSDCA experimental.RNNClassifier
experimental.RNNEstimator experimental.build_raw_supervised_input_receiver_fn
experimental.call_logit_fn experimental.make_early_stopping_hook
experimental.make_stop_at_checkpoint_step_hook experimental.stop_if_higher_hook
experimental.stop_if_lower_hook experimental.stop_if_no_decrease_hook
experimental.stop_if_no_increase_hook export export.ClassificationOutput export.EvalOutput
export.ExportOutput export.PredictOutput export.RegressionOutput export.ServingInputReceiver
export.TensorServingInputReceiver export.build_parsing_serving_input_receiver_fn
export.build_raw_serving_input_receiver_fn regressor_parse_example_spec train_and_evaluate
"""


def linear_model(features, labels, mode):
    weights = tf.compat.v1.get_variable("weights", [4, 1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((features @ weights - labels) ** 2)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def linear_input() -> tf.data.Dataset:
    features = tf.random.stateless_normal([32, 4], seed=[1, 2])
    return tf.data.Dataset.from_tensors(
        (features, features @ [[1.0], [2.0], [3.0], [4.0]])
    ).repeat()


def python(code: str, status: int = 0, **environment: str) -> str:
    """What a fresh interpreter prints, errors included."""
    root = str(Path(__file__).parent.parent)
    clean = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


def test_all_public_names_are_there():
    names = NAMES.split()
    assert len(names) == 76
    for name in names:
        found = estimator
        for part in name.split("."):
            found = getattr(found, part)


def test_the_whole_package_can_be_imported():
    from tensorflow_estimator.python.estimator import estimator_lib

    assert issubclass(estimator.Estimator, estimator_lib.Estimator)


def test_tensorflows_own_hooks_keep_their_names():
    assert tf.compat.v1.train.SessionRunHook is estimator.SessionRunHook
    assert estimator.SessionRunHook._tf_api_names_v1


@pytest.mark.parametrize("devices", [None, ["/cpu:0"]])
def test_a_model_trains_the_same_with_and_without_a_strategy(tmp_path, devices):
    strategy = tf.distribute.MirroredStrategy(devices) if devices else None
    config = estimator.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    model = estimator.Estimator(linear_model, str(tmp_path), config)
    model.train(linear_input, steps=50)
    assert model.evaluate(linear_input, steps=1)["loss"] < 0.01
    assert isinstance(model.config.train_distribute, type(strategy))


def test_experimental_distribute_fills_the_same_fields():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = estimator.RunConfig(experimental_distribute=DistributeConfig(strategy, strategy))
    assert config.train_distribute is strategy
    assert config._eval_distribute is strategy
    with pytest.raises(ValueError, match="`train_distribute`"):
        estimator.RunConfig(
            train_distribute=strategy, experimental_distribute=DistributeConfig(strategy)
        )


def test_tf_config_makes_a_worker_of_a_cluster(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    config = estimator.RunConfig()
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 1, False)
    assert (config.num_ps_replicas, config.num_worker_replicas) == (1, 3)
    assert config.master == "grpc://b:2"


def test_tf_config_alone_does_not_disturb_a_strategy(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": "/somewhere"}))
    config = estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy(["/cpu:0"]))
    assert config.model_dir == "/somewhere"
    assert (config.task_type, config.is_chief, config.master) == ("worker", True, "")


@pytest.fixture
def config_of_a_worker(monkeypatch):
    """Makes the RunConfig of a worker in a cluster that has an evaluator."""
    cluster = {"worker": ["b:1", "b:2"], "evaluator": ["e:1"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    return estimator.RunConfig


def test_a_strategy_across_machines_is_for_the_coordinator(config_of_a_worker, monkeypatch):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = config_of_a_worker(train_distribute=strategy)
    assert config._distribute_coordinator_mode == "independent_worker"
    assert set(config.cluster_spec.jobs) == {"worker", "evaluator"}
    remote = DistributeConfig(strategy, remote_cluster={"worker": ["b:1"]})
    with pytest.raises(ValueError, match="`experimental_distribute.remote_cluster`"):
        config_of_a_worker(experimental_distribute=remote)
    monkeypatch.delenv("TF_CONFIG")
    config = estimator.RunConfig(experimental_distribute=remote)
    assert config._distribute_coordinator_mode == "standalone_client"


def test_what_cannot_be_done_across_machines_is_refused_in_words(config_of_a_worker, tmp_path):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = config_of_a_worker(train_distribute=strategy, eval_distribute=strategy)
    model = estimator.Estimator(linear_model, str(tmp_path), config)
    with pytest.raises(ValueError, match="`train_and_evaluate`"):
        model.train(linear_input, steps=1)
    with pytest.raises(ValueError, match="evaluat"):
        model.evaluate(linear_input, steps=1)


def test_its_own_deprecation_is_not_shown_and_warnings_that_matter_are():
    printed = python(
        "from library import estimator; import tensorflow as tf, tempfile\n"
        "from tests.test_estimator import linear_input, linear_model\n"
        "model = estimator.Estimator(linear_model, tempfile.mkdtemp(), estimator.RunConfig())\n"
        "model.train(linear_input, steps=2)\n"
        "tf.compat.v1.disable_resource_variables()\n"
        "tf.get_logger().warning('this matters')"
    )
    shown = [line for line in printed.splitlines() if line.startswith("WARNING:tensorflow")]
    shown = [line for line in shown if "global step" not in line]  # it is shown by a busy machine
    assert len(shown) == 2
    assert "disable_resource_variables" in shown[0], "the user's own call of something deprecated"
    assert shown[1] == "WARNING:tensorflow:this matters"


def test_a_notice_of_a_project_below_a_folder_called_library_is_shown():
    notice = "From %s: %s (from tf) is deprecated and will be removed after %s. %s"
    found = [
        estimator._UserCanDoNothing().filter(
            logging.LogRecord("tf", 30, "", 0, notice, (place, "f", "now", "Use g."), None)
        )
        for place in ("/me/library/project/model_fn.py:3", f"{estimator.__file__}:3")
    ]
    assert found == [True, False]


def test_importing_the_library_chooses_keras_2_in_time():
    printed = python("import library, tensorflow as tf; print(tf.keras.Model.__module__)")
    assert "\ntf_keras." in "\n" + printed


needs_keras_3 = pytest.mark.skipif(hasattr(tf, "estimator"), reason="TensorFlow 2.15 has Keras 2")


@needs_keras_3
@pytest.mark.parametrize(
    ("code", "environment"),
    [
        ("import tensorflow, library.estimator", {}),
        ("import library.estimator", {"TF_USE_LEGACY_KERAS": "0"}),
    ],
)
def test_keras_the_wrong_way_round_is_one_line(code, environment):
    printed = python(code, status=1, **environment)
    last = printed.strip().splitlines()[-1]
    assert "TensorFlow has already chosen Keras 3" in last
    assert "import library.estimator before tensorflow, and leave TF_USE_LEGACY_KERAS" in last


def test_a_tensorflow_out_of_range_is_one_line():
    code = "import tensorflow as tf; tf.__version__ = '2.14.0'; import library.estimator"
    last = python(code, status=1, TF_USE_LEGACY_KERAS="1").strip().splitlines()[-1]
    assert "TensorFlow 2.14.0 is not supported: the Estimator runs on 2.15 to 2.21" in last
