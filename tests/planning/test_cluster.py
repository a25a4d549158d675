"""Plans for clusters that a file describes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import PPO, RECORDINGS, machine, recorded, with_plan
from fakes.nodes import node

from rl_compat.config.types import PoolConfig
from rl_compat.errors import RLCompatError
from rl_compat.hardware.recording import save_recording
from rl_compat.planning.cluster import Cluster, is_cluster, load_cluster
from rl_compat.planning.run import run_plan
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import run_workload
from rl_compat.units import GIB

H100 = """
network_gbits = 400
[[nodes]]
count = 2
gpus = "8 x h100-sxm"
host_memory = "1TiB"
num_cores = 96
"""
MIXED = """
[[nodes]]
gpus = ["4 x p40", "1 x a100-pcie-40"]
host_memory = "128GiB"
"""


def written(folder: Path, text: str, name: str = "cluster.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def loaded(folder: Path, text: str) -> Cluster:
    return load_cluster(written(folder, text), machine())


def plan_for(config: object, cluster: Cluster) -> Plan:
    return run_plan(config, run_workload(config, {"actor": SMOLLM2_135M}), cluster)  # type: ignore[arg-type]


def test_nodes_of_cards_have_their_memory_and_links(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, H100)

    assert [len(found.devices) for found in cluster.nodes] == [8, 8]
    assert {link.kind for link in cluster.nodes[0].links} == {"nvlink"}
    assert (cluster.nodes[0].host.ram_total_bytes, cluster.nodes[0].host.num_cores) == (1024 * GIB, 96)
    assert cluster.network.bytes_per_second == pytest.approx(37.5e9)


def test_cards_of_a_node_are_numbered_as_cuda_does(tmp_path: Path) -> None:
    (only,) = loaded(tmp_path, MIXED).nodes

    assert [device.name for device in only.devices] == ["A100-PCIE-40GB", *["Tesla P40"] * 4]
    assert [device.index for device in only.devices] == [0, 1, 2, 3, 4]
    assert {link.kind for link in only.links} == {"pcie_host_bridge"} and len(only.links) == 10


def test_eight_h100_on_each_of_two_nodes_are_one_pool(tmp_path: Path) -> None:
    plan = plan_for(with_plan(num_devices=8, num_nodes=2), loaded(tmp_path, H100))
    pool = plan.pools["main"]

    assert (pool.num_ranks, pool.nodes, pool.profile) == (16, (0, 1), "hopper")
    assert {transfer.link.partition(",")[0] for transfer in pool.transfers} == {"network"}


def test_an_a100_trains_and_four_p40_score(tmp_path: Path) -> None:
    config = replace(PPO, pools={"score": PoolConfig(roles=("reference",), num_devices=4)})
    plan = plan_for(config, loaded(tmp_path, MIXED))

    assert plan.pools["main"].devices == ("cuda:0",)
    assert plan.pools["score"].devices == ("cuda:1", "cuda:2", "cuda:3", "cuda:4")
    assert (plan.roles["actor"].compute_dtype, plan.roles["reference"].compute_dtype) == ("bf16", "fp32")


def test_a_pool_takes_the_first_nodes_on_which_its_devices_are_free(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, '[[nodes]]\ngpus = "2 x a100-pcie-40"\n[[nodes]]\ncount = 2\ngpus = "2 x p40"\n')
    pools = {"score": PoolConfig(roles=("reference",), num_devices=2, num_nodes=2)}
    plan = plan_for(replace(with_plan(num_devices=2), pools=pools), cluster)

    assert (plan.pools["main"].nodes, plan.pools["score"].nodes) == ((0,), (1, 2))
    assert plan.pools["score"].device_name == "Tesla P40"
    with pytest.raises(RLCompatError, match="3 x 2"):
        plan_for(replace(PPO, pools={"score": replace(pools["score"], num_nodes=3)}), cluster)


def test_pools_on_different_nodes_do_not_share_a_host(tmp_path: Path) -> None:
    cluster = loaded(tmp_path, '[[nodes]]\ncount = 2\ngpus = "1 x p40"\nhost_memory = "64GiB"\nnum_cores = 8\n')
    pools = {"score": PoolConfig(roles=("reference",))}
    plan = plan_for(replace(with_plan(offload_optimizer=True), pools=pools), cluster)

    assert plan.pools["main"].host_bytes > 0
    assert (plan.pools["main"].nodes, plan.pools["score"].nodes) == ((0,), (1,))


def test_a_file_can_be_json_with_recordings(tmp_path: Path) -> None:
    table = {"nodes": [{"recording": str(RECORDINGS / "p40_two.json"), "host_memory": "32GiB"}]}
    cluster = load_cluster(written(tmp_path, json.dumps(table), "cluster.json"), machine())

    assert [device.name for device in cluster.nodes[0].devices] == ["Tesla P40", "Tesla P40"]
    assert cluster.nodes[0].host.ram_available_bytes == 32 * GIB
    assert cluster.network.bytes_per_second is None


def test_a_recording_is_a_cluster_if_it_has_nodes(tmp_path: Path) -> None:
    two, alone, together = recorded("p40_two"), tmp_path / "alone.json", tmp_path / "together.json"
    save_recording(two, alone)
    save_recording(replace(two, nodes=(node(2, two), node(3, two))), together)

    assert (is_cluster(alone), is_cluster(together)) == (False, True)
    assert [len(found.devices) for found in load_cluster(together, machine()).nodes] == [2, 2]


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "no nodes"),
        ("nodes = 3", "no nodes"),
        ("[[nodes]]\ngpu = '8 x h100-sxm'", "`gpu`"),
        ("[[nodes]]\ncount = 2", "neither"),
        ("[[nodes]]\ngpus = []", "no `gpus`"),
        ("[[nodes]]\ngpus = '8 x h1000'", "`h1000`"),
        ("[[nodes]]\ngpus = '1 x p40'\ncount = 0", "`count`"),
        ("[[nodes]]\ngpus = '1 x p40'\nnum_cores = 'many'", "`num_cores`"),
        ("network_gbits = 'fast'\n[[nodes]]\ngpus = '1 x p40'", "`network_gbits`"),
        ("[[nodes]]\nrecording = 'nowhere.json'", "nowhere.json"),
        ("nodes = [", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_fact(text: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(RLCompatError) as caught:
        loaded(tmp_path, text)

    assert fact in caught.value.message and caught.value.exit_code == 2
