"""Plans of several pools: each device gets the choices that suit it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes.machines import (
    A100,
    LLAMA_7B,
    PPO,
    QWEN_05B,
    fits,
    gpu,
    machine,
    only_pool,
    planned,
    recorded,
    with_plan,
)

from rl_compat.config.types import AlgorithmConfig, PlanConfig, PoolConfig, RewardConfig, RunConfig
from rl_compat.errors import ConfigError, DoesNotFitError, HardwareError
from rl_compat.hardware.gpu.catalogue import emulated_hardware
from rl_compat.hardware.types import Hardware
from rl_compat.planning.fit import make_plan, plan_pools
from rl_compat.planning.pools import PoolRequest
from rl_compat.planning.run import run_plan
from rl_compat.planning.serialize import from_json, to_json
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import Requests, Workload, evaluation_workload, run_workload
from rl_compat.units import GIB

GRPO = RunConfig(
    algorithm=AlgorithmConfig(name="grpo", group_size=4, kl_loss="k3"), reward=RewardConfig(model="a reward model")
)
MIXED = recorded("mixed_p40_a100")
"`cuda:0` is an A100 and `cuda:1` a P40"
POOLS = {"train": PoolRequest(devices=(0,)), "score": PoolRequest(devices=(1,))}


def run(config: RunConfig, hardware: Hardware, actor: ModelShape = SMOLLM2_135M) -> Plan:
    """The plan of a run on the pools of its settings."""
    return run_plan(config, run_workload(config, {"actor": actor}), hardware)


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


def test_a_role_of_two_devices_has_a_copy_on_each_and_a_share_of_the_batch() -> None:
    two = run(RunConfig(plan=PlanConfig(num_devices=2)), recorded("p40_two"))
    pool, actor = two.pools["main"], two.roles["actor"]

    assert (pool.devices, pool.num_ranks, actor.device, actor.num_shards) == (("cuda:0", "cuda:1"), 2, "cuda:0", 1)
    assert pool.choices["num_shards"].value == "1" and not pool.choices["num_shards"].asked
    assert two.rollout is not None and two.rollout.max_num_seqs == 64
    assert pool.num_threads == min(8, recorded("p40_two").host.num_cores // 2)
    one = run(RunConfig(), recorded("p40_two"))
    assert one.rollout is not None and one.rollout.max_num_seqs == 128
    assert "num_shards" not in one.pools["main"].choices


def test_processes_on_the_cpu_share_cores_and_memory() -> None:
    config = RunConfig(plan=PlanConfig(device="cpu", num_devices=2))
    pool, one = run(config, machine()).pools["main"], run(RunConfig(), machine()).pools["main"]

    assert (pool.devices, pool.num_threads, one.num_threads) == (("cpu", "cpu"), 4, 8)
    assert pool.memory_available_bytes == one.memory_available_bytes // 2


def test_weights_are_shared_by_as_few_devices_as_they_fit_on() -> None:
    small = gpu("a card", (8, 0), memory_bytes=80 * GIB)
    eight = machine(*[small] * 8, ram_bytes=8 * GIB)
    plan = run(with_plan(num_devices=8), eight, LLAMA_7B)

    assert plan.pools["main"].choices["num_shards"].value == "4"
    assert {role: planned.num_shards for role, planned in plan.roles.items()} == {
        "actor": 4,
        "critic": 4,
        "reference": 1,
        "rollout": 1,
    }
    assert plan.roles["rollout"].storage_dtype == plan.rollout.compute_dtype == "bf16"  # type: ignore[union-attr]
    assert fits(plan)
    with pytest.raises(DoesNotFitError):
        run(with_plan(num_devices=8, num_shards=1), eight, LLAMA_7B)


def test_a_copy_that_generates_is_freed_while_the_rollout_sleeps() -> None:
    tight = run(with_plan(num_devices=2, num_shards=2), machine(*[gpu("a card", (8, 0), memory_bytes=4 * GIB)] * 2))
    budgets = {budget.phase: budget.items for budget in tight.pools["main"].budgets}

    assert tight.rollout is not None and tight.rollout.sleep_between
    assert [phase for phase, items in budgets.items() if "rollout weights" in items] == ["rollout"]


def test_the_number_of_shards_can_be_set() -> None:
    plan = run(with_plan(num_devices=2, num_shards=2), recorded("p40_two"))

    assert {role: planned.num_shards for role, planned in plan.roles.items()} == {
        "actor": 2,
        "critic": 2,
        "reference": 2,
        "rollout": 1,
    }
    assert plan.pools["main"].choices["num_shards"].asked


@pytest.mark.parametrize(("gib", "kept"), [(8, "none"), (12, "weights"), (24, "all")])
def test_as_much_is_kept_whole_between_micro_batches_as_there_is_room_for(gib: int, kept: str) -> None:
    config = with_plan(num_devices=2, num_shards=2, gradient_checkpointing=True, micro_batch_size=1)
    plan = run(config, machine(*[gpu("a card", (8, 0), memory_bytes=gib * GIB)] * 2), QWEN_05B)

    assert plan.pools["main"].choices["kept_whole"].value == kept
    assert {role: planned.kept_whole for role, planned in plan.roles.items() if role != "rollout"} == {
        "actor": kept,
        "critic": kept,
        "reference": kept,
    }
    assert fits(plan)


def test_devices_that_compute_each_layer_together_hold_parts_of_its_activations() -> None:
    eight = machine(*[gpu("a card", (8, 0), memory_bytes=80 * GIB)] * 8)
    fixed = {"num_devices": 8, "num_shards": 8, "gradient_checkpointing": False, "micro_batch_size": 1}
    plans = [run(with_plan(**fixed, tensor_parallel=width), eight, LLAMA_7B) for width in (1, 4)]
    alone, together = (
        next(budget.items for budget in plan.pools["main"].budgets if budget.phase == "critic_update") for plan in plans
    )

    assert {role: (planned.num_shards, planned.tensor_parallel) for role, planned in plans[1].roles.items()} == {
        "actor": (8, 4),
        "critic": (8, 4),
        "reference": (8, 4),
        "rollout": (1, 1),
    }
    assert together["critic weights"] == alone["critic weights"]
    assert together["activations"] < alone["activations"] / 1.5
    assert together["gathered gradients"] < alone["gathered gradients"]
    assert plans[1].pools["main"].choices["tensor_parallel"].value == "4"


def test_a_copy_is_shared_by_the_devices_that_compute_together_if_it_fits_on_them() -> None:
    roomy = machine(*[gpu("a card", (8, 0), memory_bytes=80 * GIB)] * 8)
    plan = run(with_plan(num_devices=8, tensor_parallel=2), roomy, QWEN_05B)

    assert {role: planned.num_shards for role, planned in plan.roles.items() if role != "rollout"} == {
        "actor": 2,
        "critic": 2,
        "reference": 2,
    }


@pytest.mark.parametrize(
    ("shape", "changes", "named"),
    [
        (replace(LLAMA_7B, num_heads=9, num_kv_heads=3), {}, ["9 heads", "3 key-value heads"]),
        (replace(LLAMA_7B, model_type="mixtral"), {}, ["`mixtral`", "llama"]),
        (LLAMA_7B, {"lora_rank": 8, "quantization": "int8"}, ["int8"]),
    ],
)
def test_layers_that_devices_cannot_divide_are_refused(
    shape: ModelShape, changes: dict[str, Any], named: list[str]
) -> None:
    two = machine(*[gpu("a card", (8, 0), memory_bytes=80 * GIB)] * 2)
    config = with_plan(num_devices=2, tensor_parallel=2, quantization=changes.get("quantization", "none"))
    config = replace(config, model=replace(config.model, lora_rank=changes.get("lora_rank", 0)))
    with pytest.raises(ConfigError, match="tensor_parallel=2") as caught:
        run(config, two, shape)

    assert all(word in caught.value.message for word in named)
    assert "plan.tensor_parallel=1" in str(caught.value.hint)


def test_a_role_named_by_a_pool_works_there_and_the_others_on_main() -> None:
    pools = {"score": PoolConfig(roles=("reference",))}
    plan = run(replace(PPO, pools=pools), MIXED)

    assert {role: planned.pool for role, planned in plan.roles.items()} == {
        "actor": "main",
        "critic": "main",
        "reference": "score",
    }
    assert (plan.pools["main"].devices, plan.pools["score"].devices) == (("cuda:0",), ("cuda:1",))
    named = run(replace(PPO, pools={"score": PoolConfig(roles=("reference",), gpus=(0,))}), MIXED)
    assert (named.pools["main"].devices, named.pools["score"].devices) == (("cuda:1",), ("cuda:0",))


def test_a_rollout_on_another_pool_has_a_copy_of_the_weights() -> None:
    plan = run(replace(PPO, pools={"generate": PoolConfig(roles=("rollout",))}), MIXED)

    assert plan.rollout is not None and plan.rollout.pool == plan.roles["rollout"].pool == "generate"
    assert plan.roles["actor"].pool == "main"
    assert [budget.phase for budget in plan.pools["generate"].budgets] == ["rollout"]
    assert "rollout" not in [budget.phase for budget in plan.pools["main"].budgets]
    together = run(replace(PPO, pools={"all": PoolConfig(roles=("rollout", "actor"))}), MIXED)
    assert together.rollout is not None and together.rollout.pool == together.roles["actor"].pool == "all"
    assert "rollout" not in together.roles


def test_an_evaluation_generates_on_the_pool_of_the_rollout_without_a_copy() -> None:
    config = replace(PPO, pools={"generate": PoolConfig(roles=("rollout",)), "train": PoolConfig(roles=("critic",))})
    workload = evaluation_workload(config, {"actor": SMOLLM2_135M})
    plan = run_plan(config, workload, machine(A100, A100, A100))

    assert list(plan.pools) == ["generate"]
    assert {role: planned.pool for role, planned in plan.roles.items()} == {"actor": "generate"}
    assert plan.rollout is not None and plan.rollout.pool == "generate"


def test_pools_on_the_cpu_can_emulate_different_cards() -> None:
    pools = {"score": PoolConfig(roles=("reference",), emulate="p40", num_devices=2)}
    plan = run(replace(PPO, pools=pools), emulated_hardware("a100 pcie 40gb", machine()))

    assert {name: pool.emulated for name, pool in plan.pools.items()} == {
        "main": "A100-PCIE-40GB",
        "score": "Tesla P40",
    }
    assert plan.pools["score"].devices == ("cpu", "cpu")
    assert (plan.roles["actor"].compute_dtype, plan.roles["reference"].compute_dtype) == ("bf16", "fp32")
    assert {pool.num_threads for pool in plan.pools.values()} == {8 // 3}


@pytest.mark.parametrize(
    ("settings", "pools", "fact", "hint"),
    [
        ({"num_devices": 2}, {"score": PoolConfig(roles=("reference",))}, "3 GPUs", "pools.score.device=cpu"),
        ({}, {"score": PoolConfig(roles=("reference",), gpus=(7,))}, "GPU 7 and 2", "rlc probe"),
        ({"num_devices": 2}, {}, "1 x NVIDIA A100-PCIE-40GB and 1 x Tesla P40", "plan.num_devices=1"),
        ({}, {"score": PoolConfig(roles=("reference",), compute_dtype="bf16")}, "pools.score.compute_dtype", "fp32"),
        ({}, {"score": PoolConfig(roles=("reference",), emulate="p41")}, "`p41`", "Tesla P40"),
    ],
)
def test_what_the_devices_cannot_give_is_refused(
    settings: dict[str, object], pools: dict[str, PoolConfig], fact: str, hint: str
) -> None:
    with pytest.raises(HardwareError) as caught:
        run(replace(with_plan(**settings), pools=pools), MIXED)

    assert fact in caught.value.message
    assert hint in (caught.value.hint or "")
