"""A plan as text: the rows and lines that `rlc plan` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rl_compat.algorithms.table import ALGORITHMS, is_offline, policy_loss_of
from rl_compat.config.settings import values_of
from rl_compat.config.types import RunConfig
from rl_compat.planning.types import Plan, PoolPlan
from rl_compat.planning.workload import Workload
from rl_compat.units import format_bytes

ROLE_COLUMNS = ("role", "pool", "devices", "weights", "stored as", "computes in")
STEP_COLUMNS = ("phase", "seconds", "exchanged", "size", "over")
CHOICE_COLUMNS = ("concern", "choice", "reason")
PHASE_COLUMNS = ("phase", "needs", "available", "largest items")
ITEM_COLUMNS = ("phase", "item", "bytes", "size")
REJECTED_COLUMNS = ("concern", "rejected", "reasons")
ITEMS_SHOWN = 4


def headline(plan: Plan) -> Iterator[str]:
    """The device of each pool, its profile and why it applies."""
    for name, pool in plan.pools.items():
        on = _devices(pool)
        where = f"emulated on {on}" if pool.emulated else on
        roles = ", ".join(_words(role) for role, planned in plan.roles.items() if planned.pool == name)
        yield from [f"pool     {name}: {roles}"] if len(plan.pools) > 1 else []
        count = f"{pool.num_ranks} x " if pool.num_ranks > 1 else ""
        yield f"device   {count}{pool.device_name} ({where})"
        yield f"profile  {pool.profile}: {pool.choices['profile'].reason}"


def _devices(pool: PoolPlan) -> str:
    """`cuda:0`, `cuda:0 to cuda:7 on each of 2 nodes`, or `cpu in 4 processes`."""
    count = len(pool.devices)
    names = f"{pool.device} to {pool.devices[-1]}" if count > 1 else pool.device
    if pool.device == "cpu" and count > 1:
        names = f"cpu in {count} processes"
    if pool.num_nodes > 1:
        return f"{names} on each of {pool.num_nodes} nodes"
    return f"{names} on node {pool.nodes[0]}" if pool.nodes != (0,) else names


def algorithm_lines(plan: Plan, config: RunConfig, set_by_name: Iterable[str] = ()) -> Iterator[str]:
    """The algorithm, the settings (dotted keys) that its name implies, and the models that it needs."""
    algorithm = config.algorithm
    row = ALGORITHMS[algorithm.name]
    loss = f", policy loss `{policy_loss_of(algorithm.name, algorithm.policy_loss)}`"
    yield f"method   {row.name}: {row.summary}{'' if is_offline(row.name) else loss}"
    values = values_of(config)
    given = ", ".join(f"`{key}={_short(values[key])}`" for key in set_by_name)
    if given:
        yield f"         `algorithm.name` sets {given}"
    yield f"models   {', '.join(_words(role) for role in plan.roles)}"


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def role_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Where each role works, and how its weights are divided among the devices of its pool."""
    rows: list[tuple[str, ...]] = []
    for name, role in plan.roles.items():
        pool = plan.pools[role.pool]
        count = pool.num_ranks
        shared = f"a copy on every {role.num_shards}" if role.num_shards < count else f"one copy on {count}"
        shared += f", {role.tensor_parallel} to a layer" if role.tensor_parallel > 1 else ""
        whole = "a copy on each" if count > 1 else "one copy"
        weights = whole if role.num_shards == 1 else shared
        if name == "rollout" and plan.rollout is not None and plan.rollout.tensor_parallel > 1:
            weights = f"a copy on every {plan.rollout.tensor_parallel}"
        devices = f"{count} x {pool.device_name}" if count > 1 else pool.device_name
        rows.append((_words(name), role.pool, devices, weights, role.storage_dtype, role.compute_dtype))
    return rows


def step_rows(pool: PoolPlan) -> list[tuple[str, ...]]:
    """Of one device in a step: estimated time of each phase, and what it exchanges with other devices."""
    return [
        *((phase, _seconds(seconds), "", "", "") for phase, seconds in pool.phase_seconds.items()),
        *(
            (item.phase, _seconds(item.seconds), item.name, format_bytes(item.num_bytes), item.link)
            for item in pool.transfers
        ),
    ]


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.3g}"


def choice_rows(pool: PoolPlan) -> list[tuple[str, str, str]]:
    """Concern, value and reason, in the order of the decisions."""
    return [
        (concern, choice.value + (" (set)" if choice.asked else ""), choice.reason)
        for concern, choice in pool.choices.items()
        if concern != "profile"
    ]


def rejected_rows(pool: PoolPlan) -> list[tuple[str, str, str]]:
    """Every rejected value with all reasons."""
    return [
        (concern, rejected.value, "; ".join(rejected.reasons))
        for concern, choice in pool.choices.items()
        for rejected in choice.rejected
    ]


def size_lines(plan: Plan, workload: Workload) -> Iterator[str]:
    """Batch, micro-batch and rollout sizes, in prompts and in sequences."""
    group, rows = workload.sequences_per_row, "prompts" if workload.generates else "rows"
    mini_batches = workload.batch_size // workload.mini_batch_size
    mini = f"{workload.mini_batch_size} {rows} = {workload.mini_batch_seqs} sequences"
    yield (
        f"step         {workload.batch_size} {rows} x {group} = {workload.batch_size * group} sequences, "
        f"{mini_batches} mini-batch{'es' if mini_batches > 1 else ''} of {mini}"
    )
    actor, ranks = plan.roles["actor"], plan.pool_of("actor").num_ranks
    if ranks > 1:
        share = -(-workload.batch_size // ranks)
        yield f"each device  {share} of {workload.batch_size} {rows} = {share * group} sequences"
    yield (
        f"micro-batch  up to {actor.micro_batch_size} sequences and {actor.max_tokens_per_micro_batch} tokens, "
        f"logits of {actor.logprob_chunk_tokens} tokens at a time"
    )
    if plan.rollout is not None:
        yield (
            f"rollout      {plan.rollout.max_num_seqs} concurrent sequences, "
            f"prefill of {plan.rollout.max_prefill_tokens} tokens"
            + (f", an engine on every {together} devices" if (together := plan.rollout.tensor_parallel) > 1 else "")
            + (", sleeps between rollouts" if plan.rollout.sleep_between else "")
        )


def phase_rows(pool: PoolPlan) -> list[tuple[str, str, str, str]]:
    """Phase, memory needed, memory available, largest items."""
    rows = []
    for budget in pool.budgets:
        largest = sorted(budget.items.items(), key=lambda item: -item[1])[:ITEMS_SHOWN]
        items = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
        available = format_bytes(pool.memory_available_bytes)
        rows.append((budget.phase, format_bytes(budget.total_bytes), available, items))
    return rows


def item_rows(pool: PoolPlan) -> list[tuple[str, str, str, str]]:
    """Every item of every phase, in bytes."""
    return [
        (budget.phase, name, str(size), format_bytes(size))
        for budget in pool.budgets
        for name, size in budget.items.items()
    ]


def verdict(plan: Plan) -> Iterator[str]:
    """The largest phase of each pool in one line."""
    for name, pool in plan.pools.items():
        worst = max(pool.budgets, key=lambda budget: budget.total_bytes)
        share = 100 * worst.total_bytes / pool.memory_available_bytes
        offloads = pool.host_bytes not in (0, pool.peak_bytes)
        host = f", {format_bytes(pool.host_bytes)} of host memory" if offloads else ""
        where = f" on pool `{name}`" if len(plan.pools) > 1 else ""
        yield (
            f"fits{where}: `{worst.phase}` is the largest phase with {format_bytes(worst.total_bytes)} of "
            f"{format_bytes(pool.memory_available_bytes)} ({share:.0f} %){host}"
        )


def _words(role: str) -> str:
    return role.replace("_", " ")
