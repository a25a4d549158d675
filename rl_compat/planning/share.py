"""A rollout engine's share of the device, which is a share of its total memory and not of what is free."""

from __future__ import annotations

from rl_compat.config.types import RunConfig
from rl_compat.errors import DoesNotFitError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.memory import weights_bytes
from rl_compat.planning.work import Levers, MemoryRequest
from rl_compat.units import format_bytes


def kv_room_bytes(
    *, total_bytes: int, resident_bytes: int, weights_bytes: int, overhead_bytes: int, share: float
) -> int:
    """What is left for the cache when an engine may hold `share` of the device beside a trainer.

    Raises DoesNotFitError, with the shares that work, when engine and trainer together exceed the device or the
    share does not hold the engine's own weights.
    """
    lowest = (weights_bytes + overhead_bytes) / total_bytes
    highest = (total_bytes - resident_bytes) / total_bytes
    hint = f"set `rollout.gpu_memory_utilization` above {lowest:.2f} and at most {highest:.2f}"
    if lowest >= highest:
        hint = "free memory first: `plan.offload_idle_models=true`, or a smaller model"
    if share > highest:
        raise DoesNotFitError(
            f"`rollout.gpu_memory_utilization={share}` is {format_bytes(share * total_bytes)} of "
            f"{format_bytes(total_bytes)}, and the trainer holds {format_bytes(resident_bytes)}",
            hint=hint,
        )
    if share <= lowest:
        raise DoesNotFitError(
            f"`rollout.gpu_memory_utilization={share}` is {format_bytes(share * total_bytes)}, and the engine needs "
            f"{format_bytes(weights_bytes + overhead_bytes)} before any cache",
            hint=hint,
        )
    return int(share * total_bytes) - weights_bytes - overhead_bytes


def engine_room_bytes(config: RunConfig, hardware: Hardware, request: MemoryRequest) -> int | None:
    """What the user lets the engine hold, cache and weights together; None when the planner decides."""
    share = config.rollout.gpu_memory_utilization
    if share is None or not request.generates:
        return None
    total = hardware.devices[0].memory_total_bytes if hardware.devices else hardware.host.ram_limit_bytes
    copy = request.actor.num_parameters * 2 if request.rollout_dtype != "fp32" else 0
    resident = sum(weights_bytes(request, Levers(), role) for role in request.roles)
    room = kv_room_bytes(total_bytes=total, resident_bytes=resident, weights_bytes=copy, overhead_bytes=0, share=share)
    return room + copy
