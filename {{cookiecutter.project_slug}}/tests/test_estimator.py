"""The Estimator API on this TensorFlow: names, strategies, TF_CONFIG, no noise, the old imports."""

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import run_program
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


ROOT = Path(__file__).parent.parent


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
    clean = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


@pytest.fixture
def forked_python(tmp_path):
    """Runs code where TensorFlow is imported already, with Keras 2; returns what it prints."""

    def run(code: str, status: int = 0) -> str:
        (tmp_path / "program.py").write_text(code)
        process = run_program("program.py", cwd=tmp_path, status=status, PYTHONPATH=str(ROOT))
        return process.stdout + process.stderr

    return run


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


@pytest.mark.slow
def test_its_own_deprecation_is_not_shown_and_warnings_that_matter_are(forked_python):
    printed = forked_python(
        "from library import estimator; import tensorflow as tf, tempfile\n"
        "from tests.test_estimator import linear_input, linear_model\n"
        "model = estimator.Estimator(linear_model, tempfile.mkdtemp(), estimator.RunConfig())\n"
        "model.train(linear_input, steps=2)\n"
        "tf.compat.v1.disable_resource_variables()\n"
        "tf.get_logger().warning('this matters')"
    )
    shown = [line for line in printed.splitlines() if line.startswith("WARNING:tensorflow")]
    told = ("global step", "is newer than")  # by a busy machine, by a TensorFlow of tomorrow
    shown = [line for line in shown if not any(words in line for words in told)]
    assert len(shown) == 2
    assert "disable_resource_variables" in shown[0], "the user's own call of something deprecated"
    assert shown[1] == "WARNING:tensorflow:this matters"


@pytest.mark.parametrize(
    ("place", "instead", "shown"),
    [
        ("/me/library/project/model_fn.py:3", "Use g.", True),
        ("/me/library/project/model_fn.py:3", "Use tf.keras instead.", False),
        (f"{estimator.__file__}:3", "Use g.", False),
    ],
)
def test_a_notice_is_shown_if_the_call_is_the_users(place, instead, shown):
    _ = estimator.Estimator  # TensorFlow's logger is told once the Estimator is in use
    notice = "From %s: %s (from tf) is deprecated and will be removed after %s. %s"
    arguments = (place, "f", "now", instead)
    record = logging.LogRecord("tensorflow", logging.WARNING, "", 0, notice, arguments, None)
    assert bool(tf.get_logger().filter(record)) is shown


@pytest.mark.slow
def test_importing_the_library_chooses_keras_2_in_time():
    printed = python("import library, tensorflow as tf; print(tf.keras.Model.__module__)")
    assert "\ntf_keras." in "\n" + printed


HAS_ESTIMATOR = hasattr(tf, "estimator")
needs_keras_3 = pytest.mark.skipif(HAS_ESTIMATOR, reason="TensorFlow 2.15 has Keras 2")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_tensorflow_that_is_too_old_is_one_line(forked_python):
    code = "import tensorflow as tf; tf.__version__ = '2.14.0'; import library.estimator"
    last = forked_python(code, status=1).strip().splitlines()[-1]
    assert "TensorFlow 2.14.0 is not supported: the Estimator needs 2.15 or later; install" in last


@pytest.mark.slow
def test_a_tensorflow_that_is_newer_than_tested_is_told_once_and_goes_on(forked_python):
    printed = forked_python(
        "import tensorflow as tf; tf.__version__ = '2.99.0'\n"
        "from library.estimator import Estimator, install\n"
        "install(); install(); print(tf.estimator.Estimator is Estimator)"
    )
    assert printed.count("TensorFlow 2.99.0 is newer than ") == 1
    assert "True" in printed.splitlines()


@pytest.mark.slow
@needs_keras_3
def test_what_is_missing_in_tensorflow_is_named_with_what_to_do(forked_python):
    printed = forked_python(
        "import tensorflow.python.distribute.distribute_coordinator as coordinator\n"
        "del coordinator.run_distribute_coordinator\n"
        "try:\n"
        "    import library.estimator\n"
        "except ImportError as error:\n"
        "    print(*error.lines)"
    )
    (line,) = [line for line in printed.splitlines() if "lacks what the Estimator needs" in line]
    assert line.startswith(f"TensorFlow {tf.__version__} ")
    assert "run_distribute_coordinator" in line
    assert "install TensorFlow 2.15 to " in line


@pytest.mark.slow
def test_tensorflow_is_imported_when_a_name_is_asked_for_and_stays_as_it_is():
    printed = python(
        "import library.estimator, sys\n"
        "print('tensorflow' in sys.modules)\n"
        "library.estimator.Estimator\n"
        "print('tensorflow' in sys.modules)\n"
        "import tensorflow as tf\n"
        "print(hasattr(tf, 'estimator') or hasattr(tf.compat.v1, 'estimator'))"
    )
    shown = [line for line in printed.splitlines() if line in ("False", "True")]
    assert shown == ["False", "True", str(HAS_ESTIMATOR)]


def test_it_imports_nothing_else_of_the_library():
    for file in Path(estimator.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in getattr(node, "names", ())] if not names else []
            assert not [name for name in names if str(name).startswith(("library", "project"))]


# ---- code that nobody edits --------------------------------------------------------------------

OLD_IMPORTS = """
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.compat.v2 as tf2
import tensorflow.estimator as by_name
import tensorflow.compat.v1.estimator as by_name_1
from tensorflow import estimator as attribute
from tensorflow.compat.v1 import estimator as attribute_1
from tensorflow.estimator.export import ServingInputReceiver
from tensorflow.python.estimator.canned import dnn
from tensorflow.python.estimator.estimator import EstimatorV2
from tensorflow.python.estimator import estimator_lib
from tensorflow_estimator.python.estimator.canned.dnn import DNNClassifierV2
import tensorflow.python.estimator.canned.head as head
from tensorflow.python.estimator.keras import model_to_estimator

assert tf.estimator.Estimator is attribute.Estimator is by_name.Estimator is EstimatorV2
assert tf2.estimator.Estimator is tf.compat.v2.estimator.Estimator is EstimatorV2
assert tf1.estimator.Estimator is tf.compat.v1.estimator.Estimator is by_name_1.Estimator
assert attribute_1.Estimator is estimator_lib.Estimator is EstimatorV2.__bases__[0]
assert tf.estimator.DNNClassifier is dnn.DNNClassifierV2 is DNNClassifierV2
assert tf.estimator.export.ServingInputReceiver is ServingInputReceiver
assert callable(tf1.estimator.inputs.numpy_input_fn) and head._Head
"""
KERAS_MODEL = """
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[4])])
model.compile("sgd", "mse")
assert isinstance(tf.keras.estimator.model_to_estimator(model), tf.estimator.Estimator)
"""


@pytest.mark.slow
@needs_keras_3
@pytest.mark.parametrize(
    "first",
    [
        "from library.estimator import install; install()",
        "import tensorflow; from library.estimator import install; install(); install()",
        "import library.estimator, tensorflow_estimator; library.estimator.install()",
        "from library.estimator import install; install(); import tensorflow_estimator",
    ],
)
def test_after_install_the_estimator_has_its_old_names(first, forked_python):
    run = forked_python if first.startswith("import tensorflow;") else python
    assert "all there" in run(f"{first}\n{OLD_IMPORTS}{KERAS_MODEL}\nprint('all there')")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_ESTIMATOR, reason="for TensorFlow 2.15")
def test_install_does_nothing_where_tensorflow_has_an_estimator():
    code = "import sys, tensorflow as tf; old, path = tf.estimator, list(sys.meta_path)\n"
    code += "from library.estimator import install; install()\n"
    code += "print(tf.estimator is old, sys.meta_path == path)"
    assert "True True" in python(code).splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("as_module", [False, True])
def test_a_program_runs_unedited_with_its_arguments(tmp_path, as_module):
    (tmp_path / "beside.py").write_text("WORDS = 'found'")
    (tmp_path / "old.py").write_text(
        "import sys, beside, tensorflow as tf\n"
        "if __name__ == '__main__':\n"
        "    print(tf.estimator.Estimator.__name__, beside.WORDS, *sys.argv[1:], sys.argv[0])\n"
        "    sys.exit(3)\n"
    )
    words = ["-m", "old"] if as_module else [str(tmp_path / "old.py")]
    process = old_program(*words, "--x", "-m", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert process.returncode == 3, process.stderr
    assert process.stdout.splitlines()[-1] == f"EstimatorV2 found --x -m {tmp_path / 'old.py'}"


TPU_PROGRAM = """
import sys, tensorflow as tf
from tensorflow.python.tpu import tpu_embedding
tf1, tpu = tf.compat.v1, tf.compat.v1.estimator.tpu

def model_fn(features, labels, mode, params):
    weights = tf1.get_variable("weights", [4, 1])
    loss = tf.reduce_mean((features @ weights - labels) ** 2)
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn(params):
    batch = tf.ones([params["batch_size"], 4]), tf.ones([params["batch_size"], 1])
    return tf.data.Dataset.from_tensors(batch).repeat()

config = tpu.RunConfig(model_dir=sys.argv[1])
model = tpu.TPUEstimator(model_fn, config=config, use_tpu=False, train_batch_size=8)
print("steps:", model.train(input_fn, max_steps=4).get_variable_value("global_step"))
try:
    tpu_embedding.TPUEmbedding()
except NotImplementedError as error:
    print(error)
"""


@pytest.mark.slow
@needs_keras_3
def test_a_tpu_estimator_runs_on_a_cpu_and_a_tpu_is_refused_in_words(tmp_path):
    (tmp_path / "old.py").write_text(TPU_PROGRAM)
    words = [str(tmp_path / "old.py"), str(tmp_path / "model")]
    process = old_program(*words, PYTHONPATH=str(ROOT))
    assert process.returncode == 0, process.stderr
    refused = "tpu.tpu_embedding.TPUEmbedding: a TPU needs TensorFlow 2.15."
    assert process.stdout.splitlines()[-2:] == ["steps: 4", refused]


@pytest.mark.slow
def test_a_program_is_not_run_in_vain(tmp_path):
    process = old_program(PYTHONPATH=str(ROOT))
    assert process.returncode == 2
    assert process.stderr == "usage: python -m library.estimator [-m MODULE | SCRIPT] [ARGS]\n"
    process = old_program("nosuch.py", PYTHONPATH=str(ROOT))
    assert (process.returncode, process.stderr) == (2, "error: there is no nosuch.py\n")
    if not HAS_ESTIMATOR:
        (tmp_path / "old.py").write_text("print('started')\nimport tensorflow")
        path = str(tmp_path / "old.py")
        process = old_program(path, PYTHONPATH=str(ROOT), TF_USE_LEGACY_KERAS="0")
        assert process.returncode == 1
        assert "TensorFlow has already chosen Keras 3" in process.stderr.splitlines()[-1]


def old_program(*words: str, **environment: str) -> subprocess.CompletedProcess:
    clean = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    return subprocess.run(
        [sys.executable, "-m", "library.estimator", *words],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=1200,
    )
