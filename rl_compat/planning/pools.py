"""Which devices each pool of a run gets, and which roles work there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rl_compat.capability.devices import emulated_on_cpu, on_cpu
from rl_compat.config.rules.pools import MAIN_POOL
from rl_compat.config.settings import POOLS
from rl_compat.config.types import DevicesConfig, PoolConfig, RunConfig
from rl_compat.errors import HardwareError
from rl_compat.hardware.gpu.catalogue import emulated_hardware
from rl_compat.hardware.nodes import cards_of, least
from rl_compat.hardware.types import Hardware
from rl_compat.planning.types import RoleName
from rl_compat.planning.workload import Requests, run_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Devices that work as one pool, and what the user asks of them."""

    devices: tuple[int, ...] | None = None
    "of each node, indices as in `cuda:0`; empty is the CPU, None the first devices of the machine"
    requests: Requests = field(default_factory=Requests)
    "`requests.plan.num_devices` says how many devices"
    emulate: str | None = None
    "card that the devices emulate"
    section: str = "plan"
    "of the settings that ask"
    nodes: tuple[int, ...] = (0,)
    "positions in the cluster"

    @property
    def num_ranks(self) -> int:
        """Devices of all nodes."""
        return self.requests.plan.num_devices * self.requests.plan.num_nodes

    def hardware(self, cluster: Sequence[Hardware]) -> Hardware:
        """What each node has, with only the devices of the pool. Raises HardwareError for a card that is not known."""
        machine = least([cluster[node] for node in self.nodes])
        if self.emulate is not None:
            machine = emulated_hardware(self.emulate, machine)
        if emulated_on_cpu(machine):
            copies = range(self.requests.plan.num_devices)
            return replace(machine, devices=tuple(replace(machine.devices[0], index=index) for index in copies))
        if self.devices is None:
            return machine
        return replace(machine, devices=tuple(device for device in machine.devices if device.index in self.devices))

    def computes_on_host(self, cluster: Sequence[Hardware]) -> bool:
        """Whether the pool computes on the CPU, or emulates a card there."""
        selected = self.hardware(cluster)
        return self.requests.plan.device == "cpu" or on_cpu(selected) or emulated_on_cpu(selected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPools:
    """The pools of a run, and the pool of each role that does not work on the first one."""

    pools: Mapping[str, PoolRequest]
    roles: Mapping[RoleName, str]


def place(config: RunConfig, cluster: Sequence[Hardware]) -> PlacedPools:
    """The devices of each pool of a run. Raises HardwareError if there are not enough.

    A pool has the GPUs that it names. The others take those that are left: `main` first, then in the order of the
    settings. A pool takes the first nodes on which its devices are free, which have the same card.
    """
    for name, pool in ((MAIN_POOL, config.plan), *config.pools.items()):
        if pool.num_nodes > len(cluster):
            raise HardwareError(
                f"the pool `{name}` needs {pool.num_nodes} nodes and the cluster has {len(cluster)}",
                hint="set a smaller `num_nodes`, or add nodes with `ray start --address`",
            )
    requests = run_requests(config)
    if not config.pools and all(node is cluster[0] for node in cluster):
        nodes = tuple(range(config.plan.num_nodes))
        return PlacedPools(pools={MAIN_POOL: PoolRequest(requests=requests, nodes=nodes)}, roles={})
    asked: dict[str, DevicesConfig] = {MAIN_POOL: config.plan}
    asked |= {
        name: replace(pool, num_devices=len(pool.gpus) or pool.num_devices) for name, pool in config.pools.items()
    }
    places = _places(asked, cluster)
    return PlacedPools(
        pools={
            name: PoolRequest(
                devices=places[name][1],
                requests=replace(requests, plan=plan),
                emulate=plan.emulate if isinstance(plan, PoolConfig) else None,
                section="plan" if name == MAIN_POOL else f"{POOLS}.{name}",
                nodes=places[name][0],
            )
            for name, plan in asked.items()
        },
        roles={role: name for name, pool in config.pools.items() for role in pool.roles},
    )


Place = tuple[tuple[int, ...], tuple[int, ...] | None]
"nodes and devices, as in `PoolRequest`"


def _places(pools: Mapping[str, DevicesConfig], cluster: Sequence[Hardware]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    free = [[device.index for device in node.devices] for node in cluster]
    on_gpus: dict[str, DevicesConfig] = {}
    for name, pool in pools.items():
        emulated = isinstance(pool, PoolConfig) and pool.emulate is not None and not any(free)
        if pool.device == "cpu" or (not any(free) and not emulated and not _named(pool)):
            found[name] = (tuple(range(pool.num_nodes)), ())
        elif emulated or emulated_on_cpu(cluster[0]):
            found[name] = (tuple(range(pool.num_nodes)), None)
        else:
            on_gpus[name] = pool
    for name, pool in sorted(on_gpus.items(), key=lambda item: not _named(item[1])):
        found[name] = _on_gpus(name, pool, cluster, free, on_gpus)
        nodes, devices = found[name]
        for node in nodes:
            free[node] = [index for index in free[node] if index not in (devices or ())]
    return found


def _on_gpus(
    name: str,
    pool: DevicesConfig,
    cluster: Sequence[Hardware],
    free: Sequence[Sequence[int]],
    others: Mapping[str, DevicesConfig],
) -> Place:
    """The first nodes, with the same card, on which the devices of a pool are free."""
    for first, indices in enumerate(free):
        wanted = _named(pool) or tuple(indices[: pool.num_devices])
        cards = _cards(cluster[first], wanted)
        nodes = [
            node
            for node in range(first, len(cluster))
            if set(wanted) <= set(free[node]) and _cards(cluster[node], wanted) == cards
        ]
        if len(wanted) == pool.num_devices and len(nodes) >= pool.num_nodes:
            return tuple(nodes[: pool.num_nodes]), wanted
    visible = max(len(node.devices) for node in cluster)
    for index in _named(pool):
        if all(index not in [device.index for device in node.devices] for node in cluster):
            raise HardwareError(
                f"the pool `{name}` has GPU {index} and {visible} GPUs are visible",
                hint="see `rlc probe` for the visible devices",
            )
    if sum(len(indices) >= pool.num_devices for indices in free) >= pool.num_nodes > 1:
        held = "; ".join(cards_of(node) for node in cluster)
        raise HardwareError(
            f"the pool `{name}` needs {_size(pool)} equal cards, and the nodes have {held}",
            hint="give the nodes of each kind a pool of their own, with its `num_nodes`",
        )
    each = ", ".join(f"`{other}` {_size(asked)}" for other, asked in others.items())
    total = sum(len(node.devices) for node in cluster)
    wanted_in_all = sum(asked.num_devices * asked.num_nodes for asked in others.values())
    raise HardwareError(
        f"the pools have {wanted_in_all} GPUs ({each}) and {total} are visible",
        hint=f"give a pool fewer devices, or set `pools.{list(others)[-1]}.device=cpu`",
    )


def _named(pool: DevicesConfig) -> tuple[int, ...]:
    return pool.gpus if isinstance(pool, PoolConfig) else ()


def _size(pool: DevicesConfig) -> str:
    return f"{pool.num_nodes} x {pool.num_devices}" if pool.num_nodes > 1 else str(pool.num_devices)


def _cards(node: Hardware, indices: Sequence[int]) -> list[str]:
    return [device.name for device in node.devices if device.index in indices]
