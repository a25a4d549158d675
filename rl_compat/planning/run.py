"""The plan of a run on the pools of its settings, compared with other placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl_compat.capability.choice import Choice, Rejected
from rl_compat.config.types import PlacedRole, PoolConfig, RunConfig
from rl_compat.errors import RLCompatError, UsageError, quoted
from rl_compat.hardware.types import Hardware
from rl_compat.planning.cluster import Cluster, cluster_of
from rl_compat.planning.fit import assembled, solve_pools
from rl_compat.planning.pools import PlacedPools, place
from rl_compat.planning.simulation.choose import Divisions, compare
from rl_compat.planning.simulation.flow import Flow
from rl_compat.planning.simulation.rates import measured_flow, planned_flow
from rl_compat.planning.speed.measurements import Measurement
from rl_compat.planning.speed.rates import LinkRate
from rl_compat.planning.speed.step import Solved, phase_seconds, step_seconds, transfers
from rl_compat.planning.types import TRAINED_ROLES, Plan
from rl_compat.planning.workload import Workload
from rl_compat.units import format_bytes

ONE_DEVICE, MAIN_ALONE = "one device", "all on `main`"


@dataclass(frozen=True, slots=True)
class _Planner:
    """Solves a run with other settings."""

    workload: Workload
    cluster: Cluster
    measured: Sequence[Measurement]

    def solve(self, placed: PlacedPools) -> dict[str, Solved]:
        return solve_pools(
            self.workload, self.cluster.nodes, placed.pools, placement=placed.roles, measured=self.measured
        )

    def seconds(self, config: RunConfig) -> float | str | None:
        """Of a step, or why the settings cannot be planned; None if a rate is unknown."""
        try:
            return step_seconds(self.solve(place(config, self.cluster.nodes)), self.cluster.network)
        except RLCompatError as error:
            return error.message


def run_plan(
    config: RunConfig,
    workload: Workload,
    machine: Hardware | Cluster,
    *,
    measured: Sequence[Measurement] = (),
) -> Plan:
    """The plan of a run on a cluster, on the nodes that a machine has asked, or on as many like it as the settings say.

    With several devices, the first pool has the choice `placement` with its alternatives. Raises HardwareError,
    ConfigError or DoesNotFitError.
    """
    cluster = _cluster(config, machine)
    planner, placed = _Planner(workload, cluster, measured), place(config, cluster.nodes)
    solved = planner.solve(placed)
    plan = assembled(solved, cluster.network)
    plan = replace(
        plan, pools={name: replace(pool, nodes=placed.pools[name].nodes) for name, pool in plan.pools.items()}
    )
    if len(solved) == 1 and all(pool.num_ranks == 1 for pool in plan.pools.values()):
        return plan
    seconds = step_seconds(solved, cluster.network)
    others = {name: planner.seconds(other) for name, other in _alternatives(config, workload, plan)}
    first, pool = next(iter(plan.pools.items()))
    choice = _choice(_words(plan), seconds, others, asked=bool(config.pools))
    notes = (*pool.notes, *_slower_than_less(solved, seconds, others, cluster.network))
    compared = replace(pool, choices={**pool.choices, "placement": choice}, notes=notes)
    return replace(plan, pools={**plan.pools, first: compared})


def simulate_run(
    config: RunConfig,
    workload: Workload,
    machine: Hardware | Cluster,
    lengths: Sequence[int],
    *,
    measured: Path | None = None,
) -> Divisions:
    """A run on its devices in turn, and on divisions of them, with estimated times or those of a finished run.

    A device generates as many sequences at the same time as its memory holds. Raises the errors of `run_plan`, and
    UsageError without known times.
    """
    if not workload.generates:
        raise UsageError(
            f"`algorithm.name={config.algorithm.name}` generates nothing: there is nothing to divide",
            hint="simulate an algorithm such as `grpo`",
        )
    if config.rollout.tensor_parallel > 1:
        raise UsageError(
            f"`rollout.tensor_parallel` is {config.rollout.tensor_parallel}, and a simulation divides single devices",
            hint="simulate with `rollout.tensor_parallel=1`",
        )
    cluster = _cluster(config, machine)
    placed, batch_rows = place(config, cluster.nodes), workload.batch_size * workload.sequences_per_row
    asked = [pool.requests.plan for pool in placed.pools.values()]
    num_devices = sum(plan.num_devices * plan.num_nodes for plan in asked)
    most = replace(workload, min_rollout_seqs=num_devices * batch_rows)  # a device may have to hold them all
    solved = _Planner(most, cluster, ()).solve(placed)
    try:
        mean = sum(lengths) / len(lengths)
        flow = planned_flow(solved, cluster.network, batch_rows=batch_rows, mean_length=mean)
    except UsageError:
        if measured is None:
            raise
        flow = Flow(on_update="continue", batch_rows=batch_rows, num_slots=1, decode_seconds=1.0)
    if measured is not None:
        flow = measured_flow(measured, lengths, like=flow)
    return compare(flow, lengths, num_devices=num_devices)


def _cluster(config: RunConfig, machine: Hardware | Cluster) -> Cluster:
    most = max((pool.num_nodes for pool in (config.plan, *config.pools.values())), default=1)
    return machine if isinstance(machine, Cluster) else cluster_of(machine, num_nodes=most)


def _alternatives(config: RunConfig, workload: Workload, plan: Plan) -> Iterator[tuple[str, RunConfig]]:
    """Other placements of the same roles, by name: everything on one pool, or frozen models on one of their own."""
    devices = sum(len(pool.devices) for pool in plan.pools.values())
    alike = len({pool.device_name for pool in plan.pools.values()}) == 1
    if config.pools:
        yield MAIN_ALONE, replace(config, pools={})
        if alike:
            plan_of_all = replace(config.plan, num_devices=devices, num_shards="auto")
            together = replace(config, pools={}, plan=plan_of_all)
            yield f"one pool of {devices}", together
        return
    alone = replace(config.plan, num_devices=1, num_nodes=1, num_shards="auto", tensor_parallel=1)
    yield ONE_DEVICE, replace(config, plan=alone, rollout=replace(config.rollout, tensor_parallel=1))
    frozen: tuple[PlacedRole, ...] = tuple(role for role in workload.models if role not in TRAINED_ROLES)
    if frozen and devices > 1 and config.plan.num_nodes == 1:
        apart = replace(
            config,
            pools={"score": PoolConfig(roles=frozen, device=config.plan.device)},
            plan=replace(config.plan, num_devices=devices - 1, num_shards="auto"),
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


def _slower_than_less(
    solved: Mapping[str, Solved], seconds: float | None, others: Mapping[str, float | str | None], network: LinkRate
) -> Iterator[str]:
    """A note where fewer devices are estimated to be as fast as all of them."""
    for less in (ONE_DEVICE, MAIN_ALONE):
        other = others.get(less)
        if seconds is None or not isinstance(other, float) or other > seconds:
            continue
        ranks = sum(decided.num_ranks for decided, _ in solved.values())
        yield (
            f"{ranks} devices take about {seconds:.3g} s a step, and {less} {other:.3g} s: {_slowest(solved, network)}"
        )


def _slowest(solved: Mapping[str, Solved], network: LinkRate) -> str:
    """What takes longest of all that more devices bring: the transfers, or the phases of the other pools."""
    moved = [
        (item.seconds or 0.0, f"`{item.phase}` moves {format_bytes(item.num_bytes)} of {item.name} over {item.link}")
        for name in solved
        for item in transfers(solved, name, network)
    ]
    elsewhere = [
        (time, f"`{phase}` takes {time:.3g} s on pool `{name}`")
        for name, pool in list(solved.items())[1:]
        for phase, time in phase_seconds(pool).items()
    ]
    return max([*moved, *elsewhere])[1]
