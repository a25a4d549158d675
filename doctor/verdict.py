"""What training would look like here: the profile, and how large a model each method can train, by real plans."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rl_compat.capability.devices import capability_text
from rl_compat.config.embedded import embedded_config
from rl_compat.config.types import RunConfig
from rl_compat.doctor.tables.supposed import supposed
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
"what is asked for, and the settings that make it of the shipped GSM8K run, which is PPO with critic and reference"

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
"models in the order of the memory that they need"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The largest model of the ladder that a method can train here."""

    method: str
    settings: tuple[str, ...]
    "after `rlc train` or `rlc plan`: the run and what was set"
    model: str | None = None
    plan: Plan | None = None
    problem: str | None = None
    "why not even the smallest can be trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether training works, on what, and how far it reaches."""

    problem: str | None
    "the first reason why it does not work; None when it works"
    device: str
    profile: str | None
    summary: str
    "what the profile is for"
    reaches: tuple[Reach, ...]
    torch: str | None = None
    "the build that is supposed instead of the installed one"
    visible: bool = True
    "False when cards are supposed to answer that do not"

    @property
    def works(self) -> bool:
        return self.problem is None

    @property
    def plan(self) -> Plan | None:
        """The plan of the first method that reaches anything."""
        return next((reach.plan for reach in self.reaches if reach.plan), None)


def judge(hardware: Hardware, failures: Sequence[str] = ()) -> Verdict:
    """The verdict for a machine on which `failures`, the worst first, were found."""
    reaches = reach_all(hardware)
    plan = next((reach.plan for reach in reaches if reach.plan), None)
    problems = (*failures, torch_problem(hardware), None if plan else reaches[0].problem)
    return Verdict(
        problem=next(filter(None, problems), None),
        device=describe_device(hardware),
        profile=plan.pool_of("actor").profile if plan else None,
        summary=find_profile(plan.pool_of("actor").profile).summary if plan else "",
        reaches=reaches,
    )


def judge_mended(hardware: Hardware, *, new_torch: bool) -> Verdict | None:
    """The verdict once the failures are mended, with or without a new torch; None when not even the CPU can work."""
    for machine, build in supposed(hardware, new_torch=new_torch):
        verdict = judge(machine)
        if verdict.works:
            torch = None if build is None else f"{build.version}+{build.variant}"
            return replace(verdict, torch=torch, visible=bool(hardware.devices) or not machine.devices)
    return None


def torch_problem(hardware: Hardware) -> str | None:
    """Why no torch can be imported; None too when it was not looked at."""
    software = hardware.software
    if software.torch_error:
        return f"torch does not import: {software.torch_error}"
    if software.torch is None and "torch" not in software.packages:
        return "torch is not installed"
    return None


def reach_all(hardware: Hardware) -> tuple[Reach, ...]:
    run = "gsm8k" if hardware.devices else "gsm8k-cpu"
    return tuple(reach(hardware, method, run, settings) for method, settings in METHODS.items())


def reach(hardware: Hardware, method: str, run: str, values: Mapping[str, str | int]) -> Reach:
    """The largest model for one method, by bisection."""
    config = embedded_config(run, values)
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
        return Reach(method=method, settings=(run, *settings), problem=error.message)
    except Exception as error:  # a planner that breaks off must not take the findings with it
        said = " ".join("".join(traceback.format_exception_only(error)).split())
        return Reach(method=method, settings=(run, *settings), problem=f"the planner broke off: {said}")
    model = LADDER[low - 1]
    return Reach(method=method, settings=(run, f"model.path={model}", *settings), model=model, plan=best)


def workload_of(config: RunConfig, model: str) -> Workload:
    """The run with a model of the ladder."""
    return run_workload(config, {"actor": KNOWN_SHAPES[model]})


def describe_device(hardware: Hardware) -> str:
    """The card that a run takes, or the processor."""
    host = hardware.host
    if not hardware.devices:
        return f"{host.cpu_name} ({host.num_cores} cores, {format_bytes(host.ram_available_bytes)} of memory available)"
    device, *others = hardware.devices
    total = format_bytes(device.memory_total_bytes)
    free = format_bytes(device.memory_free_bytes).removesuffix(f" {total.split()[-1]}")
    by_catalogue = device.sources.get("name") == "catalogue"
    memory = f"{total} by the catalogue" if by_catalogue else f"{free} of {total} free"
    also = f", first of {len(others) + 1}" if others else ""
    return f"{device.name} (compute capability {capability_text(device)}, {memory}){also}"
