"""Pools on a Ray cluster: ranks in the order of nodes and devices, one set of processes per node."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.host import HostFacts, HostsRequest
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks
from rl_compat.distributed.ray import HostProcesses, RemoteHost, _interfaces
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Interface

pytest.importorskip("ray")


class Located:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @dispatch(merge=lambda results, shares: list(results))
    def where(self) -> tuple[int, str, list[int]]:
        import ray

        assert sum(self.ranks.gather(1)) == self.ranks.size
        return self.ranks.rank, ray.get_runtime_context().get_node_id(), list(map(int, ray.get_gpu_ids()))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from fakes.cluster import two_nodes  # the processes import this file without the folder of the tests

    with two_nodes(cores=4, gpus=2) as address:
        yield address


@pytest.mark.slow
def test_a_pool_of_two_nodes_has_its_processes_on_both(address: str) -> None:
    pool = ResourcePool(gpus=[], num_processes=2, num_nodes=2, address=address)
    group: WorkerGroup[Located] = pool.start(lambda place: Located(place.ranks))
    found = group.run(Located.where).result()
    pool.close()
    assert [rank for rank, _, _ in found] == [0, 1, 2, 3]
    nodes = [node for _, node, _ in found]
    assert sorted(nodes.count(node) for node in set(nodes)) == [2, 2]


@pytest.mark.slow
def test_processes_of_a_node_have_one_gpu_each_in_the_order_of_ranks(address: str) -> None:
    request = HostsRequest(gpus=(0, 1), per_node=2, num_nodes=1, address=address, on_gpu=True)
    started = HostProcesses(request, None)
    assert [host.facts.device for host in started.hosts] == [0, 1]
    started.end(started.hosts)
    started.free_devices()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"per_node": 3}, {"num_nodes": 3}, {"nodes": ("192.0.2.77",)}])
def test_a_pool_that_the_cluster_cannot_hold_is_refused_at_once(address: str, changes: dict[str, object]) -> None:
    values = {"gpus": (0,), "per_node": 1, "num_nodes": 1, "address": address, "on_gpu": True, **changes}
    with pytest.raises(HardwareError, match="cluster"):
        HostProcesses(HostsRequest(**values), None)


def host(number: int, interface: str, rank: int) -> RemoteHost:
    own = Interface(name=interface, address=f"10.0.0.{number}")
    others = (Interface(name="lo", address="127.0.0.1"), Interface(name="docker0", address="172.17.0.1"))
    facts = HostFacts(
        node=own.address, device=0, name="host", pid=os.getpid(), log="", interfaces=(others[0], own, others[1])
    )
    return RemoteHost(actor=None, facts=facts, rank=rank)


def test_each_node_is_told_its_own_interface_and_one_node_none() -> None:
    """DIST-12."""
    assert _interfaces([host(2, "eth0", 0), host(3, "ens5", 1)]) == {"10.0.0.2": "eth0", "10.0.0.3": "ens5"}
    assert _interfaces([host(2, "eth0", 0), host(2, "eth0", 1)]) == {}
    lost = RemoteHost(actor=None, facts=HostFacts(node="10.0.0.3", device=0, name="b", pid=1, log=""), rank=1)
    with pytest.raises(HardwareError, match=r"10\.0\.0\.3"):
        _interfaces([host(2, "eth0", 0), lost])
