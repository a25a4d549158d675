"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def two_nodes(*, cores: int = 2, gpus: int = 0) -> Iterator[str]:
    """The address of a cluster whose nodes have that many logical cores and GPUs."""
    import ray
    from ray.cluster_utils import Cluster

    resources = {"num_cpus": cores, "num_gpus": gpus, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=resources)
    try:
        cluster.add_node(**resources)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
