"""Connects an Estimator with distribution strategies and TF_CONFIG.

TensorFlow 2.15 does this in `tensorflow.python.distribute.estimator_training`, where `seam` puts
this module if TensorFlow lacks it. The coordinator that runs the tasks is still in TensorFlow.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tensorflow.python.distribute.distribute_coordinator import run_distribute_coordinator
from tensorflow.python.distribute.distribute_coordinator_context import get_current_worker_context
from tensorflow.python.distribute.multi_worker_util import id_in_cluster
from tensorflow.python.training.server_lib import ClusterSpec

_CLIENT, _INDEPENDENT = "standalone_client", "independent_worker"
"""How TensorFlow's coordinator runs: as the one client of servers, or once in every process."""

_Work = Callable[..., Any]
_Hooks = Sequence[Any] | None


def init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Fill the fields of a RunConfig that runs under a distribution strategy."""
    either = config._experimental_distribute
    for field in ("train_distribute", "eval_distribute") if either else ():
        if getattr(either, field):
            _refuse_both(f"`{field}`", field, getattr(config, f"_{field}"))
            setattr(config, f"_{field}", getattr(either, field))

    cluster, remote = tf_config.get("cluster"), either and either.remote_cluster
    config._distribute_coordinator_mode = None
    if config._train_distribute and remote:
        _refuse_both("the cluster of TF_CONFIG", "remote_cluster", cluster)
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


def _refuse_both(one: str, other: str, given: Any) -> None:
    if given:
        raise ValueError(f"Either {one} or `experimental_distribute.{other}` can be set, not both.")


def should_run_distribute_coordinator(config: Any) -> bool:
    """Whether the strategy spans machines: TensorFlow's coordinator then runs the tasks."""
    return getattr(config, "_distribute_coordinator_mode", None) in (_CLIENT, _INDEPENDENT)


def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any, executor: type) -> None:
    """Train if this process is a chief or a worker of the cluster, evaluate if the evaluator."""

    def train(task: Any, _: Any, hooks: list[Any]) -> None:
        steps, listeners = train_spec.max_steps, train_spec.saving_listeners
        task.train(train_spec.input_fn, hooks, max_steps=steps, saving_listeners=listeners)

    def evaluate(task: Any, *_: Any) -> None:
        executor(task, train_spec, eval_spec).run_evaluator()

    estimator_train(estimator, train, train_spec.hooks, evaluate=evaluate)


def estimator_evaluate(estimator: Any, work: _Work, hooks: _Hooks) -> Any:
    """Do the work of `Estimator.evaluate` on the cluster, and return the metrics."""
    between_graph = estimator._config._eval_distribute.extended.experimental_between_graph
    if between_graph or estimator._config._distribute_coordinator_mode != _CLIENT:
        raise ValueError(  # each machine would have metrics of its own
            "`Estimator.evaluate` runs on one machine: leave `eval_distribute` unset, or call "
            "`train_and_evaluate` and have an evaluator in the cluster."
        )
    return estimator_train(estimator, work, hooks, kind="eval")


def estimator_train(
    estimator: Any, work: _Work, hooks: _Hooks, kind: str = "train", evaluate: _Work | None = None
) -> Any:
    """Let TensorFlow's coordinator run the tasks of the cluster that this process is there for.

    `work` is what a chief and a worker do, with (Estimator of the task, its strategy, its hooks);
    `evaluate` is what an evaluator does, with the same arguments.
    """
    config = estimator._config
    is_client = config._distribute_coordinator_mode == _CLIENT
    if evaluate is None and "evaluator" in config.cluster_spec.jobs:
        raise ValueError("An evaluator in the cluster needs `train_and_evaluate`.")

    def run(work: _Work, kind: str, strategy: Any) -> Any:
        task = _task_of(estimator, kind, strategy)
        # The tasks of a client are its threads: they would share the hooks.
        shared = is_client and not task._config.is_chief
        return work(task, strategy, [] if shared else list(hooks or []))

    return run_distribute_coordinator(
        partial(run, work, kind),
        getattr(config, f"_{kind}_distribute"),
        evaluate and partial(run, evaluate, "eval"),
        config._eval_distribute,
        mode=config._distribute_coordinator_mode,
        cluster_spec=config.cluster_spec if is_client else None,  # None: that of TF_CONFIG
        session_config=copy.deepcopy(config.session_config),  # the coordinator changes it
    )


def _task_of(estimator: Any, kind: str, strategy: Any) -> Any:
    """A copy of the Estimator that is the task of the cluster which the coordinator runs now."""
    context = get_current_worker_context()
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
        config._global_id_in_cluster = id_in_cluster(cluster, *where)
    return task
