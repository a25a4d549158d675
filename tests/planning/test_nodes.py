"""Pools on the nodes of a cluster are planned for the cards of those nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.doctor import machine
from fakes.facts import facts
from fakes.machines import QWEN_05B
from fakes.nodes import node

from rl_compat.config.types import AlgorithmConfig, PlanConfig, PoolConfig, RewardConfig, RunConfig
from rl_compat.errors import HardwareError
from rl_compat.hardware.nodes import least, nodes_with
from rl_compat.hardware.types import Hardware, Node
from rl_compat.planning.run import run_plan
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import run_workload
from rl_compat.units import GIB

HEAD = machine("server_no_gpu")
CONFIG = RunConfig(algorithm=AlgorithmConfig(name="grpo", group_size=4), reward=RewardConfig(model="a reward model"))
BARE = node(1, HEAD, num_gpus=0)


def planned(*nodes: Node, pools: dict[str, PoolConfig] | None = None, **plan: object) -> Plan:
    config = replace(CONFIG, plan=PlanConfig(address="auto", **plan), pools=pools or {})  # type: ignore[arg-type]
    workload = run_workload(config, {"actor": QWEN_05B, "reward": QWEN_05B})
    return run_plan(config, workload, replace(HEAD, nodes=nodes))


def with_free_memory(hardware: Hardware, gib: int) -> Hardware:
    devices = tuple(replace(device, memory_free_bytes=gib * GIB) for device in hardware.devices)
    return replace(hardware, devices=devices)


def test_a_controller_without_a_gpu_plans_for_the_nodes_that_have_one() -> None:
    main = planned(BARE, node(2), node(3), num_devices=1, num_nodes=2).pools["main"]
    assert main.nodes == (1, 2)
    assert main.num_ranks == 2
    assert (main.device, "H100" in main.device_name) == ("cuda:0", True)


def test_the_node_with_the_least_memory_limits_a_pool() -> None:
    free = with_free_memory(machine("h100"), 50)
    main = planned(node(2), node(3, free), num_devices=1, num_nodes=2).pools["main"]
    assert main.memory_available_bytes == int(50 * GIB * 0.9)
    assert least([machine("h100"), free]).devices[0].memory_free_bytes == 50 * GIB


def test_nodes_with_different_cards_are_not_one_pool() -> None:
    with pytest.raises(HardwareError) as error:
        planned(node(2), node(3, "a100"), num_devices=1, num_nodes=2)
    names = {machine(name).devices[0].name for name in ("h100", "a100")}
    assert all(name in error.value.message for name in names)
    assert "main" in facts(error.value.message)


def test_pools_take_the_nodes_of_their_cards() -> None:
    plan = planned(node(2, "a100"), node(3, "p40"), pools={"score": PoolConfig(roles=("reward",))})
    assert (plan.pools["main"].nodes, plan.pools["score"].nodes) == ((0,), (1,))
    assert (plan.roles["actor"].compute_dtype, plan.roles["reward"].compute_dtype) == ("bf16", "fp32")


def test_more_nodes_than_the_cluster_has_are_refused() -> None:
    with pytest.raises(HardwareError) as error:
        planned(node(2), device="cpu", num_nodes=2)
    assert {"main", "2", "1"} <= facts(error.value.message)


def test_a_pool_of_a_program_takes_the_first_nodes_that_have_its_gpus_and_the_same_cards() -> None:
    nodes = (BARE, node(2, "a100"), node(3), node(4))
    taken = nodes_with(nodes, gpus=[0], num_processes=1, num_nodes=2)
    assert [found.address for found in taken] == ["10.0.0.3", "10.0.0.4"]
    assert [found.address for found in nodes_with(nodes, gpus=[], num_processes=2, num_nodes=1)] == ["10.0.0.1"]
    for wanted in ({"gpus": [0], "num_nodes": 3}, {"gpus": [0, 1], "num_nodes": 1}):
        with pytest.raises(HardwareError) as error:
            nodes_with(nodes, num_processes=1, **wanted)  # type: ignore[arg-type]
        assert "10.0.0.2" in error.value.message
