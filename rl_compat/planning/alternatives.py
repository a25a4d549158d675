"""If nothing fits: changes of the request that do, each with its peak memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from rl_compat.errors import RLCompatError
from rl_compat.planning.decide import Decided, decide
from rl_compat.planning.memory.budget import phase_budgets
from rl_compat.planning.memory.ladder import search
from rl_compat.planning.memory.sizing import Shortage
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.types import TRAINED_ROLES
from rl_compat.planning.workload import Requests, Workload
from rl_compat.units import format_bytes

Change = tuple[str, Workload, Requests]
"its settings, and what they make of the workload and the requests"
MOST_OFFERED = 3
SHORTEST_RESPONSE = 32
SMALLER_BASES: dict[str, tuple[Literal["int8", "nf4"], ...]] = {"none": ("int8", "nf4"), "int8": ("nf4",), "nf4": ()}
"quantized forms of frozen weights that are smaller"


def nearest_that_fits(decided: Decided) -> str:
    """The hint: up to three changes that fit, each with its peak memory."""
    offers = []
    for words, workload, requests in _changes(decided.workload, decided.requests):
        peak = _peak_bytes(workload, requests, decided)
        if peak is not None:
            offers.append(f"{words} ({format_bytes(peak)})")
        if len(offers) == MOST_OFFERED:
            break
    if not offers:
        return "no similar request fits: free memory on the device, or use a larger one"
    return "use " + " or ".join(offers)


def _changes(workload: Workload, requests: Requests) -> Iterator[Change]:
    """Changes, those that affect learning least first."""
    yield from _released(workload, requests)
    if workload.trains:
        yield from _cheaper_training(workload, requests)
    yield from _smaller_model(workload, requests)


def _released(workload: Workload, requests: Requests) -> Iterator[Change]:
    """Settings of the user that keep the planner from saving memory."""
    plan, rollout = requests.plan, requests.rollout
    free: dict[str, Any] = {}
    for name in ("gradient_checkpointing", "offload_idle_models", "offload_optimizer"):
        if getattr(plan, name) is False:
            free[name] = "auto"
    for name in ("micro_batch_size", "max_tokens_per_micro_batch", "logprob_chunk_tokens"):
        if getattr(plan, name) != "auto":
            free[name] = "auto"
    if free:
        words = " ".join(f"plan.{name}=auto" for name in free)
        yield f"`{words}`", workload, replace(requests, plan=replace(plan, **free))
    if rollout.max_num_seqs is not None:
        changed = replace(requests, rollout=replace(rollout, max_num_seqs=None))
        yield "no `rollout.max_num_seqs`", workload, changed


def _cheaper_training(workload: Workload, requests: Requests) -> Iterator[Change]:
    if requests.optimizer == "adamw" and workload.lora_rank == 0:
        yield "`optimizer.name=adamw8bit`", workload, replace(requests, optimizer="adamw8bit")
    if workload.lora_rank > 0:
        yield from _smaller_bases(workload, requests, "")
    for divisor in (2, 4):
        length = workload.max_response_length // divisor
        if length >= SHORTEST_RESPONSE:
            yield f"`data.max_response_length={length}`", replace(workload, max_response_length=length), requests
    if workload.lora_rank == 0:
        adapted = workload.with_adapters(16)
        yield "`model.lora_rank=16`", adapted, requests
        yield from _smaller_bases(adapted, requests, "model.lora_rank=16 ")
    if "critic" in workload.models and "cost_critic" not in workload.models and workload.generates:
        size = max(2, workload.sequences_per_row)
        without = replace(workload.only(workload.models.keys() - {"critic"}), sequences_per_row=size)
        yield f"`algorithm.name=grpo algorithm.group_size={size}`, which has no critic", without, requests


def _smaller_bases(workload: Workload, requests: Requests, also: str) -> Iterator[Change]:
    for name in SMALLER_BASES[requests.plan.quantization]:
        changed = replace(requests, plan=replace(requests.plan, quantization=name))
        yield f"`{also}plan.quantization={name}`", workload, changed


def _smaller_model(workload: Workload, requests: Requests) -> Iterator[Change]:
    if "actor" in workload.models and SMOLLM2_135M.num_parameters < workload.main_model.num_parameters:
        policies = {*TRAINED_ROLES, "reference"}
        models = {role: SMOLLM2_135M if role in policies else shape for role, shape in workload.models.items()}
        yield "`model.path=smollm2-135m`", replace(workload, models=models), requests


def _peak_bytes(workload: Workload, requests: Requests, decided: Decided) -> int | None:
    try:
        changed = decide(workload, decided.hardware, requests)
    except RLCompatError:
        return None
    outcome = search(changed.problem)
    if isinstance(outcome, Shortage):
        return None
    return max(budget.total_bytes for budget in phase_budgets(changed.request, outcome.levers, outcome.sizes))
