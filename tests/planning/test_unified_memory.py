"""Devices that compute in the host's memory: GB10 and Jetson."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import PPO, QWEN_05B, fits, only_pool, planned, recorded, with_plan

from rl_compat.errors import DoesNotFitError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.fit import plan_pools
from rl_compat.planning.pools import PoolRequest
from rl_compat.planning.shapes.known import KNOWN_SHAPES
from rl_compat.planning.workload import run_workload
from rl_compat.units import GIB

RESERVE = 2 * GIB


def with_free(hardware: Hardware, *, cuda: int, host: int) -> Hardware:
    """The machine with so many bytes free by CUDA, and so many available by the system."""
    device = replace(hardware.devices[0], memory_free_bytes=cuda)
    return replace(hardware, devices=(device,), host=replace(hardware.host, ram_available_bytes=host))


@pytest.mark.parametrize("name", ["gb10", "jetson_orin"])
@pytest.mark.parametrize(("cuda", "host"), [(40 * GIB, 50 * GIB), (50 * GIB, 40 * GIB), (None, 40 * GIB)])
def test_the_smaller_of_what_cuda_and_the_system_have_free_is_planned_less_a_reserve(name, cuda, host) -> None:
    """Where CUDA's free memory is not known, it is the total."""
    machine = recorded(name)
    hardware = with_free(machine, cuda=cuda or machine.devices[0].memory_total_bytes, host=host)

    pool = only_pool(planned(PPO, hardware, QWEN_05B))

    assert pool.memory_available_bytes == int((40 * GIB - RESERVE) * 0.9)


@pytest.mark.parametrize("name", ["gb10", "jetson_orin"])
def test_nothing_is_offloaded_from_a_memory_to_itself(name) -> None:
    hardware = with_free(recorded(name), cuda=24 * GIB, host=24 * GIB)
    plan = planned(with_plan(offload_optimizer=True, offload_idle_models=True), hardware, QWEN_05B)
    pool = only_pool(plan)

    assert {(role.offload_idle, role.offload_optimizer) for role in plan.roles.values()} == {(False, False)}
    assert (pool.choices["offload_optimizer"].value, pool.choices["offload_idle_models"].value) == ("off", "off")
    assert pool.host_bytes == pool.peak_bytes <= pool.memory_available_bytes
    assert any("offload" in note for note in pool.notes)


def test_a_model_that_would_fit_only_by_offload_does_not_fit() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        planned(PPO, recorded("gb10"), KNOWN_SHAPES["Qwen/Qwen2.5-7B-Instruct"])

    assert "offload" not in str(caught.value)
    assert "NVIDIA GB10" in caught.value.message


def test_the_cpu_beside_a_device_of_unified_memory_has_what_it_leaves() -> None:
    machine = with_free(recorded("gb10"), cuda=40 * GIB, host=40 * GIB)
    config = replace(PPO, reward=replace(PPO.reward, model="a reward model"))
    workload = run_workload(config, {"actor": QWEN_05B, "reward": QWEN_05B})
    plan = plan_pools(
        workload,
        machine,
        {"train": PoolRequest(devices=(0,)), "score": PoolRequest(devices=())},
        placement={"reward": "score"},
    )

    both = plan.pools["train"].peak_bytes + plan.pools["score"].memory_available_bytes
    assert both == int(40 * GIB * 0.9)
    assert fits(plan)


def test_a_card_with_memory_of_its_own_is_planned_for_that() -> None:
    hardware = recorded("a100")
    pool = only_pool(planned(PPO, hardware, QWEN_05B))

    assert pool.memory_available_bytes == int(hardware.devices[0].memory_free_bytes * 0.9)
