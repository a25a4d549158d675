"""The devices, the profile, the choices and the memory request of a pool: everything that needs no search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import cast

from rl_compat.capability.choice import Choice
from rl_compat.capability.devices import (
    against_torch,
    device_bytes,
    emulated_on_cpu,
    has_unified_memory,
    on_cpu,
    unified_free_bytes,
)
from rl_compat.capability.optimizers import STATE_BYTES, host_budget_bytes
from rl_compat.capability.sharding import against_engine_parts, against_sharding, against_tensor_parallel
from rl_compat.config.types import DevicesConfig, RolloutConfig
from rl_compat.errors import ConfigError, HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.choices import Chooser
from rl_compat.planning.memory.request import Levels, MemoryProblem, MemoryRequest, Room, Wanted
from rl_compat.planning.profile import Profile, match_profile
from rl_compat.planning.types import TRAINED_ROLES, DType
from rl_compat.planning.workload import Requests, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One pool after every decision that does not depend on memory."""

    requests: Requests
    hardware: Hardware
    "with only the pool's devices; none if the device is the CPU"
    profile: Profile
    choices: Mapping[str, Choice]
    problem: MemoryProblem
    host_processes: int
    "processes that share the cores and the memory of a host with each process of the pool, itself included"

    @property
    def num_ranks(self) -> int:
        """Devices of all nodes."""
        return self.requests.plan.num_devices * self.requests.plan.num_nodes

    @property
    def num_devices(self) -> int:
        """Devices of each node, or processes on its CPU."""
        return self.requests.plan.num_devices

    @property
    def request(self) -> MemoryRequest:
        return self.problem.request

    @property
    def workload(self) -> Workload:
        return self.request.workload


def decide(
    workload: Workload,
    hardware: Hardware,
    requests: Requests,
    *,
    engine: Choice | None = None,
    host_taken_bytes: int = 0,
    host_processes: int | None = None,
) -> Decided:
    """All decisions of one pool. `engine` is the rollout engine if it is chosen already.

    `host_taken_bytes` is host memory that other pools use, and `host_processes` how many processes share the rest, if
    not only those of this pool. Raises HardwareError for a setting that the hardware cannot
    honour, ConfigError for contradicting settings.
    """
    requests = _applicable(requests, workload)
    plan, selected = requests.plan, selected_hardware(requests, hardware)
    profile, why = match_profile(selected, plan.profile)
    choices = {"profile": Choice(value=profile.name, reason=why, asked=plan.profile != "auto")}
    choices |= Chooser(
        requests=requests, workload=workload, hardware=selected, profile=profile, engine=engine
    ).everything()
    share = requests.rollout.gpu_memory_utilization
    share_bytes = None if share is None else int(share * device_bytes(selected))
    shares = plan.num_devices * plan.num_nodes // plan.tensor_parallel
    request = memory_request(workload.of_one_device(max(1, shares)), selected, profile, choices)
    together = requests.rollout.tensor_parallel
    request = replace(request, tensor_parallel=plan.tensor_parallel, devices_per_engine=together)
    _check_tensor_parallel(plan, request.workload)
    _check_engine(together, plan.num_devices, request)
    if request.engine == "vllm":
        request = replace(request, vllm_share_bytes=share_bytes)
    host_bytes = max(0, host_budget_bytes(selected, fraction=plan.memory_fraction) - host_taken_bytes)
    host_processes = host_processes or plan.num_devices
    host_bytes //= host_processes
    return Decided(
        requests=requests,
        hardware=selected,
        profile=profile,
        choices=choices,
        host_processes=host_processes,
        problem=MemoryProblem(
            request=request,
            levels=_levels(requests, selected, choices, request, profile),
            wanted=_wanted(requests, request),
            limits=profile.limits,
            room=Room(
                available_bytes=_available_bytes(selected, plan.memory_fraction, host_bytes),
                host_bytes=host_bytes,
                engine_bytes=share_bytes,
                sequences_wait=request.engine == "vllm" and requests.rollout.max_num_seqs is not None,
            ),
        ),
    )


def _applicable(requests: Requests, workload: Workload) -> Requests:
    """The requests without those about what the workload does not do."""
    plan = requests.plan if set(TRAINED_ROLES) & workload.models.keys() else replace(requests.plan, quantization="none")
    return Requests(
        plan=plan,
        rollout=requests.rollout if workload.generates else RolloutConfig(),
        optimizer=requests.optimizer if workload.trains else "adamw",
    )


def selected_hardware(requests: Requests, hardware: Hardware) -> Hardware:
    """The devices of a pool; none is the CPU. Raises HardwareError if they do not exist or torch cannot use them."""
    plan, visible, hidden = requests.plan, len(hardware.devices), len(hardware.hidden_devices)
    if plan.device == "cpu" or (not visible and plan.device == "auto" and plan.num_devices == 1):
        return replace(hardware, devices=())
    if plan.num_devices > visible:
        without = [] if visible else ["plan.device=cpu"]
        without += [f"plan.num_devices={max(1, visible)}"] if plan.num_devices > 1 else []
        aside = f" and {hidden} hidden by `CUDA_VISIBLE_DEVICES`" if hidden else ""
        raise HardwareError(
            f"devices requested: {plan.num_devices}, visible: {visible}{aside}",
            hint=f"set `{' '.join(without)}`",
        )
    selected = replace(hardware, devices=hardware.devices[: plan.num_devices])
    _check_alike(selected)
    against = against_torch(selected)
    if against:
        raise HardwareError(
            "; ".join(against),
            hint="run `rlc doctor` to see which torch to install, or set `plan.device=cpu`",
        )
    return selected


def _check_alike(hardware: Hardware) -> None:
    """Raise HardwareError for devices that cannot share the work of one pool equally."""
    names = [device.name for device in hardware.devices]
    first = list(takewhile(lambda name: name == names[0], names))
    if len(first) < len(names):
        listed = " and ".join(f"{count} x {name}" for name, count in Counter(names).items())
        raise HardwareError(
            f"one pool has different cards: {listed}",
            hint=f"split it: set `plan.num_devices={len(first)}`, and give the other cards a pool with "
            f"`--pool NAME={len(names) - len(first)}:ROLES`",
        )


def _available_bytes(hardware: Hardware, fraction: float, host_bytes: int) -> int:
    """What the phases may fill: free memory of the device, or of the host if it is the device's."""
    if on_cpu(hardware):
        return host_bytes
    if has_unified_memory(hardware):
        return min(int(unified_free_bytes(hardware) * fraction), host_bytes)
    free = int(min(device.memory_free_bytes for device in hardware.devices) * fraction)
    return min(free, host_bytes) if emulated_on_cpu(hardware) else free


def memory_request(
    workload: Workload, hardware: Hardware, profile: Profile, choices: Mapping[str, Choice]
) -> MemoryRequest:
    """What the workload needs in memory with these choices, before any size is chosen."""
    grouped = any(shape.num_kv_heads < shape.num_heads for shape in workload.models.values())
    repeat = choices.get("repeat_kv")
    return MemoryRequest(
        workload=workload,
        compute_dtype=cast(DType, choices["compute_dtype"].value),
        rollout_dtype=cast(DType, choices["rollout_dtype"].value),
        repeat_kv=grouped and repeat is not None and repeat.value == "on",
        eager_attention=choices["attention"].value == "eager",
        optimizer_state_bytes=STATE_BYTES[choices["optimizer"].value],
        quantization=choices["quantization"].value,
        engine=choices["rollout_engine"].value,
        on_cpu=on_cpu(hardware) or emulated_on_cpu(hardware),
        cuda_graphs=choices["cuda_graphs"].value == "on",
        context_bytes=profile.limits.context_bytes,
        allocator_factor=profile.limits.allocator_factor,
    )


def _levels(
    requests: Requests, hardware: Hardware, choices: Mapping[str, Choice], request: MemoryRequest, profile: Profile
) -> Levels:
    plan, unified, trains = requests.plan, has_unified_memory(hardware), request.workload.trains
    both = (False, True)
    idle = both if len(request.workload.models) > 1 else (False,)
    optimizer = both if choices["optimizer"].value == "adamw" else (False,)
    return Levels(
        sleep_between=both if request.workload.generates else (False,),
        gradient_checkpointing=_fixed(plan.gradient_checkpointing, both) if trains else (False,),
        frozen_dtype=_frozen_dtypes(choices["frozen_storage_dtype"], request.workload, profile),
        num_shards=_num_shards(plan, request, choices["optimizer"].value),
        shard_frozen=_shard_frozen(plan),
        offload_idle_models=(False,) if unified else _fixed(plan.offload_idle_models, idle),
        offload_optimizer=(False,) if unified or not trains else _fixed(plan.offload_optimizer, optimizer),
    )


def _num_shards(plan: DevicesConfig, request: MemoryRequest, optimizer: str) -> tuple[int, ...]:
    """Divisors of the devices of a node, so that shards stay inside of it, and then all devices of all nodes.

    Raises ConfigError if the user shards what cannot be sharded.
    """
    against = against_sharding(optimizer=optimizer, quantization=request.quantization)
    asked = {"num_shards": plan.num_shards, "tensor_parallel": plan.tensor_parallel}
    for name, number in asked.items():
        if against and isinstance(number, int) and number > 1:
            raise ConfigError(
                f"`plan.{name}={number}` divides weights among devices, but {' and '.join(against)}",
                hint=f"set `plan.{name}=1`",
            )
    if isinstance(plan.num_shards, int):
        return (plan.num_shards,)
    if against:
        return (1,)
    step = plan.tensor_parallel
    inside = [count for count in range(step, plan.num_devices + 1, step) if plan.num_devices % count == 0]
    return (*inside, *((plan.num_devices * plan.num_nodes,) if plan.num_nodes > 1 else ()))


def _check_tensor_parallel(plan: DevicesConfig, workload: Workload) -> None:
    """Raise ConfigError for layers that the devices which compute them together cannot divide."""
    width = plan.tensor_parallel
    learning = {role: shape for role, shape in workload.models.items() if role != "rollout"}
    if width > 1 and not learning:
        raise ConfigError(
            f"`tensor_parallel={width}` is for models that learn or score, and the pool only generates",
            hint="set `tensor_parallel=1`",
        )
    for role, shape in learning.items() if width > 1 else ():
        sizes = {"heads": shape.num_heads, "key-value heads": shape.num_kv_heads}
        sizes |= {"intermediate neurons": shape.intermediate_size}
        against = against_tensor_parallel(shape.model_type, sizes, width=width)
        if against is not None:
            possible = [count for count in range(1, width) if all(size % count == 0 for size in sizes.values())]
            raise ConfigError(
                f"`plan.tensor_parallel={width}` divides the layers of `{role}`: {against}",
                hint=f"set `plan.tensor_parallel={possible[-1] if 'have' in against else 1}`",
            )
    if plan.num_devices % width:
        raise ConfigError(f"`plan.tensor_parallel={width}` does not divide {plan.num_devices} devices")


def _check_engine(width: int, num_devices: int, request: MemoryRequest) -> None:
    """Raise ConfigError for a model that the devices of an engine cannot divide, and for devices left over."""
    if width == 1:
        return
    shape = request.actor

    def against(count: int) -> str | None:
        return against_engine_parts(
            heads=shape.num_heads, kv_heads=shape.num_kv_heads, intermediate=shape.intermediate_size, width=count
        )

    reason = against(width)
    if reason is None and num_devices % width:
        reason = f"a node has {num_devices} devices"
    if reason is not None:
        possible = [count for count in range(1, width) if num_devices % count == 0 and against(count) is None]
        raise ConfigError(
            f"`rollout.tensor_parallel={width}` divides the layers of the model that generates: {reason}",
            hint=f"set `rollout.tensor_parallel={possible[-1]}`",
        )


def _shard_frozen(plan: DevicesConfig) -> tuple[bool, ...]:
    """Models that are not trained are sharded last, or where the user set the number of shards."""
    if isinstance(plan.num_shards, int) or plan.tensor_parallel > 1:
        return (plan.num_shards != 1,)
    return (False, True) if plan.num_devices * plan.num_nodes > 1 else (False,)


def _fixed(setting: bool | str, otherwise: tuple[bool, ...]) -> tuple[bool, ...]:
    return otherwise if isinstance(setting, str) else (setting,)


def _frozen_dtypes(chosen: Choice, workload: Workload, profile: Profile) -> tuple[DType, ...]:
    """The chosen dtype, then the profile's later ones that work here; only the first without frozen weights."""
    frozen = bool(workload.models.keys() - TRAINED_ROLES) or workload.lora_rank > 0
    order = profile.prefer["frozen_storage_dtype"].order
    possible = {item.value for item in chosen.rejected if item.works}
    later = [value for value in order if value in possible]
    dtypes = (chosen.value,) if chosen.asked or not frozen else (chosen.value, *later)
    return cast(tuple[DType, ...], dtypes)


def _wanted(requests: Requests, request: MemoryRequest) -> Wanted:
    plan, rollout, workload = requests.plan, requests.rollout, request.workload
    prefill, prompt = rollout.max_num_batched_tokens, workload.max_prompt_length
    _check_lengths(rollout, request)
    if prefill is not None and prefill < prompt and request.engine != "vllm":
        raise ConfigError(
            f"`rollout.max_num_batched_tokens` is {prefill} and a prompt may have {prompt} tokens",
            hint=f"set `rollout.max_num_batched_tokens={prompt}` or more, or leave it out",
        )
    sequences = -(-workload.rollout_seqs // plan.tensor_parallel) * request.devices_per_engine
    if request.engine == "vllm" and prefill is not None:
        sequences = min(sequences, prefill)
    return Wanted(
        num_sequences=sequences,
        mini_batch_sequences=workload.mini_batch_seqs,
        max_num_seqs=rollout.max_num_seqs,
        max_prefill_tokens=prefill,
        micro_batch_size=_number(plan.micro_batch_size),
        micro_batch_tokens=_number(plan.max_tokens_per_micro_batch),
        logprob_chunk_tokens=_number(plan.logprob_chunk_tokens),
    )


def _check_lengths(rollout: RolloutConfig, request: MemoryRequest) -> None:
    """Raise ConfigError for limits of the rollout that contradict each other or the lengths."""
    length, workload = request.workload.length, request.workload
    if rollout.max_model_len is not None and rollout.max_model_len < length:
        raise ConfigError(
            f"`rollout.max_model_len` is {rollout.max_model_len}, and prompt and response may have "
            f"{workload.max_prompt_length} + {workload.max_response_length} tokens",
            hint=f"set `rollout.max_model_len={length}` or more, or leave it out",
        )
    batched, sequences = rollout.max_num_batched_tokens, rollout.max_num_seqs or 1
    if request.engine == "vllm" and batched is not None and batched < sequences:
        raise ConfigError(
            f"`rollout.max_num_batched_tokens` is {batched} and `rollout.max_num_seqs` is {sequences}: "
            "vLLM computes one token of every sequence in each step",
            hint=f"set `rollout.max_num_batched_tokens={sequences}` or more, or leave it out",
        )


def _number(setting: int | str) -> int | None:
    return None if isinstance(setting, str) else setting
