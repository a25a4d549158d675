"""When nothing fits: which changes of the request do, with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import RunConfig
from rl_compat.errors import RLCompatError
from rl_compat.planning.decide import Decided, decide
from rl_compat.planning.memory.budget import phase_budgets
from rl_compat.planning.memory.ladder import Found
from rl_compat.planning.memory.sizing import Shortage
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.units import format_bytes

Search = Callable[[Decided], Found | Shortage]
MOST_OFFERED = 3
SMALLER_BASES: dict[str, tuple[Literal["int8", "nf4"], ...]] = {"none": ("int8", "nf4"), "int8": ("nf4",), "nf4": ()}
"quantized forms of frozen weights that take less"


def nearest_that_fits(decided: Decided, search: Search, *, critic_shape: ModelShape | None) -> str:
    """The hint: up to three changes that were tried and fit, each with the peak it leads to."""
    shape = decided.request.actor
    offers = []
    for words, config, actor, critic in _changes(decided.config, shape, critic_shape or shape):
        peak = _peak_bytes(config, decided, search, actor, critic)
        if peak is not None:
            offers.append(f"{words} ({format_bytes(peak)})")
        if len(offers) == MOST_OFFERED:
            break
    if not offers:
        return "nothing near this request fits: free memory on the device, or use a larger one"
    return "use " + " or ".join(offers)


def _changes(
    config: RunConfig, shape: ModelShape, critic: ModelShape
) -> Iterator[tuple[str, RunConfig, ModelShape, ModelShape]]:
    """Changed requests in the order of how little they change what is learned."""
    yield from ((words, changed, shape, critic) for words, changed in _gentle_changes(config))
    if SMOLLM2_135M.num_parameters < shape.num_parameters:
        model = replace(config.model, path="smollm2-135m", critic_path=None)
        yield "`model.path=smollm2-135m`", replace(config, model=model), SMOLLM2_135M, SMOLLM2_135M


def _gentle_changes(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    plan = config.plan
    free: dict[str, Any] = {}
    for name in ("gradient_checkpointing", "offload_idle_models", "offload_optimizer"):
        if getattr(plan, name) is False:
            free[name] = "auto"
    for name in ("micro_batch_size", "max_tokens_per_micro_batch", "logprob_chunk_tokens"):
        if getattr(plan, name) != "auto":
            free[name] = "auto"
    if free:
        words = " ".join(f"plan.{name}=auto" for name in free)
        yield f"`{words}`", replace(config, plan=replace(plan, **free))
    if config.rollout.max_num_seqs is not None:
        yield "no `rollout.max_num_seqs`", replace(config, rollout=replace(config.rollout, max_num_seqs=None))
    if config.optimizer.name == "adamw" and config.model.lora_rank == 0:
        yield "`optimizer.name=adamw8bit`", replace(config, optimizer=replace(config.optimizer, name="adamw8bit"))
    if config.model.lora_rank > 0:
        yield from ((f"`{words}`", changed) for words, changed in _smaller_bases(config))
    for divisor in (2, 4):
        length = config.data.max_response_length // divisor
        if length >= 32:
            data = replace(config.data, max_response_length=length)
            yield f"`data.max_response_length={length}`", replace(config, data=data)
    if config.model.lora_rank == 0:
        adapted = replace(config, model=replace(config.model, lora_rank=16))
        yield "`model.lora_rank=16`", adapted
        yield from ((f"`model.lora_rank=16 {words}`", changed) for words, changed in _smaller_bases(adapted))
    row = ALGORITHMS[config.algorithm.name]
    if row.needs_critic and not row.needs_cost:
        algorithm = replace(config.algorithm, name="grpo", group_size=max(2, config.algorithm.group_size))
        words = f"`algorithm.name=grpo algorithm.group_size={algorithm.group_size}`, which has no critic"
        yield words, replace(config, algorithm=algorithm)


def _smaller_bases(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    for name in SMALLER_BASES[config.plan.quantization]:
        yield f"plan.quantization={name}", replace(config, plan=replace(config.plan, quantization=name))


def _peak_bytes(
    config: RunConfig, decided: Decided, search: Search, actor: ModelShape, critic: ModelShape
) -> int | None:
    try:
        changed = decide(config, decided.hardware, actor, critic, decided.request.reward, decided.request.cost)
    except RLCompatError:
        return None
    outcome = search(changed)
    if isinstance(outcome, Shortage):
        return None
    return max(budget.total_bytes for budget in phase_budgets(changed.request, outcome.levers, outcome.sizes))
