"""Every setting that an error of the planner offers is tried: applied to the same run, it can be planned."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fakes.machines import recorded

from rl_compat.config.load import load_config
from rl_compat.errors import DoesNotFitError, UsageError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.fit import make_plan
from rl_compat.planning.shapes.known import KNOWN_SHAPES
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import run_requests, run_workload
from rl_compat.units import GIB

MACHINES = ("gtx1660", "p40", "v100_vllm", "gb10", "laptop_no_gpu", "rtx3060_cpu_torch")
MODELS = ("smollm2-135m", "Qwen/Qwen2.5-3B-Instruct")
SETTINGS = (
    (),
    ("plan.compute_dtype=bf16", "plan.attention=flash_attention_2"),
    ("plan.num_devices=3",),
    ("plan.device=cuda", "plan.micro_batch_size=64"),
    ("plan.profile=ampere",),
    ("rollout.engine=vllm", "rollout.gpu_memory_utilization=0.9"),
    ("rollout.gpu_memory_utilization=0.95", "plan.gradient_checkpointing=false"),
    ("model.lora_rank=16", "plan.quantization=nf4", "optimizer.name=adamw8bit"),
    ("optimizer.name=adamw8bit", "plan.offload_optimizer=true"),
    ("rollout.max_model_len=16",),
    ("algorithm.name=dpo", "plan.max_tokens_per_micro_batch=200000"),
    ("algorithm.name=grpo", "algorithm.group_size=8", "rollout.max_num_seqs=4096", "data.max_response_length=4096"),
)


def plan(settings: tuple[str, ...], hardware: Hardware) -> Plan:
    config = load_config(None, ["data.train_files=[rows.jsonl]", *settings]).config
    return make_plan(run_workload(config, {"actor": KNOWN_SHAPES[config.model.path]}), hardware, run_requests(config))


def held(hardware: Hardware) -> Hardware:
    """The machine while others hold two thirds of its first card."""
    devices = [replace(device, memory_free_bytes=device.memory_total_bytes // 3) for device in hardware.devices[:1]]
    return replace(hardware, devices=(*devices, *hardware.devices[1:]))


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
@pytest.mark.parametrize("name", MACHINES)
def test_what_an_error_advises_can_be_planned(name: str, settings: tuple[str, ...]) -> None:
    for hardware in (recorded(name), held(recorded(name))):
        for model in MODELS:
            given = (f"model.path={model}", *settings)
            try:
                plan(given, hardware)
            except UsageError as error:
                for advice in re.findall(r"`((?:[\w.]+=[^`\s]+ ?)+)`", error.hint or ""):
                    plan((*given, *advice.split()), hardware)


def test_settings_of_the_user_are_released_together_with_another_change() -> None:
    """Neither fewer sequences nor adapters alone are enough."""
    hardware = recorded("p40")
    settings = (
        "model.path=Qwen/Qwen2.5-7B-Instruct",
        "plan.micro_batch_size=512",
        "rollout.gpu_memory_utilization=0.9",
    )
    with pytest.raises(DoesNotFitError) as caught:
        plan(settings, hardware)

    advice = re.findall(r"`([^`]+)`", str(caught.value.hint))
    assert advice and all("plan.micro_batch_size=auto rollout.gpu_memory_utilization=none" in offer for offer in advice)
    for offer in advice:
        plan((*settings, *offer.split()), hardware)


def test_advice_that_would_not_fit_is_replaced() -> None:
    """`plan.compute_dtype=fp32` alone is possible on a P40 and too large for a model of 7 B."""
    settings = ("model.path=Qwen/Qwen2.5-7B-Instruct", "plan.compute_dtype=bf16")
    with pytest.raises(UsageError) as caught:
        plan(settings, recorded("p40"))

    (advice,) = re.findall(r"`([^`]+)`", str(caught.value.hint))
    assert advice.startswith("plan.compute_dtype=") and " " in advice
    plan((*settings, *advice.split()), recorded("p40"))


def test_where_nothing_fits_no_setting_is_offered() -> None:
    small = recorded("gtx1660")
    device = replace(small.devices[0], memory_free_bytes=GIB // 4)
    with pytest.raises(DoesNotFitError) as caught:
        plan(("model.path=Qwen/Qwen2.5-3B-Instruct",), replace(small, devices=(device,)))

    assert "=" not in str(caught.value.hint)
