"""The devices and processes that share the work of a training."""

import dataclasses
import os
import warnings

import tensorflow as tf

from library.distribute.cluster import Cluster
from library.util import UserError


@dataclasses.dataclass(frozen=True)
class Parallel:
    """How a batch is divided."""

    cluster: Cluster
    devices: list[str]  # of this process
    sync: bool  # whether all workers of the cluster share each batch

    @classmethod
    def of(cls, cluster: Cluster, devices: int | str, *, sync_replicas: bool) -> "Parallel":
        """What this process has to do.

        Args:
            cluster: that it is in.
            devices: how many GPUs, or `all`. Without a GPU, the CPU is cut into so many devices,
                which shows how a program behaves, and is no faster.
            sync_replicas: with parameter servers, whether workers share each batch.

        Raises:
            UserError: the cluster, or this machine, does not have what is asked for.
        """
        if sync_replicas and not cluster.has_servers:
            raise UserError("sync_replicas: TF_CONFIG has no parameter servers (ps)")
        names = _devices(1 if cluster.is_evaluator else devices)
        on_cpus = cluster.all_reduce and names[0] == "/cpu:0"
        if len(names) > 1 and (cluster.has_servers or on_cpus):
            raise UserError("devices: on a CPU, or with parameter servers, each worker trains on 1")
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
            seen = _gpus()[: len(self.devices)]
            tf.config.set_visible_devices(seen, "GPU")  # it takes all that it sees
            return tf.distribute.MultiWorkerMirroredStrategy()
        elif len(self.devices) > 1:
            return _mirrored(self.devices)
        return None

    @property
    def num_sharing(self) -> int:
        """The processes that share each batch."""
        return self.cluster.num_workers if self.sync else 1

    @property
    def batch_parts(self) -> int:
        """Into which a batch is cut."""
        return len(self.devices) * self.num_sharing

    @property
    def session_config(self) -> tf.compat.v1.ConfigProto | None:
        """For RunConfig; None: its own, which in a cluster keeps workers apart."""
        if len(self.devices) == 1:
            return None
        # Without the number of CPUs, a session with a strategy for several would hang for ever.
        cpus = len(self.devices) if self.devices[0].startswith("/cpu") else 1
        return tf.compat.v1.ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=True)


def _gpus() -> list[tf.config.PhysicalDevice]:
    return tf.config.list_physical_devices("GPU")


def _devices(devices: int | str) -> list[str]:
    gpus = len(_gpus())
    count = max(gpus, 1) if devices == "all" else int(devices)
    if gpus and count > gpus:
        raise UserError(f"devices: {count} is more than the {gpus} GPUs of this machine")
    return [f"/{'gpu' if gpus else 'cpu'}:{number}" for number in range(count)]


def _mirrored(names: list[str]) -> tf.distribute.MirroredStrategy:
    if names[0].startswith("/gpu"):
        reduction = tf.distribute.NcclAllReduce()
    else:
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration() for _ in names]
        tf.config.set_logical_device_configuration(cpu, parts)
        reduction = tf.distribute.ReductionToOneDevice()
    # TensorFlow's own choice of a reduction is not for the graph of an Estimator.
    return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)
