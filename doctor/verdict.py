"""What this machine can train: the profile, and the largest model of each method, from real plans."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rl_compat.capability.devices import capability_text
from rl_compat.config.given import config_of
from rl_compat.config.types import RunConfig
from rl_compat.doctor.repaired import repaired_machines
from rl_compat.errors import RLCompatError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.fit import make_plan, plan_if_it_fits
from rl_compat.planning.profile import find_profile
from rl_compat.planning.shapes.known import KNOWN_SHAPES
from rl_compat.planning.types import Plan
from rl_compat.planning.workload import Workload, run_requests, run_workload
from rl_compat.units import format_bytes

METHODS: Mapping[str, Mapping[str, str | int]] = {
    "full PPO": {},
    "LoRA PPO": {"model.lora_rank": 16},
    "full GRPO": {"algorithm.name": "grpo", "algorithm.group_size": 8},
}
"by name, the settings on top of the built-in GSM8K run, which is PPO with critic and reference"

LADDER = (
    "smollm2-135m",
    "HuggingFaceTB/SmolLM2-360M-Instruct",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen2.5-32B-Instruct",
)
"models in order of the memory that they need"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestModel:
    """The largest model of LADDER that a method can train here."""

    method: str
    settings: tuple[str, ...]
    "arguments of `rlc train` or `rlc plan`: the run and its settings"
    model: str | None = None
    plan: Plan | None = None
    problem: str | None = None
    "why even the smallest does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether training works, on which device, and with which models."""

    problem: str | None
    "the first reason why it does not work; None if it works"
    device: str
    profile: str | None
    summary: str
    "of the profile"
    torch: str | None = None
    "the build assumed instead of the installed one"
    visible: bool = True
    "False if the verdict assumes cards that do not answer yet"
    methods: tuple[LargestModel, ...]

    @property
    def works(self) -> bool:
        return self.problem is None


def judge(hardware: Hardware, failures: Sequence[str] = ()) -> Verdict:
    """The verdict for a machine with these failures, the worst first."""
    methods = largest_models(hardware)
    plan = next((largest.plan for largest in methods if largest.plan), None)
    problems = (*failures, torch_problem(hardware), None if plan else methods[0].problem)
    return Verdict(
        problem=next(filter(None, problems), None),
        device=describe_device(hardware),
        profile=plan.pool_of("actor").profile if plan else None,
        summary=find_profile(plan.pool_of("actor").profile).summary if plan else "",
        methods=methods,
    )


def judge_fixed(hardware: Hardware, *, new_torch: bool) -> Verdict | None:
    """The verdict once the failures are fixed, with or without a new torch; None if not even the CPU works."""
    for machine, build in repaired_machines(hardware, new_torch=new_torch):
        verdict = judge(machine)
        if verdict.works:
            torch = None if build is None else f"{build.version}+{build.variant}"
            return replace(verdict, torch=torch, visible=bool(hardware.devices) or not machine.devices)
    return None


def torch_problem(hardware: Hardware) -> str | None:
    """Why torch cannot be imported; also None if it was not tried."""
    software = hardware.software
    if software.torch_error:
        return f"torch does not import: {software.torch_error}"
    if software.torch is None and "torch" not in software.packages:
        return "torch is not installed"
    return None


def largest_models(hardware: Hardware) -> tuple[LargestModel, ...]:
    run = "gsm8k" if hardware.devices else "gsm8k-cpu"
    return tuple(largest_model(hardware, method, run, settings) for method, settings in METHODS.items())


def largest_model(hardware: Hardware, method: str, run: str, values: Mapping[str, str | int]) -> LargestModel:
    """The largest model for one method, by bisection."""
    config = config_of(values, run=run)
    settings = tuple(f"{key}={value}" for key, value in values.items())
    low, high = 0, len(LADDER)
    best: Plan | None = None
    try:
        while low < high:
            middle = (low + high) // 2
            plan = plan_if_it_fits(workload_of(config, LADDER[middle]), hardware, run_requests(config))
            best, low, high = (plan, middle + 1, high) if plan else (best, low, middle)
        if best is None:
            make_plan(workload_of(config, LADDER[0]), hardware, run_requests(config))
    except RLCompatError as error:
        return LargestModel(method=method, settings=(run, *settings), problem=error.message)
    except Exception as error:  # an error in the planner must not hide the findings
        message = " ".join("".join(traceback.format_exception_only(error)).split())
        return LargestModel(method=method, settings=(run, *settings), problem=f"the planner failed: {message}")
    model = LADDER[low - 1]
    return LargestModel(method=method, settings=(run, f"model.path={model}", *settings), model=model, plan=best)


def workload_of(config: RunConfig, model: str) -> Workload:
    """The run with a model of LADDER."""
    return run_workload(config, {"actor": KNOWN_SHAPES[model]})


def describe_device(hardware: Hardware) -> str:
    """The card that a run uses, or the processor."""
    host = hardware.host
    if not hardware.devices:
        return f"{host.cpu_name} ({host.num_cores} cores, {format_bytes(host.ram_available_bytes)} of memory available)"
    device, *others = hardware.devices
    total = format_bytes(device.memory_total_bytes)
    free = format_bytes(device.memory_free_bytes).removesuffix(f" {total.split()[-1]}")
    by_catalogue = device.sources.get("name") == "catalogue"
    memory = f"{total} according to the catalogue" if by_catalogue else f"{free} of {total} free"
    also = f", first of {len(others) + 1}" if others else ""
    return f"{device.name} (compute capability {capability_text(device)}, {memory}){also}"
