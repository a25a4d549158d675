"""Plans of several pools: each device gets the choices that suit it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, QWEN_05B, fits, machine, only_pool, planned, recorded

from rl_compat.config.types import AlgorithmConfig, PlanConfig, RewardConfig, RunConfig
from rl_compat.errors import HardwareError
from rl_compat.planning.fit import PoolRequest, make_plan, plan_pools
from rl_compat.planning.serialize import from_json, to_json
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import Requests, Workload, run_workload

GRPO = RunConfig(
    algorithm=AlgorithmConfig(name="grpo", group_size=4, kl_loss="k3"), reward=RewardConfig(model="a reward model")
)
MIXED = recorded("mixed_p40_a100")
"`cuda:0` is an A100 and `cuda:1` a P40"
POOLS = {"train": PoolRequest(devices=(0,)), "score": PoolRequest(devices=(1,))}


def workload(config: RunConfig = GRPO) -> Workload:
    return run_workload(config, {"actor": QWEN_05B, "reward": QWEN_05B})


def on_both(placement: dict[str, str], **changes: object) -> Plan:
    values = {"hardware": MIXED, "pools": POOLS, **changes}
    return plan_pools(workload(), placement=placement, **values)  # type: ignore[arg-type]


def test_the_actor_gets_bf16_on_an_a100_and_the_reward_fp32_on_a_p40() -> None:
    plan = on_both({"reward": "score"})
    train, score = plan.pools["train"], plan.pools["score"]

    assert (train.profile, train.devices, train.device_name.count("A100")) == ("ampere", ("cuda:0",), 1)
    assert (score.profile, score.devices, score.device_name) == ("pascal", ("cuda:1",), "Tesla P40")
    assert {role: planned.pool for role, planned in plan.roles.items()} == {
        "actor": "train",
        "reference": "train",
        "reward": "score",
    }
    assert (plan.roles["actor"].compute_dtype, plan.roles["reward"].compute_dtype) == ("bf16", "fp32")
    assert (plan.roles["actor"].device, plan.roles["reward"].device) == ("cuda:0", "cuda:1")
    assert plan.roles["reward"].attention == "sdpa"
    assert (train.sdpa_backends, score.sdpa_backends) == (("flash", "efficient", "math"), ("efficient", "math"))
    assert plan.rollout is not None and plan.rollout.pool == "train"
    assert fits(plan)


def test_vllm_generates_on_the_pool_that_can_run_it() -> None:
    requests = Requests(rollout=replace(GRPO.rollout, engine="vllm"))
    hardware = replace(MIXED, software=machine(A100, vllm="0.24.0").software)
    pools = {name: replace(pool, requests=requests) for name, pool in POOLS.items()}

    plan = on_both({"reward": "score"}, hardware=hardware, pools=pools)

    assert plan.rollout is not None
    assert (plan.rollout.engine, plan.rollout.pool, plan.roles["reward"].compute_dtype) == ("vllm", "train", "fp32")
    with pytest.raises(HardwareError, match="Tesla P40"):
        on_both({"reward": "train"}, hardware=hardware, pools=dict(reversed(pools.items())))


def test_a_pool_has_the_phases_budgets_and_choices_of_its_roles_only() -> None:
    plan = on_both({"reward": "score"})
    train, score = plan.pools["train"], plan.pools["score"]

    assert [budget.phase for budget in train.budgets] == ["rollout", "logprobs", "reference", "actor_update"]
    assert [budget.phase for budget in score.budgets] == ["reward"]
    assert "reward weights" not in train.budgets[0].items
    assert set(score.budgets[0].items) == {"context", "reward weights", "activations", "allocator slack"}
    assert not {"rollout_engine", "optimizer", "loss_scaling", "gradient_checkpointing"} & score.choices.keys()
    assert {"rollout_engine", "optimizer"} <= train.choices.keys()
    alone = make_plan(workload().only(["actor", "reference"]), recorded("a100"))
    assert only_pool(alone).budgets[-1].items.keys() == train.budgets[-1].items.keys()


def test_a_pool_is_planned_with_its_own_requests() -> None:
    asked = {
        "train": PoolRequest(
            devices=(0,), requests=Requests(plan=PlanConfig(compute_dtype="bf16", quantization="none"))
        ),
        "score": PoolRequest(devices=(1,), requests=Requests(plan=PlanConfig(compute_dtype="fp16"))),
    }
    plan = on_both({"reward": "score"}, pools=asked)

    assert (plan.roles["actor"].compute_dtype, plan.roles["reward"].compute_dtype) == ("bf16", "fp16")
    assert plan.pools["score"].choices["compute_dtype"].asked
    both = {name: replace(pool, requests=asked["train"].requests) for name, pool in POOLS.items()}
    with pytest.raises(HardwareError, match=r"`plan\.compute_dtype=bf16`.*Tesla P40"):
        on_both({"reward": "score"}, pools=both)


def test_pools_share_the_memory_of_the_host() -> None:
    """What one pool offloads is not there for a pool on the CPU."""
    offloading = Requests(plan=PlanConfig(offload_optimizer=True))
    pools = {"train": PoolRequest(devices=(0,), requests=offloading), "score": PoolRequest(devices=())}

    plan = on_both({"reward": "score"}, pools=pools)
    without = on_both({"reward": "score"}, pools=pools | {"train": POOLS["train"]})

    taken = plan.pools["train"].host_bytes
    assert taken > 12 * QWEN_05B.num_parameters
    assert plan.pools["score"].memory_available_bytes == without.pools["score"].memory_available_bytes - taken
    assert (plan.roles["reward"].device, plan.pools["score"].profile) == ("cpu", "cpu")


def test_one_pool_of_one_device_is_the_plan_of_a_run() -> None:
    one = plan_pools(workload(), recorded("p40"), {"main": PoolRequest(devices=(0,))})

    assert one == planned(GRPO, recorded("p40"), QWEN_05B, reward=QWEN_05B)


def test_a_plan_of_several_pools_survives_json() -> None:
    plan = on_both({"reward": "score"})

    assert from_json(to_json(plan)) == plan


def test_a_pool_of_two_devices_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"\[1, 2\]"):
        on_both({"reward": "score"}, pools=POOLS | {"score": PoolRequest(devices=(1, 2))})
