"""Whether weights and optimizer states can wait in host memory."""

from __future__ import annotations

from rl_compat.capability.choose import capability
from rl_compat.capability.devices import on_cpu
from rl_compat.capability.types import Capability
from rl_compat.hardware.types import Hardware
from rl_compat.units import format_bytes


def host_budget_bytes(hardware: Hardware, *, fraction: float) -> int:
    """Host memory that a plan may fill: what is available, within the limit of the process."""
    host = hardware.host
    return int(min(host.ram_available_bytes, host.ram_limit_bytes, host.ram_total_bytes) * fraction)


def offload(hardware: Hardware, *, num_bytes: int, fraction: float) -> Capability:
    """Whether `num_bytes` fit in host memory and the devices have a memory of their own to spare."""
    if on_cpu(hardware):
        return capability("offload", ("the device is the host: its memory is what would be saved",))
    budget = host_budget_bytes(hardware, fraction=fraction)
    short = f"needs {format_bytes(num_bytes)} of host memory and {format_bytes(budget)} may be used"
    return capability("offload", (short,) if num_bytes > budget else ())
