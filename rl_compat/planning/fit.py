"""A workload on devices becomes a plan: the cheapest way of working whose every phase fits in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import get_args

from rl_compat.capability.choice import Choice
from rl_compat.capability.devices import has_unified_memory
from rl_compat.config.types import DevicesConfig
from rl_compat.errors import DoesNotFitError, UsageError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.alternatives import nearest_that_fits, with_tried_hint
from rl_compat.planning.decide import Decided, decide
from rl_compat.planning.memory.ladder import Shortage, Solution, search, shortage_text
from rl_compat.planning.pools import PoolRequest
from rl_compat.planning.resolve import pool_host_bytes, pool_plan, role_plans, rollout_plan
from rl_compat.planning.speed.engines import with_fastest_engine
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.speed.rates import UNKNOWN_NETWORK, LinkRate
from rl_compat.planning.speed.step import Solved, phase_seconds, transfers
from rl_compat.planning.types import MAIN_POOL, Plan, RoleName, RolePlan
from rl_compat.planning.workload import Requests, Workload
from rl_compat.units import format_bytes


def make_plan(
    workload: Workload, hardware: Hardware, requests: Requests = Requests(), *, measured: Sequence[Measurement] = ()
) -> Plan:
    """The plan of a workload on one pool.

    `measured` are speeds of rollout engines on this machine; they take precedence over the shipped ones.

    Raises HardwareError for a setting that the hardware cannot honour, ConfigError for one that contradicts another,
    and DoesNotFitError, with the nearest request that fits, if nothing does.
    """
    return plan_pools(workload, hardware, {MAIN_POOL: PoolRequest(requests=requests)}, measured=measured)


def plan_pools(
    workload: Workload,
    hardware: Hardware,
    pools: Mapping[str, PoolRequest],
    *,
    placement: Mapping[RoleName, str] | None = None,
    measured: Sequence[Measurement] = (),
) -> Plan:
    """The plan of a workload whose roles are spread over pools, each planned for its own devices.

    `placement` gives the pool of each role that does not work on the first one; a pool without a role of the workload
    is left out. Raises the errors of `make_plan`.
    """
    return assembled(solve_pools(workload, (hardware,), pools, placement=placement, measured=measured))


def solve_pools(
    workload: Workload,
    cluster: Sequence[Hardware],
    pools: Mapping[str, PoolRequest],
    *,
    placement: Mapping[RoleName, str] | None = None,
    measured: Sequence[Measurement] = (),
) -> dict[str, Solved]:
    """The decisions, levers and sizes of each pool, as in `plan_pools`; the host of a node is shared by its pools."""
    of_role, workload = _placed(workload, placement or {}, next(iter(pools)))
    pools = {name: pool for name, pool in pools.items() if name in of_role.values()}
    on_host = [name for name, pool in pools.items() if pool.computes_on_host(cluster)]
    solved: dict[str, Solved] = {}
    for name, pool in pools.items():
        neighbours = [other for other in pools if set(pools[other].nodes) & set(pool.nodes)]
        together = [other for other in on_host if other in neighbours] if name in on_host else []
        taken = [solved[other] for other in neighbours if other in solved and other not in together]
        decide_pool = partial(
            decide,
            hardware=pool.hardware(cluster),
            host_taken_bytes=sum(pool_host_bytes(*other) * other[0].num_devices for other in taken),
            host_processes=sum(pools[other].requests.plan.num_devices for other in together) or None,
        )
        try:
            own = workload.only([role for role, at in of_role.items() if at == name])
            if name == of_role.get("actor") and "rollout" in of_role:
                apart = workload.asynchronous or len(cluster) > 1 or {name, of_role["rollout"]} & set(on_host)
                own = replace(own, publishers=pool.num_ranks if apart else 0)
            solved[name] = _solve(own, pool.requests, decide_pool, measured=measured)
        except UsageError as error:
            raise _in_words_of(pool.section, error) from None
    return solved


def _placed(workload: Workload, placement: Mapping[RoleName, str], first: str) -> tuple[dict[RoleName, str], Workload]:
    """The pool of each role, and the workload with a role for a rollout that is not on the actor's pool.

    An actor that does nothing but generate does so where the rollout is.
    """
    of_role = {role: placement.get(role, first) for role in workload.models}
    generates_at = placement.get("rollout", of_role.get("actor", first))
    if workload.generates and generates_at != of_role["actor"]:
        if all(phase.does == "generate" for phase in workload.phases if phase.role == "actor"):
            return of_role | {"actor": generates_at}, workload
        return of_role | {"rollout": generates_at}, workload.with_own_rollout()
    return of_role, workload


def _in_words_of(section: str, error: UsageError) -> UsageError:
    """The error with the settings of a section in place of those of `plan`."""
    if section == "plan":
        return error
    shared = "|".join(field.name for field in fields(DevicesConfig))
    message, hint = (
        re.sub(rf"\bplan\.({shared})\b", rf"{section}.\1", text or "") for text in (error.message, error.hint)
    )
    return type(error)(f"`{section}`: {message}", hint=hint or None)


def plan_if_it_fits(workload: Workload, hardware: Hardware, requests: Requests) -> Plan | None:
    """The plan of one pool, or None where `make_plan` raises DoesNotFitError; without a search for alternatives."""
    decided = decide(workload, hardware, requests)
    outcome = search(decided.problem)
    return assembled({MAIN_POOL: (decided, outcome)}) if isinstance(outcome, Solution) else None


def assembled(solved: Mapping[str, Solved], network: LinkRate = UNKNOWN_NETWORK) -> Plan:
    """The plan of solved pools. `network` connects the nodes."""
    roles: dict[RoleName, RolePlan] = {}
    for name, (decided, found) in solved.items():
        roles |= role_plans(decided, found, pool=name)
    generating = [name for name, (decided, _) in solved.items() if decided.workload.generates]
    pools = {name: pool_plan(decided, found) for name, (decided, found) in solved.items()}
    if len(pools) > 1 or any(pool.num_ranks > 1 for pool in pools.values()):
        pools = {
            name: replace(pool, phase_seconds=phase_seconds(solved[name]), transfers=transfers(solved, name, network))
            for name, pool in pools.items()
        }
    return Plan(
        pools=pools,
        roles={role: roles[role] for role in get_args(RoleName) if role in roles},
        rollout=rollout_plan(*solved[generating[0]], pool=generating[0]) if generating else None,
    )


def _solve(
    workload: Workload, requests: Requests, decide_pool: Callable[..., Decided], *, measured: Sequence[Measurement]
) -> Solved:
    """The decisions, levers and sizes of one pool. Raises DoesNotFitError."""

    def again(workload: Workload, requests: Requests, engine: Choice | None = None) -> Decided:
        return decide_pool(workload, requests=requests, engine=engine)

    try:
        decided = again(workload, requests)
    except UsageError as error:
        raise with_tried_hint(error, workload, requests, again) from None
    outcome = search(decided.problem)
    if isinstance(outcome, Solution):
        chosen = partial(again, workload, requests)
        return with_fastest_engine(decided, outcome, own=measured, decide=chosen)
    share = requests.rollout.gpu_memory_utilization
    given = "" if share is None else f"; `rollout.gpu_memory_utilization={share}` is set"
    raise DoesNotFitError(
        f"{shortage_text(outcome)} ({_where(decided, outcome)}{given})",
        hint=nearest_that_fits(workload, requests, again),
    )


def _where(decided: Decided, short: Shortage) -> str:
    host = decided.hardware.host
    if short.phase == "host memory" or not decided.hardware.devices:
        limit = format_bytes(host.ram_limit_bytes)
        return f"{format_bytes(host.ram_available_bytes)} of host memory available, limit {limit}"
    device = decided.hardware.devices[0]
    free, total = format_bytes(device.memory_free_bytes), format_bytes(device.memory_total_bytes)
    shared = has_unified_memory(decided.hardware)
    also = f", shared with the host, which has {format_bytes(host.ram_available_bytes)} available" if shared else ""
    return f"{free} of {total} free on {device.name}{also}"
