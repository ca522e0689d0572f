"""How the work of a training is divided: devices, processes, replicas, and splits of a batch.

A replica is a copy of the network on a device of its own, under a distribution strategy of
TensorFlow; without one there is one. What a layer does with the examples of a batch does not depend
on how the batch is divided.
"""

import contextlib
import contextvars
import dataclasses
import os
import warnings
from collections.abc import Iterator, Sequence

import tensorflow as tf

from library.distribute.cluster import Cluster
from library.util import UserError

_split = contextvars.ContextVar("split", default=(0, 1))


@dataclasses.dataclass(frozen=True)
class Parallel:
    """How a batch is divided."""

    cluster: Cluster = Cluster()
    devices: Sequence[str] = ("/cpu:0",)  # of this process
    sync: bool = False  # whether all workers of the cluster share each batch

    @classmethod
    def of(cls, cluster: Cluster, devices: int | str, *, sync_replicas: bool) -> "Parallel":
        """The part of this process in a cluster, on so many GPUs, or `all` of them.

        Without a GPU, the CPU is cut into so many devices, which shows how a program behaves, and
        is no faster. With `sync_replicas`, workers of parameter servers share each batch.
        """
        if sync_replicas and not cluster.has_servers:
            raise UserError("sync_replicas: TF_CONFIG has no parameter servers (ps)")
        gpus = len(tf.config.list_physical_devices("GPU"))
        count = max(gpus, 1) if devices == "all" else int(devices)
        count = 1 if cluster.is_evaluator else count
        if gpus and count > gpus:
            raise UserError(f"devices: {count} is more than the {gpus} GPUs of this machine")
        if count > 1 and (cluster.has_servers or (cluster.all_reduce and not gpus)):
            raise UserError("devices: on a CPU, or with parameter servers, each worker trains on 1")
        names = [f"/{'gpu' if gpus else 'cpu'}:{number}" for number in range(count)]
        return cls(cluster, names, sync_replicas or cluster.all_reduce)

    def strategy(self) -> tf.distribute.Strategy | None:
        """For RunConfig; made before TensorFlow is used for anything else.

        In a cluster without parameter servers, it waits until all workers are there.
        """
        # TensorFlow warns of its own use of the options of a dataset.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        if self.cluster.is_evaluator:
            # It stands alone, and RunConfig would ask for a chief in its cluster.
            os.environ.pop("TF_CONFIG")
        elif self.cluster.all_reduce:
            gpus = tf.config.list_physical_devices("GPU")[: len(self.devices)]
            tf.config.set_visible_devices(gpus, "GPU")  # the strategy takes all that it sees
            return tf.distribute.MultiWorkerMirroredStrategy()
        elif len(self.devices) > 1:
            return self._mirrored()
        return None

    def _mirrored(self) -> tf.distribute.MirroredStrategy:
        # TensorFlow's own choice of a reduction is not for the graph of an Estimator.
        reduction = tf.distribute.NcclAllReduce()
        if self.devices[0].startswith("/cpu"):
            (cpu,) = tf.config.list_physical_devices("CPU")
            parts = [tf.config.LogicalDeviceConfiguration() for _ in self.devices]
            tf.config.set_logical_device_configuration(cpu, parts)
            reduction = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(self.devices, cross_device_ops=reduction)

    @property
    def num_sharing(self) -> int:
        """The processes that share each batch."""
        return self.cluster.num_workers if self.sync else 1

    @property
    def batch_parts(self) -> int:
        """The number of parts that a batch is divided into."""
        return len(self.devices) * self.num_sharing

    @property
    def session_config(self) -> tf.compat.v1.ConfigProto | None:
        """For RunConfig; None: its own, which in a cluster keeps workers apart."""
        if len(self.devices) == 1:
            return None
        # Without the number of CPUs, a session with a strategy for several would hang for ever.
        cpus = len(self.devices) if self.devices[0].startswith("/cpu") else 1
        return tf.compat.v1.ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=True)


def num_replicas() -> int:
    return tf.distribute.get_strategy().num_replicas_in_sync


def average_over_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The mean of each tensor over all replicas, with a gradient. Called by every replica.

    `ReplicaContext.all_reduce` would do, but its gradient is not for the graphs of an Estimator.
    """
    tensors = list(tensors)
    if num_replicas() == 1:
        return tensors
    means = _mean(tensors)
    with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": "ReplicaMean"}):
        return tf.identity_n([*tensors, *means])[len(tensors) :]


def _mean(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    def reduce(strategy: tf.distribute.Strategy, values: list) -> list:
        pairs = [(value, value) for value in values]  # what, and where to
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)

    return tf.distribute.get_replica_context().merge_call(reduce, args=(tensors,))


@tf.RegisterGradient("ReplicaMean")
def _gradient_of_mean(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """The losses of all replicas depend on the mean, and each depends on the share of all."""
    half = len(gradients) // 2
    return [*_mean(list(gradients[half:])), *[None] * half]


@contextlib.contextmanager
def split_of_batch(split: int, num_splits: int) -> Iterator[None]:
    """Within the block, the network sees this one of `num_splits` of a replica's share."""
    token = _split.set((split, num_splits))
    try:
        yield
    finally:
        _split.reset(token)


def position_in_batch() -> tuple[tf.Tensor | int, int]:
    """The number of the present split in the batch, and that of all splits on all replicas."""
    split, num_splits = _split.get()
    if num_replicas() == 1:
        return split, num_splits
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return replica * num_splits + split, num_replicas() * num_splits
