"""Which devices each pool of a run gets, and which roles work there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rl_compat.capability.devices import emulated_on_cpu, on_cpu
from rl_compat.config.rules.pools import MAIN_POOL
from rl_compat.config.settings import POOLS
from rl_compat.config.types import DevicesConfig, PoolConfig, RunConfig
from rl_compat.errors import HardwareError
from rl_compat.hardware.gpu.catalogue import emulated_hardware
from rl_compat.hardware.types import Hardware
from rl_compat.planning.types import RoleName
from rl_compat.planning.workload import Requests, run_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """Devices that work as one pool, and what the user asks of them."""

    devices: tuple[int, ...] | None = None
    "indices as in `cuda:0`; empty is the CPU, None the first devices of the machine"
    requests: Requests = field(default_factory=Requests)
    "`requests.plan.num_devices` says how many devices"
    emulate: str | None = None
    "card that the devices emulate"
    section: str = "plan"
    "of the settings that ask"

    def hardware(self, machine: Hardware) -> Hardware:
        """The machine with no other devices than the pool's. Raises HardwareError for a card that is not known."""
        if self.emulate is not None:
            machine = emulated_hardware(self.emulate, machine)
        if emulated_on_cpu(machine):
            copies = range(self.requests.plan.num_devices)
            return replace(machine, devices=tuple(replace(machine.devices[0], index=index) for index in copies))
        if self.devices is None:
            return machine
        return replace(machine, devices=tuple(device for device in machine.devices if device.index in self.devices))

    def computes_on_host(self, machine: Hardware) -> bool:
        """Whether the pool computes on the CPU, or emulates a card there."""
        selected = self.hardware(machine)
        return self.requests.plan.device == "cpu" or on_cpu(selected) or emulated_on_cpu(selected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPools:
    """The pools of a run, and the pool of each role that does not work on the first one."""

    pools: Mapping[str, PoolRequest]
    roles: Mapping[RoleName, str]


def place(config: RunConfig, machine: Hardware) -> PlacedPools:
    """The devices of each pool of a run. Raises HardwareError if there are not enough.

    A pool has the GPUs that it names. The others take those that are left: `main` first, then in the order of the
    settings.
    """
    requests = run_requests(config)
    if not config.pools:
        return PlacedPools(pools={MAIN_POOL: PoolRequest(requests=requests)}, roles={})
    asked: dict[str, DevicesConfig] = {MAIN_POOL: config.plan}
    asked |= {
        name: replace(pool, num_devices=len(pool.gpus) or pool.num_devices) for name, pool in config.pools.items()
    }
    devices = _devices(asked, machine)
    return PlacedPools(
        pools={
            name: PoolRequest(
                devices=devices[name],
                requests=replace(requests, plan=plan),
                emulate=_card(plan),
                section="plan" if name == MAIN_POOL else f"{POOLS}.{name}",
            )
            for name, plan in asked.items()
        },
        roles={role: name for name, pool in config.pools.items() for role in pool.roles},
    )


def _devices(pools: Mapping[str, DevicesConfig], machine: Hardware) -> dict[str, tuple[int, ...] | None]:
    """The devices of each pool, as in `PoolRequest`."""
    visible = [device.index for device in machine.devices]
    named = {name: pool.gpus for name, pool in pools.items() if isinstance(pool, PoolConfig)}
    on_cpu = [name for name, pool in pools.items() if pool.device == "cpu"]
    emulated = [name for name, pool in pools.items() if _card(pool) is not None and not visible]
    if emulated_on_cpu(machine):
        emulated = list(pools)
    on_gpus = [name for name in pools if name not in (*on_cpu, *emulated)]
    for name in on_gpus:
        for index in named.get(name, ()):
            if index not in visible:
                raise HardwareError(
                    f"the pool `{name}` has GPU {index} and {len(visible)} GPUs are visible",
                    hint="see `rlc probe` for the visible devices",
                )
    free = [index for index in visible if not any(index in named.get(name, ()) for name in on_gpus)]
    found: dict[str, tuple[int, ...] | None] = dict.fromkeys(pools, ()) | dict.fromkeys(emulated)
    for name in on_gpus if visible else ():
        count = pools[name].num_devices
        found[name] = named.get(name) or tuple(free[:count])
        if len(found[name] or ()) < count:
            raise _too_few({name: pools[name].num_devices for name in on_gpus}, len(visible))
        free = free if named.get(name) else free[count:]
    return found


def _card(pool: DevicesConfig) -> str | None:
    return pool.emulate if isinstance(pool, PoolConfig) else None


def _too_few(wanted: Mapping[str, int], visible: int) -> HardwareError:
    each = ", ".join(f"`{name}` {count}" for name, count in wanted.items())
    last = list(wanted)[-1]
    return HardwareError(
        f"the pools have {sum(wanted.values())} GPUs ({each}) and {visible} are visible",
        hint=f"give a pool fewer devices, or set `pools.{last}.device=cpu`",
    )
