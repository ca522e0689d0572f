"""The Estimator API of TensorFlow 2.15 on every TensorFlow from 2.15 to 2.21.

    from library.estimator import Estimator, EstimatorSpec, RunConfig, train_and_evaluate

TensorFlow 2.16 dropped `tf.estimator`, but the official `tensorflow-estimator` 2.15.0 package
still runs: all that it misses are one module that connects RunConfig with distribution
strategies, three that only a TPU needs, and an entry in the tables of the export decorator.
This module puts them in their places, where TensorFlow lacks them, and then offers the 76 public
names of `tf.estimator`. On TensorFlow 2.15 nothing is missing, and nothing is put in.

The Estimator needs Keras 2, which TensorFlow chooses when it is imported, by the variable
TF_USE_LEGACY_KERAS. Importing anything of `library` or `project` sets it: do so before you import
`tensorflow`.
"""

import copy
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from library.util import UserError

SUPPORTED = ((2, 15), (2, 21))
_CLIENT, _INDEPENDENT = "standalone_client", "independent_worker"
"""How TensorFlow's coordinator runs: as the one client of servers, or once in every process."""


class UnsupportedTensorFlowError(UserError, ImportError):
    """This TensorFlow, or the Keras that it has chosen, cannot run the Estimator."""


def _import_tensorflow() -> types.ModuleType:
    import tensorflow

    oldest, newest = SUPPORTED
    if not oldest <= tuple(map(int, tensorflow.__version__.split(".")[:2])) <= newest:
        raise UnsupportedTensorFlowError(
            f"TensorFlow {tensorflow.__version__} is not supported: the Estimator runs on "
            f"{'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}; install one of these."
        )
    if not importlib.util.find_spec("tensorflow_estimator"):
        raise UnsupportedTensorFlowError(
            "The package tensorflow-estimator is missing: pip install tensorflow-estimator==2.15.0"
        )
    try:
        keras = importlib.import_module(tensorflow.keras.Model.__module__.split(".")[0])
    except ImportError as error:
        raise UnsupportedTensorFlowError(f"TensorFlow finds no Keras 2: {error}") from error
    if not keras.__version__.startswith("2."):
        raise UnsupportedTensorFlowError(
            f"TensorFlow has already chosen Keras {keras.__version__}, and the Estimator needs "
            f"Keras 2: install tf-keras=={'.'.join(tensorflow.__version__.split('.')[:2])}.*, "
            "import library.estimator before tensorflow, and leave TF_USE_LEGACY_KERAS unset or 1."
        )
    return tensorflow


class _UserCanDoNothing(logging.Filter):
    """Drops the deprecation notices that TensorFlow and its Estimator give about themselves.

    TensorFlow logs such a notice with the place of the call first and what to do instead last. It
    is worth showing when the call stands in the user's code, and not on anything of the Estimator,
    which all says the same.
    """

    PACKAGES = tuple(
        os.sep + package + os.sep for package in ("tensorflow", "tensorflow_estimator", "tf_keras")
    )
    HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args
        if "is deprecated" not in str(record.msg) or not isinstance(arguments, tuple):
            return True
        if not arguments:
            return True
        place, instead = str(arguments[0]), str(arguments[-1])
        inside = any(package in place for package in (*self.PACKAGES, self.HERE))
        return not inside and not instead.startswith("Use tf.keras instead")


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Fill the fields of a RunConfig that runs under a distribution strategy.

    Args:
        config: the RunConfig; its `train_distribute`, `eval_distribute` and
            `experimental_distribute` are as the user gave them.
        tf_config: the content of the environment variable TF_CONFIG.

    Raises:
        ValueError: a strategy or a cluster is given twice.
    """
    from tensorflow.python.training.server_lib import ClusterSpec

    either = config._experimental_distribute
    for field in ("train_distribute", "eval_distribute") if either else ():
        if getattr(either, field):
            if getattr(config, f"_{field}"):
                raise ValueError(
                    f"Either `{field}` or `experimental_distribute.{field}` can be set, not both."
                )
            setattr(config, f"_{field}", getattr(either, field))

    cluster, remote = tf_config.get("cluster"), either and either.remote_cluster
    config._distribute_coordinator_mode = None
    if config._train_distribute and remote:
        if cluster:
            raise ValueError(
                "Either `experimental_distribute.remote_cluster` or the cluster of TF_CONFIG can "
                "be set, not both."
            )
        config._distribute_coordinator_mode = _CLIENT
    elif config._train_distribute and cluster and "master" not in cluster:
        config._distribute_coordinator_mode = _INDEPENDENT

    if config._distribute_coordinator_mode:
        # What this task is in the cluster is known when the coordinator runs it: see `_task_of`.
        config._init_distributed_setting_from_environment_var({})
        config._cluster_spec = ClusterSpec(remote or cluster)
    else:
        config._init_distributed_setting_from_environment_var(tf_config)
        config._maybe_overwrite_session_config_for_distributed_training()


def _should_run_distribute_coordinator(config: Any) -> bool:
    """Whether the strategy spans machines: TensorFlow's coordinator then runs the tasks."""
    return getattr(config, "_distribute_coordinator_mode", None) in (_CLIENT, _INDEPENDENT)


def _train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any, executor: type) -> None:
    """Train if this process is a chief or a worker of the cluster, evaluate if the evaluator."""

    def train(task: Any, _: Any, hooks: list[Any]) -> None:
        steps, listeners = train_spec.max_steps, train_spec.saving_listeners
        task.train(train_spec.input_fn, hooks, max_steps=steps, saving_listeners=listeners)

    def evaluate(task: Any, *_: Any) -> None:
        executor(task, train_spec, eval_spec).run_evaluator()

    _run_tasks(estimator, train, train_spec.hooks, evaluate=evaluate)


def _estimator_evaluate(
    estimator: Any, work: Callable[..., Any], hooks: Sequence[Any] | None
) -> dict[str, Any]:
    """Do the work of `Estimator.evaluate` on the cluster, and return the metrics.

    Raises:
        ValueError: each machine would have metrics of its own.
    """
    between_graph = estimator._config._eval_distribute.extended.experimental_between_graph
    if between_graph or estimator._config._distribute_coordinator_mode != _CLIENT:
        raise ValueError(
            "`Estimator.evaluate` runs on one machine: leave `eval_distribute` unset, or call "
            "`train_and_evaluate` and have an evaluator in the cluster."
        )
    return _run_tasks(estimator, work, hooks, kind="eval")


def _run_tasks(
    estimator: Any,
    work: Callable[..., Any],
    hooks: Sequence[Any] | None,
    *,
    kind: str = "train",
    evaluate: Callable[..., Any] | None = None,
) -> Any:
    """Let TensorFlow's coordinator run the tasks of the cluster that this process is there for.

    Args:
        estimator: the Estimator, which is left as it is.
        work: what a chief and a worker do, with (Estimator of the task, its strategy, its hooks).
        hooks: the SessionRunHooks.
        kind: "train" or "eval", whose strategy `work` takes.
        evaluate: what the evaluator does, with the same arguments.

    Raises:
        ValueError: an evaluator would have nothing to do.
    """
    from tensorflow.python.distribute import distribute_coordinator

    config = estimator._config
    is_client = config._distribute_coordinator_mode == _CLIENT
    if evaluate is None and "evaluator" in config.cluster_spec.jobs:
        raise ValueError("An evaluator in the cluster needs `train_and_evaluate`.")

    def as_task(work: Callable[..., Any], kind: str) -> Callable[[Any], Any]:
        def run(strategy: Any) -> Any:
            task = _task_of(estimator, kind, strategy)
            # The tasks of a client are its threads: they would share the hooks.
            shared = is_client and not task._config.is_chief
            return work(task, strategy, [] if shared else list(hooks or []))

        return run

    return distribute_coordinator.run_distribute_coordinator(
        as_task(work, kind),
        getattr(config, f"_{kind}_distribute"),
        evaluate and as_task(evaluate, "eval"),
        config._eval_distribute,
        mode=config._distribute_coordinator_mode,
        cluster_spec=config.cluster_spec if is_client else None,  # None: that of TF_CONFIG
        session_config=copy.deepcopy(config.session_config),  # the coordinator changes it
    )


def _task_of(estimator: Any, kind: str, strategy: Any) -> Any:
    """A copy of the Estimator that is the task of the cluster which the coordinator runs now."""
    from tensorflow.python.distribute import distribute_coordinator_context, multi_worker_util
    from tensorflow.python.training.server_lib import ClusterSpec

    context = distribute_coordinator_context.get_current_worker_context()
    trains = context.distributed_mode  # an evaluator stands apart, and knows no other task
    cluster = context.cluster_spec if trains else ClusterSpec({})
    where = context.task_type, context.task_id  # None, None: one task works for all

    task, config = copy.copy(estimator), copy.copy(estimator._config)
    task._config = config
    setattr(task, f"_{kind}_distribution", strategy)
    setattr(config, f"_{kind}_distribute", strategy)
    config._distribute_coordinator_mode = None  # it is at work already
    config._cluster_spec = cluster
    config._task_type, config._task_id = where
    config._is_chief = context.is_chief
    config._master = config._evaluation_master = context.master_target
    config._num_ps_replicas = len(cluster.as_dict().get("ps", []))
    config._num_worker_replicas = context.num_workers if trains else 0
    config._global_id_in_cluster = 0 if trains else None
    if trains and context.task_type:
        config._global_id_in_cluster = multi_worker_util.id_in_cluster(cluster, *where)
    return task


class _TpuOnly(types.ModuleType):
    """A module whose every name stands for a class that only a TPUEstimator would call."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: Any, **__: Any) -> None:
            raise NotImplementedError(f"{self.__name__}.{name}: a TPU needs TensorFlow 2.15.")

        return type(name, (), {"__init__": refuse})


def _fill_in(module: types.ModuleType) -> None:
    """Put `module` where TensorFlow once had it, unless TensorFlow still has it."""
    parent, _, name = module.__name__.rpartition(".")
    if importlib.util.find_spec(module.__name__) is None:
        sys.modules[module.__name__] = module
        setattr(importlib.import_module(parent), name, module)


def _mend_tensorflow() -> None:
    estimator_training: Any = types.ModuleType("tensorflow.python.distribute.estimator_training")
    estimator_training.init_run_config = _init_run_config
    estimator_training.should_run_distribute_coordinator = _should_run_distribute_coordinator
    estimator_training.train_and_evaluate = _train_and_evaluate
    estimator_training.estimator_train = _run_tasks
    estimator_training.estimator_evaluate = _estimator_evaluate
    _fill_in(estimator_training)
    for name in ("session_support", "tpu_embedding", "tpu_embedding_gradient"):
        _fill_in(_TpuOnly(f"tensorflow.python.tpu.{name}"))

    from tensorflow.python.util import tf_export

    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        # Attribute names of its own: with TensorFlow's, the decorator would rename its hooks.
        tf_export.ESTIMATOR_API_NAME = "estimator"
        tf_export.API_ATTRS["estimator"] = tf_export._Attributes(
            "_estimator_api_names", "_estimator_api_constants"
        )
        tf_export.API_ATTRS_V1["estimator"] = tf_export._Attributes(
            "_estimator_api_names_v1", "_estimator_api_constants_v1"
        )


_import_tensorflow().get_logger().addFilter(_UserCanDoNothing())
_mend_tensorflow()

from tensorflow_estimator._api.v2.estimator import *  # noqa: E402, F403  all the public names

if TYPE_CHECKING:  # the package has no types

    def __getattr__(name: str) -> Any: ...
