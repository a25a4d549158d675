"""Which levers are pulled when memory is short, and what is offered when none helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import (
    GTX_1660,
    LLAMA_7B,
    P40,
    PPO,
    QWEN_05B,
    T4,
    fits,
    gpu,
    host,
    machine,
    only_pool,
    planned,
    with_plan,
)

from rl_compat.config.types import (
    AlgorithmConfig,
    ModelConfig,
    PlanConfig,
    RunConfig,
)
from rl_compat.errors import DoesNotFitError
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.units import GIB


def test_levers_are_pulled_in_the_order_of_their_cost() -> None:
    """Sleep and checkpointing before offload; what is not needed stays off."""
    roomy = planned(PPO, machine(gpu("Tesla P40", (6, 1), memory_bytes=48 * GIB)), QWEN_05B)
    tight = planned(PPO, machine(P40), QWEN_05B)
    small = planned(PPO, machine(gpu("Tesla P40", (6, 1), memory_bytes=14 * GIB)), QWEN_05B)

    assert not roomy.roles["actor"].offload_optimizer
    assert tight.roles["actor"].gradient_checkpointing
    assert (tight.roles["actor"].offload_idle, tight.roles["actor"].offload_optimizer) == (False, False)
    assert small.roles["actor"].gradient_checkpointing
    assert small.roles["actor"].offload_optimizer
    assert only_pool(small).host_bytes > 0
    assert "`actor_update`" in only_pool(small).choices["offload_optimizer"].reason
    assert all(fits(plan) for plan in (roomy, tight, small))


def test_what_does_not_fit_is_refused_with_both_numbers_and_changes_that_do() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        planned(PPO, machine(GTX_1660), QWEN_05B)

    for fact in ("`actor_update`", "5.4 GiB", "6.0 GiB of 6.0 GiB", "NVIDIA GeForce GTX 1660 Ti"):
        assert fact in caught.value.message
    assert caught.value.hint is not None
    assert "`model.lora_rank=16` (" in caught.value.hint
    assert "`model.path=smollm2-135m` (" in caught.value.hint


def test_a_change_that_is_offered_really_fits() -> None:
    config = replace(PPO, model=ModelConfig(lora_rank=16))

    assert fits(planned(config, machine(GTX_1660), QWEN_05B))
    assert fits(planned(PPO, machine(GTX_1660), SMOLLM2_135M))


def test_settings_that_waste_memory_are_named_first() -> None:
    config = with_plan(gradient_checkpointing=False, micro_batch_size=32)

    with pytest.raises(DoesNotFitError) as caught:
        planned(config, machine(T4), SMOLLM2_135M)

    assert caught.value.hint is not None
    assert caught.value.hint.startswith("use `plan.gradient_checkpointing=auto plan.micro_batch_size=auto` (")


def test_optimizer_offload_beyond_the_containers_limit_is_refused_with_both_numbers() -> None:
    """A-MEM-05: 12 bytes for each of 7e9 parameters, 32 GiB in the container."""
    hardware = machine(gpu("NVIDIA H100", (9, 0), memory_bytes=80 * GIB))
    container = host(1024 * GIB, ram_limit_bytes=32 * GIB, ram_available_bytes=32 * GIB)
    config = RunConfig(
        algorithm=AlgorithmConfig(name="grpo", group_size=4), plan=PlanConfig(offload_optimizer=True, memory_fraction=1)
    )

    with pytest.raises(DoesNotFitError) as caught:
        planned(config, replace(hardware, host=container), LLAMA_7B)

    for fact in ("`host memory`", "75.8 GiB", "32.0 GiB"):
        assert fact in caught.value.message
    assert caught.value.hint is not None
    assert "`model.lora_rank=16`" in caught.value.hint
