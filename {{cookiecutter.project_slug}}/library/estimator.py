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

import importlib.util
import logging
import os
import sys
import types
from typing import Any

from library.errors import UserError

SUPPORTED = ((2, 15), (2, 21))


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

    def filter(self, record: logging.LogRecord) -> bool:
        if "is deprecated" not in str(record.msg) or not record.args:
            return True
        place, instead = str(record.args[0]), str(record.args[-1])
        inside = any(package in place for package in self.PACKAGES)
        return not inside and not instead.startswith("Use tf.keras instead")


def _init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
    """Fill the fields of a RunConfig that runs under a distribution strategy.

    Args:
        config: the RunConfig; its `train_distribute`, `eval_distribute` and
            `experimental_distribute` are as the user gave them.
        tf_config: the content of the environment variable TF_CONFIG.

    Raises:
        ValueError: a strategy is given twice, or it asks for all-reduce across machines.
    """
    either = config._experimental_distribute
    for field in ("train_distribute", "eval_distribute") if either else ():
        if getattr(either, field):
            if getattr(config, f"_{field}"):
                raise ValueError(
                    f"Either `{field}` or `experimental_distribute.{field}` can be set, not both."
                )
            setattr(config, f"_{field}", getattr(either, field))

    jobs = tf_config.get("cluster", {})
    remote = either and either.remote_cluster
    if config._train_distribute and (remote or (jobs and "master" not in jobs)):
        raise ValueError(
            "A distribution strategy across machines is not supported: leave `train_distribute` "
            "unset, and TF_CONFIG gives you parameter servers; or unset TF_CONFIG, and the "
            "strategy uses the devices of this machine."
        )
    config._distribute_coordinator_mode = None
    config._init_distributed_setting_from_environment_var(tf_config)
    config._maybe_overwrite_session_config_for_distributed_training()


def _should_run_distribute_coordinator(config: Any) -> bool:
    """All-reduce across machines is what the coordinator is for: `_init_run_config` refuses it."""
    return False


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
    estimator_training = types.ModuleType("tensorflow.python.distribute.estimator_training")
    estimator_training.init_run_config = _init_run_config
    estimator_training.should_run_distribute_coordinator = _should_run_distribute_coordinator
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
