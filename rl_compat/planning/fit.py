"""A workload on devices becomes a plan: the cheapest way of working whose every phase fits in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rl_compat.capability.choice import Choice
from rl_compat.capability.devices import has_unified_memory
from rl_compat.errors import DoesNotFitError, HardwareError, UsageError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.alternatives import nearest_that_fits, with_tried_hint
from rl_compat.planning.decide import Decided, decide
from rl_compat.planning.memory.ladder import Shortage, Solution, search, shortage_text
from rl_compat.planning.resolve import pool_host_bytes, pool_plan, role_plans, rollout_plan
from rl_compat.planning.speed.engines import with_fastest_engine
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.types import MAIN_POOL, Plan, RoleName, RolePlan
from rl_compat.planning.workload import Requests, Workload
from rl_compat.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Devices that work as one pool, and what the user asks of them."""

    devices: tuple[int, ...] | None = None
    "indices as in `cuda:0`; empty is the CPU, None the device that `requests` select"
    requests: Requests = field(default_factory=Requests)


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

    `placement` gives the pool of each role that does not work on the first one; every pool has a role. Raises the
    errors of `make_plan`, and HardwareError for a pool of several devices.
    """
    solved: dict[str, tuple[Decided, Solution]] = {}
    first, host_taken_bytes = next(iter(pools)), 0
    for name, pool in pools.items():
        roles = [role for role in workload.models if (placement or {}).get(role, first) == name]
        assert roles, f"no role works on the pool {name}"
        solved[name] = _solve(
            workload.only(roles),
            _devices_of(pool, hardware),
            pool.requests,
            measured=measured,
            host_taken_bytes=host_taken_bytes,
        )
        host_taken_bytes += pool_host_bytes(*solved[name])
    return _assembled(workload, solved)


def plan_if_it_fits(workload: Workload, hardware: Hardware, requests: Requests) -> Plan | None:
    """The plan of one pool, or None where `make_plan` raises DoesNotFitError; without a search for alternatives."""
    decided = decide(workload, hardware, requests)
    outcome = search(decided.problem)
    return _assembled(workload, {MAIN_POOL: (decided, outcome)}) if isinstance(outcome, Solution) else None


def _assembled(workload: Workload, solved: Mapping[str, tuple[Decided, Solution]]) -> Plan:
    roles: dict[RoleName, RolePlan] = {}
    for name, (decided, found) in solved.items():
        roles |= role_plans(decided, found, pool=name)
    generating = [name for name, (decided, _) in solved.items() if decided.workload.generates]
    return Plan(
        pools={name: pool_plan(decided, found) for name, (decided, found) in solved.items()},
        roles={role: roles[role] for role in workload.models},
        rollout=rollout_plan(*solved[generating[0]], pool=generating[0]) if generating else None,
    )


def _solve(
    workload: Workload,
    hardware: Hardware,
    requests: Requests,
    *,
    measured: Sequence[Measurement],
    host_taken_bytes: int,
) -> tuple[Decided, Solution]:
    """The decisions, levers and sizes of one pool. Raises DoesNotFitError."""

    def again(workload: Workload, requests: Requests, engine: Choice | None = None) -> Decided:
        return decide(workload, hardware, requests, engine=engine, host_taken_bytes=host_taken_bytes)

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


def _devices_of(pool: PoolRequest, hardware: Hardware) -> Hardware:
    """The hardware with only the pool's devices. Raises HardwareError."""
    if pool.devices is None:
        return hardware
    if len(pool.devices) > 1:
        raise HardwareError(
            f"the pool has the devices {list(pool.devices)}, and this version supports one device per pool"
        )
    return replace(hardware, devices=tuple(device for device in hardware.devices if device.index in pool.devices))


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
