"""Which optimizers, and which of their implementations, run on a machine."""

from __future__ import annotations

from rl_compat.capability import bitsandbytes
from rl_compat.capability.choose import capability
from rl_compat.capability.types import Capability
from rl_compat.hardware.types import Hardware

OPTIMIZERS = ("adamw", "adamw8bit")
STATE_BYTES = {"adamw": 8, "adamw8bit": 2}
"per trained parameter: two moments in fp32, or in 8 bits"


def optimizer(hardware: Hardware, name: str, *, offloaded: bool = False) -> Capability:
    """Whether an optimizer runs where its states are kept."""
    if name == "adamw":
        return capability(name)
    apart = ("keeps its states on the GPU, and `plan.offload_optimizer=true` keeps them on the host",)
    return capability(name, apart if offloaded else (), bitsandbytes.missing(hardware, feature="optimizer_8bit"))
