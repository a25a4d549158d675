"""Which optimizers run on a machine, and whether their states can be offloaded."""

from __future__ import annotations

from rl_compat.capability import bitsandbytes
from rl_compat.capability.choice import Capability, capability
from rl_compat.capability.devices import on_cpu
from rl_compat.hardware.types import Hardware
from rl_compat.units import format_bytes

OPTIMIZERS = ("adamw", "adamw8bit")
STATE_BYTES = {"adamw": 8, "adamw8bit": 2}
"per trained parameter: two moments in fp32, or in 8 bits"


def optimizer(hardware: Hardware, name: str, *, offloaded: bool = False) -> Capability:
    """Whether an optimizer runs with its states on the device, or `offloaded` to the host."""
    if name == "adamw":
        return capability(name)
    apart = ("keeps its states on the GPU, and `plan.offload_optimizer=true` keeps them on the host",)
    return capability(name, apart if offloaded else (), bitsandbytes.missing(hardware, feature="optimizer_8bit"))


def host_budget_bytes(hardware: Hardware, *, fraction: float) -> int:
    """Host memory that a plan may use: available memory, within the limit of the process."""
    host = hardware.host
    return int(min(host.ram_available_bytes, host.ram_limit_bytes, host.ram_total_bytes) * fraction)


def offload(hardware: Hardware, *, num_bytes: int, fraction: float) -> Capability:
    """Whether `num_bytes` fit in host memory, and the devices have memory of their own."""
    if on_cpu(hardware):
        return capability("offload", ("the device is the CPU: its memory is the host's",))
    budget = host_budget_bytes(hardware, fraction=fraction)
    short = f"needs {format_bytes(num_bytes)} of host memory and {format_bytes(budget)} is available"
    return capability("offload", (short,) if num_bytes > budget else ())
