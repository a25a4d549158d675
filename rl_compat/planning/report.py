"""A plan in words: the rows and sentences that `rlc plan` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rl_compat.algorithms.table import ALGORITHMS, is_offline, policy_loss_of
from rl_compat.config.settings import values_of
from rl_compat.config.types import RunConfig
from rl_compat.planning.decide import sequences_per_row
from rl_compat.planning.types import Plan
from rl_compat.units import format_bytes

CHOICE_COLUMNS = ("concern", "choice", "why")
PHASE_COLUMNS = ("phase", "needs", "of", "largest items")
ITEM_COLUMNS = ("phase", "item", "bytes", "size")
REJECTED_COLUMNS = ("concern", "not", "because")
ITEMS_SHOWN = 4


def headline(plan: Plan) -> list[str]:
    """The device, the profile and why it was taken."""
    where = f"emulated on {plan.device}" if plan.emulated else plan.device
    return [
        f"device   {plan.device_name} ({where})",
        f"profile  {plan.profile}: {plan.choices['profile'].reason}",
    ]


def algorithm_lines(plan: Plan, config: RunConfig, set_by_name: Iterable[str] = ()) -> Iterator[str]:
    """The algorithm, what its name sets (dotted keys), and the models that it needs."""
    algorithm = config.algorithm
    row = ALGORITHMS[algorithm.name]
    loss = f", policy loss `{policy_loss_of(algorithm.name, algorithm.policy_loss)}`"
    yield f"learns   {row.name}: {row.summary}{'' if is_offline(row.name) else loss}"
    values = values_of(config)
    given = ", ".join(f"`{key}={_short(values[key])}`" for key in set_by_name)
    if given:
        yield f"         `algorithm.name` sets {given}"
    yield f"models   {', '.join(role.replace('_', ' ') for role in plan.roles)}"


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def choice_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Concern, value and reason, in the order in which they were decided."""
    return [
        (concern, choice.value + (" (asked)" if choice.asked else ""), choice.reason)
        for concern, choice in plan.choices.items()
        if concern != "profile"
    ]


def rejected_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Every value that was passed over, with all reasons."""
    return [
        (concern, rejected.value, "; ".join(rejected.reasons))
        for concern, choice in plan.choices.items()
        for rejected in choice.rejected
    ]


def size_lines(plan: Plan, config: RunConfig) -> Iterator[str]:
    """Batch, micro-batch and rollout sizes, prompts and sequences told apart."""
    group, trainer = sequences_per_row(config), config.trainer
    generates = not is_offline(config.algorithm.name)
    rows = "prompts" if generates else "rows"
    actor, rollout = plan.roles["actor"], plan.rollout
    mini_batches = trainer.batch_size // trainer.mini_batch_size
    mini = f"{trainer.mini_batch_size} {rows} = {trainer.mini_batch_size * group} sequences"
    yield (
        f"step         {trainer.batch_size} {rows} x {group} = {trainer.batch_size * group} sequences, "
        f"{mini_batches} mini-batch{'es' if mini_batches > 1 else ''} of {mini}"
    )
    yield (
        f"micro-batch  at most {actor.micro_batch_size} sequences and {actor.max_tokens_per_micro_batch} tokens, "
        f"logits of {actor.logprob_chunk_tokens} tokens at once"
    )
    if generates:
        yield (
            f"rollout      {rollout.max_num_seqs} sequences at once, prefill of {rollout.max_prefill_tokens} tokens"
            + (", memory given back after each" if rollout.sleep_between else "")
        )


def phase_rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Phase, what it needs, what there is, and its largest items."""
    rows = []
    for budget in plan.budgets:
        largest = sorted(budget.items.items(), key=lambda item: -item[1])[:ITEMS_SHOWN]
        items = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
        available = format_bytes(plan.memory_available_bytes)
        rows.append((budget.phase, format_bytes(budget.total_bytes), available, items))
    return rows


def item_rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Every item of every phase, in bytes."""
    return [
        (budget.phase, name, str(size), format_bytes(size))
        for budget in plan.budgets
        for name, size in budget.items.items()
    ]


def verdict(plan: Plan) -> str:
    """Whether and how well the plan fits, in one line."""
    worst = max(plan.budgets, key=lambda budget: budget.total_bytes)
    share = 100 * worst.total_bytes / plan.memory_available_bytes
    host = f", {format_bytes(plan.host_bytes)} of host memory" if plan.host_bytes and plan.device != "cpu" else ""
    return (
        f"fits: `{worst.phase}` is the largest phase with {format_bytes(worst.total_bytes)} of "
        f"{format_bytes(plan.memory_available_bytes)} ({share:.0f} %){host}"
    )
