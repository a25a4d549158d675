"""A rollout engine's fraction of the device: of its total memory, not of its free memory."""

from __future__ import annotations

from dataclasses import replace

from rl_compat.errors import DoesNotFitError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.memory.budget import weights_bytes
from rl_compat.planning.memory.request import Levers, MemoryRequest
from rl_compat.planning.memory.vllm import overhead_bytes, vllm_weights_bytes
from rl_compat.units import format_bytes


def kv_room_bytes(
    *, total_bytes: int, resident_bytes: int, weights_bytes: int, overhead_bytes: int, share: float
) -> int:
    """Bytes left for the KV cache when an engine may hold `share` of the device and a trainer holds the rest.

    Raises DoesNotFitError, with the fractions that work, when engine and trainer together exceed the device or the
    fraction does not hold the engine's own weights.
    """
    lowest = (weights_bytes + overhead_bytes) / total_bytes
    highest = (total_bytes - resident_bytes) / total_bytes
    between = f"above {lowest:.2f} and at most {highest:.2f}, minus what a training step needs"
    hint = f"set `rollout.gpu_memory_utilization` {between}"
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
            f"{format_bytes(weights_bytes + overhead_bytes)} without any KV cache",
            hint=hint,
        )
    return int(share * total_bytes) - weights_bytes - overhead_bytes


def engine_room_bytes(share: float | None, hardware: Hardware, request: MemoryRequest) -> int | None:
    """The user's limit of the engine's memory, KV cache and weights together; None if the planner decides."""
    if share is None:
        return None
    copy = request.actor.num_parameters * 2 if request.rollout_dtype != "fp32" else 0
    overhead = 0
    if request.engine == "vllm":
        copy, overhead = vllm_weights_bytes(request), overhead_bytes(request)
    room = kv_room_bytes(
        total_bytes=device_bytes(hardware),
        resident_bytes=sum(weights_bytes(request, Levers(), role) for role in request.workload.models),
        weights_bytes=copy,
        overhead_bytes=overhead,
        share=share,
    )
    return room + copy + overhead


def with_share(request: MemoryRequest, share: float | None, hardware: Hardware) -> MemoryRequest:
    """The request with vLLM's memory if the user set its fraction, all of which vLLM fills."""
    if share is None or request.engine != "vllm":
        return request
    return replace(request, vllm_share_bytes=int(share * device_bytes(hardware)))


def device_bytes(hardware: Hardware) -> int:
    """Total memory of the device, or of the host when the CPU computes."""
    return hardware.devices[0].memory_total_bytes if hardware.devices else hardware.host.ram_limit_bytes
