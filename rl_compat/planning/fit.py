"""Facts and a request become a plan: the cheapest way of working whose every phase fits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rl_compat.config.types import RunConfig
from rl_compat.errors import DoesNotFitError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.alternatives import nearest_that_fits
from rl_compat.planning.decide import Decided, decide
from rl_compat.planning.memory.ladder import Found, search, shortage_text
from rl_compat.planning.memory.sizing import Shortage
from rl_compat.planning.resolve import resolve
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.speed.engines import with_fastest_engine
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.types import Plan
from rl_compat.units import format_bytes


def make_plan(
    config: RunConfig,
    hardware: Hardware,
    shape: ModelShape,
    critic_shape: ModelShape | None = None,
    *,
    reward_shape: ModelShape | None = None,
    cost_shape: ModelShape | None = None,
    measured: Sequence[Measurement] = (),
) -> Plan:
    """Everything resolved for one run on one machine; `critic_shape` is the actor's when not given.

    `reward_shape` and `cost_shape` are those of a learned reward and cost, if there are any. `measured` are speeds of
    rollout engines on this machine, which come before those that are shipped.

    Raises HardwareError for a setting that the hardware cannot honour, ConfigError for one that contradicts another,
    and DoesNotFitError, with the nearest request that fits, when no way of working does.
    """
    again = partial(decide, config, hardware, shape, critic_shape or shape, reward_shape, cost_shape)
    decided = again()
    outcome = _search(decided)
    if isinstance(outcome, Found):
        return resolve(
            *with_fastest_engine(
                decided, outcome, own=measured, decide=lambda choice: again(engine=choice), search=_search
            )
        )
    raise DoesNotFitError(
        f"{shortage_text(outcome)} ({_where(decided, outcome)})",
        hint=nearest_that_fits(decided, _search, critic_shape=critic_shape),
    )


def plan_if_it_fits(config: RunConfig, hardware: Hardware, shape: ModelShape) -> Plan | None:
    """What `make_plan` gives, None where it raises DoesNotFitError, without looking for what would fit."""
    decided = decide(config, hardware, shape, shape)
    outcome = _search(decided)
    return resolve(decided, outcome) if isinstance(outcome, Found) else None


def _search(decided: Decided) -> Found | Shortage:
    return search(
        decided.request,
        decided.levels,
        wanted=decided.wanted,
        limits=decided.profile.limits,
        room=decided.room,
        host_budget_bytes=decided.host_budget_bytes,
    )


def _where(decided: Decided, short: Shortage) -> str:
    host = decided.hardware.host
    if short.phase == "host memory" or not decided.hardware.devices:
        limit = format_bytes(host.ram_limit_bytes)
        return f"{format_bytes(host.ram_available_bytes)} of host memory available, limit {limit}"
    device = decided.hardware.devices[0]
    return (
        f"{format_bytes(device.memory_free_bytes)} of {format_bytes(device.memory_total_bytes)} free on {device.name}"
    )
