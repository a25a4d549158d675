"""What to set if a request cannot be planned. Whatever is offered has been planned with that change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from rl_compat.errors import RLCompatError, UsageError
from rl_compat.planning.decide import Decided
from rl_compat.planning.memory.budget import phase_budgets
from rl_compat.planning.memory.ladder import Shortage, search
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.types import TRAINED_ROLES
from rl_compat.planning.workload import Requests, Workload
from rl_compat.units import format_bytes

Decide = Callable[[Workload, Requests], Decided]
MOST_OFFERED = 3
SHORTEST_RESPONSE = 32
SHARES = (0.01, 0.02, 0.03, *(twentieth / 20 for twentieth in range(1, 20)))
"fractions of a device that are tried for vLLM"
NOTHING_FITS = "no similar request fits: free memory on the device, or use a larger one"
SMALLER_BASES: dict[str, tuple[Literal["int8", "nf4"], ...]] = {"none": ("int8", "nf4"), "int8": ("nf4",), "nf4": ()}
"quantized forms of frozen weights that are smaller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings, and what they make of the workload and the requests."""

    settings: str
    "`key=value`, separated by spaces"
    workload: Workload
    requests: Requests
    aside: str = ""


def nearest_that_fits(workload: Workload, requests: Requests, decide: Decide) -> str:
    """The hint: up to three changes that fit, each with its peak memory."""
    offers = [
        f"`{change.settings}` ({format_bytes(peak)}){change.aside}"
        for change, peak in _fitting(workload, requests, decide)
    ]
    return "use " + " or ".join(offers[:MOST_OFFERED]) if offers else NOTHING_FITS


def with_tried_hint(error: UsageError, workload: Workload, requests: Requests, decide: Decide) -> UsageError:
    """The error with advice that can be planned: its own, another value, or one together with another change."""
    offers = getattr(error, "offers", None) or re.findall(r"`(\w+\.\w+=[^`]+)`", error.hint or "")
    if not offers:
        return error
    changed = {offer: _with_settings(requests, offer) for offer in offers}
    for offer, request in changed.items():
        if _peak_bytes(workload, request, decide) is not None:
            return error if f"`{offer}`" in (error.hint or "") else type(error)(error.message, hint=f"set `{offer}`")
    for offer, request in changed.items():
        for change, peak in _fitting(workload, request, decide):
            return type(error)(
                error.message, hint=f"set `{offer} {change.settings}` ({format_bytes(peak)}){change.aside}"
            )
    lead = (error.hint or "").partition(", or set `")
    return type(error)(error.message, hint=lead[0] if lead[1] else None)


def _fitting(workload: Workload, requests: Requests, decide: Decide) -> list[tuple[Change, int]]:
    """The first changes that fit, with their peak memory: one by one, or else together with all released settings."""
    released = list(_released(workload, requests))
    found = _tried([*released, *_changes(workload, requests)], decide)
    found = _tried(list(_wider_engines(workload, requests)), decide)[:1] + found
    share = requests.rollout.gpu_memory_utilization
    if share is not None and workload.generates:
        found = _share(workload, requests, decide, share) + found
    if found or not released:
        return found
    free = released[-1]
    also = [
        replace(change, settings=f"{free.settings} {change.settings}") for change in _changes(workload, free.requests)
    ]
    return _tried(also, decide)


def _tried(changes: list[Change], decide: Decide) -> list[tuple[Change, int]]:
    found: list[tuple[Change, int]] = []
    for change in changes:
        peak = _peak_bytes(change.workload, change.requests, decide)
        if peak is not None:
            found.append((change, peak))
        if len(found) == MOST_OFFERED:
            break
    return found


def _released(workload: Workload, requests: Requests) -> Iterator[Change]:
    """Settings of the user that keep the planner from saving memory: those of the plan, then all."""
    plan, rollout = requests.plan, requests.rollout
    free: dict[str, Any] = {}
    for name in ("gradient_checkpointing", "offload_idle_models", "offload_optimizer"):
        if getattr(plan, name) is False:
            free[name] = "auto"
    for name in ("micro_batch_size", "max_tokens_per_micro_batch", "logprob_chunk_tokens"):
        if getattr(plan, name) != "auto":
            free[name] = "auto"
    words = [f"plan.{name}=auto" for name in free]
    without: dict[str, Any] = {
        name: None
        for name in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
        if workload.generates and getattr(rollout, name) is not None
    }
    if free:
        requests = replace(requests, plan=replace(plan, **free))
        yield Change(settings=" ".join(words), workload=workload, requests=requests)
    if without:
        words += [f"rollout.{name}=none" for name in without]
        requests = replace(requests, rollout=replace(rollout, **without))
        yield Change(settings=" ".join(words), workload=workload, requests=requests)


def _share(workload: Workload, requests: Requests, decide: Decide, share: float) -> list[tuple[Change, int]]:
    """The fraction of the device nearest to the user's that fits, and the range around it of which all tried do."""
    peaks: dict[float, int | None] = {}

    def peak_at(value: float) -> int | None:
        if value not in peaks:
            rollout = replace(requests.rollout, gpu_memory_utilization=value)
            peaks[value] = _peak_bytes(workload, replace(requests, rollout=rollout), decide)
        return peaks[value]

    for value in sorted(SHARES, key=lambda other: abs(other - share)):
        peak = peak_at(value)
        if peak is None:
            continue
        low = high = SHARES.index(value)
        while low > 0 and peak_at(SHARES[low - 1]) is not None:
            low -= 1
        while high < len(SHARES) - 1 and peak_at(SHARES[high + 1]) is not None:
            high += 1
        aside = f", of {SHARES[low]:g} to {SHARES[high]:g} that fit"
        settings = f"rollout.gpu_memory_utilization={value:g}"
        return [(Change(settings=settings, workload=workload, requests=requests, aside=aside), peak)]
    return []


def _wider_engines(workload: Workload, requests: Requests) -> Iterator[Change]:
    """More devices to an engine of vLLM, the fewest first."""
    devices, rollout = requests.plan.num_devices if workload.generates else 0, requests.rollout
    for width in range(rollout.tensor_parallel + 1, devices + 1):
        if devices % width == 0:
            changed = replace(requests, rollout=replace(rollout, tensor_parallel=width))
            yield Change(settings=f"rollout.tensor_parallel={width}", workload=workload, requests=changed)


def _changes(workload: Workload, requests: Requests) -> Iterator[Change]:
    """Changes, those that affect learning least first."""
    if workload.trains:
        yield from _cheaper_training(workload, requests)
    if "actor" in workload.models and SMOLLM2_135M.num_parameters < workload.main_model.num_parameters:
        policies = {*TRAINED_ROLES, "reference"}
        models = {role: SMOLLM2_135M if role in policies else shape for role, shape in workload.models.items()}
        yield Change(settings="model.path=smollm2-135m", workload=replace(workload, models=models), requests=requests)


def _cheaper_training(workload: Workload, requests: Requests) -> Iterator[Change]:
    if requests.optimizer == "adamw" and workload.lora_rank == 0:
        changed = replace(requests, optimizer="adamw8bit")
        yield Change(settings="optimizer.name=adamw8bit", workload=workload, requests=changed)
    if workload.lora_rank > 0:
        yield from _smaller_bases(workload, requests, "")
    for divisor in (2, 4):
        length = workload.max_response_length // divisor
        if length >= SHORTEST_RESPONSE:
            shorter = replace(workload, max_response_length=length)
            yield Change(settings=f"data.max_response_length={length}", workload=shorter, requests=requests)
    if workload.lora_rank == 0:
        adapted = workload.with_adapters(16)
        yield Change(settings="model.lora_rank=16", workload=adapted, requests=requests)
        yield from _smaller_bases(adapted, requests, "model.lora_rank=16 ")
    if "critic" in workload.models and "cost_critic" not in workload.models and workload.generates:
        size = max(2, workload.sequences_per_row)
        yield Change(
            settings=f"algorithm.name=grpo algorithm.group_size={size}",
            workload=replace(workload.only(workload.models.keys() - {"critic"}), sequences_per_row=size),
            requests=requests,
            aside=", which has no critic",
        )


def _smaller_bases(workload: Workload, requests: Requests, also: str) -> Iterator[Change]:
    for name in SMALLER_BASES[requests.plan.quantization]:
        changed = replace(requests, plan=replace(requests.plan, quantization=name))
        yield Change(settings=f"{also}plan.quantization={name}", workload=workload, requests=changed)


def _peak_bytes(workload: Workload, requests: Requests, decide: Decide) -> int | None:
    try:
        changed = decide(workload, requests)
    except RLCompatError:
        return None
    outcome = search(changed.problem)
    if isinstance(outcome, Shortage):
        return None
    return max(budget.total_bytes for budget in phase_budgets(changed.request, outcome.levers, outcome.sizes))


def _with_settings(requests: Requests, settings: str) -> Requests:
    """The requests with settings such as `plan.device=cpu plan.num_devices=1`."""
    for assignment in settings.split():
        key, _, text = assignment.partition("=")
        section, _, name = key.partition(".")
        value: Any = {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)
        if section == "optimizer":
            requests = replace(requests, optimizer=value)
        else:
            requests = replace(requests, **{section: replace(getattr(requests, section), **{name: value})})
    return requests
