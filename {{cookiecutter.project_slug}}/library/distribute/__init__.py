"""TF_CONFIG, devices, roles of a cluster, a cluster on this machine."""

from typing import TYPE_CHECKING

from library.util import lazy

if TYPE_CHECKING:
    from library.distribute.cluster import Cluster, WatchHook, end_unless_there, serve
    from library.distribute.cluster import wait_until_gone, wait_until_there
    from library.distribute.local_cluster import run_local_cluster
    from library.distribute.parallel import Parallel, average_over_replicas, num_replicas
    from library.distribute.parallel import position_in_batch, split_of_batch
else:
    __getattr__ = lazy(__name__, __file__)
