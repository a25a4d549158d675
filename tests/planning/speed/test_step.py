"""What the devices of a pool exchange in a step, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import PPO, recorded

from rl_compat.config.types import (
    AlgorithmConfig,
    PlanConfig,
    PoolConfig,
    ReplayConfig,
    RunConfig,
    SamplesConfig,
    TrainerConfig,
)
from rl_compat.planning.cluster import Cluster
from rl_compat.planning.fit import solve_pools
from rl_compat.planning.pools import PoolRequest
from rl_compat.planning.run import run_plan
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.rates import UNKNOWN_NETWORK, LinkRate, network_link
from rl_compat.planning.speed.step import transfers
from rl_compat.planning.types import KeptWhole, Plan, PoolPlan
from rl_compat.planning.workload import run_requests, run_workload

GRPO = RunConfig(
    algorithm=AlgorithmConfig(name="grpo", group_size=4), trainer=TrainerConfig(batch_size=32, mini_batch_size=8)
)
PARAMETERS = SMOLLM2_135M.num_parameters


def plan_of(
    config: RunConfig,
    recording: str,
    network: LinkRate = UNKNOWN_NETWORK,
    shape: ModelShape = SMOLLM2_135M,
    **settings: object,
) -> Plan:
    changed = replace(config, plan=PlanConfig(**settings))  # type: ignore[arg-type]
    workload = run_workload(changed, {"actor": shape})
    nodes = (recorded(recording),) * changed.plan.num_nodes
    return run_plan(changed, workload, Cluster(nodes=nodes, network=network))


def moved(pool: PoolPlan) -> dict[tuple[str, str], int]:
    return {(item.phase, item.name): item.num_bytes for item in pool.transfers}


def test_copies_on_two_devices_exchange_the_gradients_of_each_optimizer_step() -> None:
    pool = plan_of(GRPO, "p40_two", num_devices=2).pools["main"]

    assert moved(pool) == {("actor_update", "gradients"): 4 * 2 * 4 * PARAMETERS // 2}
    (transfer,) = pool.transfers
    assert transfer.seconds == pytest.approx(transfer.num_bytes / (16 * 0.985e9 * 0.75))


def test_responses_of_earlier_steps_are_learned_from_and_not_generated() -> None:
    once = plan_of(GRPO, "p40_two", num_devices=2).pools["main"]
    half_again = replace(GRPO, samples=SamplesConfig(reuse=2, replay=ReplayConfig(draws=0.5)))
    drawn = plan_of(half_again, "p40_two", num_devices=2).pools["main"]

    factors = {name: seconds / once.phase_seconds[name] for name, seconds in drawn.phase_seconds.items()}
    assert factors == {"rollout": 1.0, "logprobs": pytest.approx(1.5), "actor_update": pytest.approx(1.5)}
    assert moved(drawn) == {("actor_update", "gradients"): 6 * 2 * 4 * PARAMETERS // 2}


@pytest.mark.parametrize("kept", ["none", "weights", "all"])
def test_shards_are_exchanged_in_every_micro_batch_unless_they_are_kept_whole_in_between(kept: KeptWhole) -> None:
    config = replace(GRPO, plan=PlanConfig(num_devices=2, num_shards=2, micro_batch_size=4))
    workload = run_workload(config, {"actor": SMOLLM2_135M})
    pool = PoolRequest(requests=run_requests(config))
    decided, found = solve_pools(workload, (recorded("p40_two"),), {"main": pool})["main"]
    changed = replace(found, levers=replace(found.levers, kept_whole=kept))
    made = transfers({"main": (decided, changed)}, "main", UNKNOWN_NETWORK)

    layers, updates, micro_batches = SMOLLM2_135M.linear_parameters, 4, 4 * (16 // 4)
    scored = 64 // 4 if kept == "none" else 1
    gathered = micro_batches * (PARAMETERS + layers) if kept == "none" else updates * PARAMETERS
    assert found.levers.kept_whole == "all"
    assert {(item.phase, item.name): item.num_bytes for item in made} == {
        ("rollout", "handover"): 4 * PARAMETERS // 2,
        ("logprobs", "weights"): scored * 4 * PARAMETERS // 2,
        ("actor_update", "weights"): gathered * 4 // 2,
        ("actor_update", "gradients"): (updates if kept == "all" else micro_batches) * 4 * PARAMETERS // 2,
    }


def test_devices_that_compute_together_sum_activations_and_gather_only_the_ends() -> None:
    shape = replace(SMOLLM2_135M, num_heads=8, num_kv_heads=4)
    pool = plan_of(GRPO, "p40_two", shape=shape, num_devices=2, tensor_parallel=2, micro_batch_size=4).pools["main"]

    found, layers = moved(pool), SMOLLM2_135M.linear_parameters
    tokens = 128 * GRPO.data.max_prompt_length + 128 * GRPO.data.max_response_length
    assert found["logprobs", "activations"] == 2 * 30 * 576 * tokens * 4
    assert found["logprobs", "weights"] == 4 * (PARAMETERS - layers) // 2


def test_a_rollout_on_another_pool_gets_the_weights_once_per_step() -> None:
    config = replace(GRPO, pools={"generate": PoolConfig(roles=("rollout",))})
    plan = plan_of(config, "p40_two")

    assert moved(plan.pools["main"]) == {}
    assert moved(plan.pools["generate"]) == {("rollout", "handover"): 4 * PARAMETERS}


def test_between_nodes_the_network_decides() -> None:
    unknown = plan_of(GRPO, "h100_eight", num_devices=8, num_nodes=2).pools["main"]
    known = plan_of(GRPO, "h100_eight", network_link(100), num_devices=8, num_nodes=2).pools["main"]

    assert unknown.num_ranks == known.num_ranks == 16
    assert [item.seconds for item in unknown.transfers] == [None]
    (transfer,) = known.transfers
    assert transfer.seconds == pytest.approx(transfer.num_bytes / (100e9 / 8 * 0.75))


def test_the_placement_is_compared_with_one_device_and_with_a_pool_for_frozen_models() -> None:
    placement = plan_of(PPO, "p40_two", num_devices=2).pools["main"].choices["placement"]

    assert placement.value == "one pool of 2" and not placement.asked
    assert [item.value for item in placement.rejected] == ["one device", "`reference` on a device of their own"]
    assert all(item.works and "s a step" in item.reasons[0] for item in placement.rejected)


def test_two_cards_that_are_slower_than_one_are_noted() -> None:
    """A tiny batch over a narrow link: the gradients take longer than the half of the work that a card saves."""
    two = recorded("p40_two")
    narrow = replace(two, devices=tuple(replace(device, pcie_width=1) for device in two.devices))
    config = replace(
        GRPO,
        plan=PlanConfig(num_devices=2),
        trainer=TrainerConfig(batch_size=2, mini_batch_size=2),
        data=replace(GRPO.data, val_files=(), max_prompt_length=16, max_response_length=16),
    )
    plan = run_plan(config, run_workload(config, {"actor": SMOLLM2_135M}), narrow)
    wide = plan_of(GRPO, "v100_four_nvlink", num_devices=2)

    assert any("one device" in note and "PCIe x1" in note for note in plan.notes)
    assert not any("one device" in note for note in wide.notes)


def test_a_pool_of_slow_cards_that_keeps_the_others_waiting_is_noted() -> None:
    config = replace(PPO, pools={"score": PoolConfig(roles=("reference",))})
    plan = run_plan(config, run_workload(config, {"actor": SMOLLM2_135M}), recorded("mixed_p40_a100"))
    placement = plan.pools["main"].choices["placement"]

    assert (placement.value, placement.asked) == ("main 1, score 1", True)
    assert [item.value for item in placement.rejected] == ["all on `main`"]
    assert any("all on `main`" in note and "`reference`" in note for note in plan.notes)


def test_a_plan_of_one_device_has_no_estimates() -> None:
    pool = plan_of(GRPO, "p40_two").pools["main"]

    assert (pool.transfers, pool.phase_seconds) == ((), {})
    assert "placement" not in pool.choices
