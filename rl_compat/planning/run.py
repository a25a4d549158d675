"""The plan of a run on the pools of its settings, compared with other placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rl_compat.capability.choice import Choice, Rejected
from rl_compat.config.types import PlacedRole, PoolConfig, RunConfig
from rl_compat.errors import RLCompatError, quoted
from rl_compat.hardware.types import Hardware
from rl_compat.planning.fit import assembled, solve_pools
from rl_compat.planning.pools import place
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.speed.rates import UNKNOWN_NETWORK, LinkRate
from rl_compat.planning.speed.step import Solved, step_seconds, transfers
from rl_compat.planning.types import TRAINED_ROLES, Plan
from rl_compat.planning.workload import Workload
from rl_compat.units import format_bytes

ONE_DEVICE = "one device"


@dataclass(frozen=True, slots=True)
class _Planner:
    """Solves a run with other settings."""

    workload: Workload
    machine: Hardware
    measured: Sequence[Measurement]
    network: LinkRate

    def solve(self, config: RunConfig) -> dict[str, Solved]:
        placed = place(config, self.machine)
        return solve_pools(self.workload, self.machine, placed.pools, placement=placed.roles, measured=self.measured)

    def seconds(self, config: RunConfig) -> float | str | None:
        """Of a step, or why the settings cannot be planned; None if a rate is unknown."""
        try:
            return step_seconds(self.solve(config), self.network)
        except RLCompatError as error:
            return error.message


def run_plan(
    config: RunConfig,
    workload: Workload,
    machine: Hardware,
    *,
    measured: Sequence[Measurement] = (),
    network: LinkRate = UNKNOWN_NETWORK,
) -> Plan:
    """The plan of a run. With several devices, its first pool has the choice `placement` with its alternatives.

    `network` connects the nodes. Raises HardwareError, ConfigError or DoesNotFitError.
    """
    planner = _Planner(workload, machine, measured, network)
    solved = planner.solve(config)
    plan = assembled(solved, network)
    if len(solved) == 1 and all(pool.num_ranks == 1 for pool in plan.pools.values()):
        return plan
    seconds = step_seconds(solved, network)
    others = {name: planner.seconds(other) for name, other in _alternatives(config, workload, plan)}
    first, pool = next(iter(plan.pools.items()))
    choice = _choice(_words(plan), seconds, others, asked=bool(config.pools))
    notes = (*pool.notes, *_slower_than_one(solved, seconds, others.get(ONE_DEVICE), network))
    compared = replace(pool, choices={**pool.choices, "placement": choice}, notes=notes)
    return replace(plan, pools={**plan.pools, first: compared})


def _alternatives(config: RunConfig, workload: Workload, plan: Plan) -> Iterator[tuple[str, RunConfig]]:
    """Other placements of the same roles, by name: everything on one pool, or frozen models on one of their own."""
    devices = sum(len(pool.devices) for pool in plan.pools.values())
    alike = len({pool.device_name for pool in plan.pools.values()}) == 1
    if config.pools:
        if alike:
            together = replace(config, pools={}, plan=replace(config.plan, num_devices=devices))
            yield f"one pool of {devices}", together
        return
    yield ONE_DEVICE, replace(config, plan=replace(config.plan, num_devices=1, num_nodes=1, num_shards="auto"))
    frozen: tuple[PlacedRole, ...] = tuple(role for role in workload.models if role not in TRAINED_ROLES)
    if frozen and devices > 1 and config.plan.num_nodes == 1:
        apart = replace(
            config,
            pools={"score": PoolConfig(roles=frozen, device=config.plan.device)},
            plan=replace(config.plan, num_devices=devices - 1),
        )
        yield f"{quoted(frozen)} on a device of their own", apart


def _words(plan: Plan) -> str:
    """`one pool of 8`, or the number of devices of each pool."""
    if len(plan.pools) == 1:
        return f"one pool of {next(iter(plan.pools.values())).num_ranks}"
    return ", ".join(f"{name} {pool.num_ranks}" for name, pool in plan.pools.items())


def _choice(value: str, seconds: float | None, others: Mapping[str, float | str | None], *, asked: bool) -> Choice:
    """The placement of the settings, with the estimated step of each alternative."""
    reason = "set by the user" if asked else "every role works on all devices"
    reason += f"; about {seconds:.3g} s a step" if seconds is not None else "; no estimate, since a rate is unknown"
    rejected = []
    for name, other in others.items():
        if isinstance(other, float):
            rejected.append(Rejected(value=name, reasons=(f"about {other:.3g} s a step",), works=True))
        else:
            rejected.append(Rejected(value=name, reasons=(other or "no estimate, since a rate is unknown",)))
    return Choice(value=value, reason=reason, rejected=tuple(rejected), asked=asked)


def _slower_than_one(
    solved: Mapping[str, Solved], seconds: float | None, one: float | str | None, network: LinkRate
) -> Iterator[str]:
    """A note where one device is estimated to be as fast as all of them."""
    if seconds is None or not isinstance(one, float) or one > seconds:
        return
    moved = [transfer for name in solved for transfer in transfers(solved, name, network)]
    largest = max(moved, key=lambda transfer: transfer.seconds or 0.0)
    ranks = sum(decided.num_ranks for decided, _ in solved.values())
    yield (
        f"{ranks} devices are about as fast as one or slower: {seconds:.3g} s a step against {one:.3g} s, since "
        f"`{largest.phase}` moves {format_bytes(largest.num_bytes)} of {largest.name} over {largest.link}"
    )
