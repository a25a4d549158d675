"""Decisions and sizes become the plan of a pool, of its roles and of its rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rl_compat.capability.attention import sdpa_backends
from rl_compat.capability.choice import Choice, Rejected
from rl_compat.capability.devices import device_bytes, emulated_on_cpu, has_unified_memory, on_cpu
from rl_compat.capability.rollout_engines import vllm_attention
from rl_compat.planning.decide import Decided
from rl_compat.planning.memory.budget import generates_from_copy, host_bytes, phase_budgets, shards_of
from rl_compat.planning.memory.ladder import Solution
from rl_compat.planning.memory.vllm import cache_bytes, vllm_bytes
from rl_compat.planning.types import TRAINED_ROLES, DType, KeptWhole, PoolPlan, RoleName, RolePlan, RolloutPlan
from rl_compat.units import format_bytes

SWITCHED_LEVERS = ("sleep_between", "gradient_checkpointing", "offload_idle_models", "offload_optimizer")
"in the order in which they are shown; all but the first are settings under `plan`"
ROLLOUT_CONCERNS = ("rollout_dtype", "rollout_engine", "cuda_graphs", "sleep_between")
"left out for a pool that generates nothing"
TRAINING_CONCERNS = ("loss_scaling", "optimizer", "gradient_checkpointing", "offload_optimizer")
"left out for a pool that trains nothing"
THREADS_BESIDE_A_GPU = 8
KEPT_WHOLE: Mapping[KeptWhole, str] = {
    "none": "no device has room for whole weights: each micro-batch gathers them",
    "weights": "there is room for whole weights, which an update gathers once for all micro-batches",
    "all": "there is room to gather weights once for all micro-batches, and to exchange gradients once",
}


def pool_plan(decided: Decided, found: Solution) -> PoolPlan:
    """The plan of one pool, with a choice recorded for every lever."""
    hardware, workload = decided.hardware, decided.workload
    emulated = hardware.emulated is not None and not on_cpu(hardware)
    unused: tuple[str, ...] = () if workload.generates else ROLLOUT_CONCERNS
    unused += () if workload.trains else TRAINING_CONCERNS
    choices = dict(decided.choices) | _lever_choices(decided, found)
    return PoolPlan(
        devices=_devices(decided),
        num_nodes=decided.requests.plan.num_nodes,
        device_name=hardware.host.cpu_name if on_cpu(hardware) else hardware.devices[0].name,
        profile=decided.profile.name,
        choices={concern: choice for concern, choice in choices.items() if concern not in unused},
        budgets=phase_budgets(decided.request, found.levers, found.sizes),
        memory_available_bytes=decided.problem.room.available_bytes,
        host_bytes=pool_host_bytes(decided, found),
        notes=_notes(decided),
        tf32=decided.choices["tf32"].value == "on",
        num_threads=_num_threads(decided, found),
        memory_cap_bytes=hardware.devices[0].memory_total_bytes if emulated else None,
        sdpa_backends=sdpa_backends(hardware),
        emulated=hardware.emulated if emulated else None,
        emulated_capability=hardware.weakest_capability() if emulated else None,
    )


def pool_host_bytes(decided: Decided, found: Solution) -> int:
    """Host memory that a pool uses: by offload, or for everything if it is the device's too."""
    if not has_unified_memory(decided.hardware):
        return host_bytes(decided.request, found.levers)
    return max(budget.total_bytes for budget in phase_budgets(decided.request, found.levers, found.sizes))


def device_of(decided: Decided) -> str:
    """torch's name of the device in a process of the pool. One of several processes sees a single GPU."""
    hardware = decided.hardware
    if on_cpu(hardware) or emulated_on_cpu(hardware):
        return "cpu"
    return f"cuda:{hardware.devices[0].index}" if decided.num_ranks == 1 else "cuda:0"


def _devices(decided: Decided) -> tuple[str, ...]:
    """torch's names of the devices of a node."""
    if device_of(decided) == "cpu":
        return ("cpu",) * decided.num_devices
    return tuple(f"cuda:{device.index}" for device in decided.hardware.devices)


def role_plans(decided: Decided, found: Solution, *, pool: str) -> dict[RoleName, RolePlan]:
    """The plans of the roles on one pool."""
    roles = list(decided.workload.models)
    if generates_from_copy(decided.request, found.levers):
        roles.append("rollout")
    return {role: _role_plan(decided, found, role, pool) for role in roles}


def _role_plan(decided: Decided, found: Solution, role: RoleName, pool: str) -> RolePlan:
    choices, request, wanted = decided.choices, decided.request, decided.problem.wanted
    updates = request.workload.updates(role)
    limits = decided.profile.limits
    rows = wanted.micro_batch_size or max(1, min(limits.max_micro_batch_size, wanted.mini_batch_sequences))
    return RolePlan(
        role=role,
        pool=pool,
        device=device_of(decided),
        storage_dtype=_storage_dtype(decided, found, role),
        compute_dtype=request.rollout_dtype if role == "rollout" else request.compute_dtype,
        attention=choices["attention"].value,
        repeat_kv=request.repeat_kv,
        loss_scaling=updates and choices["loss_scaling"].value == "on",
        gradient_checkpointing=updates and found.levers.gradient_checkpointing,
        offload_optimizer=updates and found.levers.offload_optimizer,
        offload_idle=found.levers.offload_idle_models,
        optimizer=choices["optimizer"].value,
        quantization=request.quantization if role in TRAINED_ROLES else "none",
        num_shards=shards_of(request.workload, found.levers, role),
        kept_whole=found.levers.kept_whole if shards_of(request.workload, found.levers, role) > 1 else "none",
        tensor_parallel=1 if role == "rollout" else request.tensor_parallel,
        micro_batch_size=rows,
        max_tokens_per_micro_batch=found.sizes.micro_batch_tokens,
        logprob_chunk_tokens=found.sizes.logprob_chunk_tokens,
    )


def _storage_dtype(decided: Decided, found: Solution, role: RoleName) -> DType:
    if role == "rollout":
        return decided.request.rollout_dtype
    kept_whole = role in TRAINED_ROLES and not decided.workload.has_adapters(role)
    return "fp32" if kept_whole else found.levers.frozen_dtype


def rollout_plan(decided: Decided, found: Solution, *, pool: str) -> RolloutPlan:
    """How the actor on this pool generates."""
    request, choices = decided.request, decided.choices
    plan = RolloutPlan(
        pool=pool,
        engine=request.engine,
        compute_dtype=request.rollout_dtype,
        max_num_seqs=found.sizes.max_num_seqs,
        max_prefill_tokens=found.sizes.max_prefill_tokens,
        cuda_graphs=choices["cuda_graphs"].value == "on" and device_of(decided) != "cpu",
        gpu_memory_utilization=decided.requests.rollout.gpu_memory_utilization,
        sleep_between=found.levers.sleep_between,
        packed_linears=request.packs_linears,
        kernel_architecture=_kernel_architecture(decided),
        tensor_parallel=request.devices_per_engine,
    )
    return _for_vllm(plan, decided, found) if request.engine == "vllm" else plan


def _kernel_architecture(decided: Decided) -> str | None:
    """Of the real device: it cannot load code for an emulated card."""
    hardware = decided.hardware
    if device_of(decided) == "cpu" or hardware.emulated is not None or decided.request.engine != "native":
        return None
    return "sm_{}{}".format(*hardware.devices[0].compute_capability)


def _for_vllm(plan: RolloutPlan, decided: Decided, found: Solution) -> RolloutPlan:
    """With vLLM's sizes. vLLM fills the fraction of a GPU that the user set; on a CPU the plan sets the cache."""
    request, hardware = decided.request, decided.hardware
    cache = cache_bytes(request, found.sizes)
    fills = plan.gpu_memory_utilization is not None and device_of(decided) != "cpu"
    share = sum(vllm_bytes(request, found.sizes).values()) / device_bytes(hardware)
    return replace(
        plan,
        kv_cache_bytes=None if fills else cache,
        max_model_len=decided.requests.rollout.max_model_len or request.workload.length,
        attention_backend=vllm_attention(hardware),
        gpu_memory_utilization=plan.gpu_memory_utilization or round(share, 4),
    )


def _lever_choices(decided: Decided, found: Solution) -> dict[str, Choice]:
    recorded = {}
    no_offload = "the device's memory is the host's" if has_unified_memory(decided.hardware) else ""
    for lever in SWITCHED_LEVERS:
        on = getattr(found.levers, lever)
        asked = getattr(decided.requests.plan, lever, "auto") != "auto"
        impossible = no_offload if lever.startswith("offload") else ""
        otherwise = impossible or ("set by the user" if asked else "every phase fits without it")
        reason = found.because.get(lever) or otherwise
        recorded[lever] = Choice(value="on" if on else "off", reason=reason, asked=asked)
    if decided.num_ranks > 1:
        recorded["num_shards"] = _shards_choice(decided, found)
    if found.levers.num_shards > 1:
        recorded["kept_whole"] = Choice(value=found.levers.kept_whole, reason=KEPT_WHOLE[found.levers.kept_whole])
    width = decided.request.tensor_parallel
    if width > 1:
        recorded["tensor_parallel"] = Choice(value=str(width), reason="set by the user", asked=True)
    frozen = decided.choices["frozen_storage_dtype"]
    if found.levers.frozen_dtype != frozen.value:
        reason = found.because["frozen_dtype"]
        others = tuple(item for item in frozen.rejected if item.value != found.levers.frozen_dtype)
        passed_over = Rejected(value=frozen.value, reasons=(reason,))
        recorded["frozen_storage_dtype"] = Choice(
            value=found.levers.frozen_dtype, reason=reason, rejected=(passed_over, *others)
        )
    return recorded


def _shards_choice(decided: Decided, found: Solution) -> Choice:
    asked = decided.requests.plan.num_shards != "auto"
    number = max(shards_of(decided.workload, found.levers, role) for role in decided.workload.models)
    because = found.because.get("shard_frozen") or found.because.get("num_shards")
    whole = "a whole copy fits on each device" + (
        ", and only gradients are exchanged" if decided.workload.trains else ""
    )
    return Choice(value=str(number), reason="set by the user" if asked else because or whole, asked=asked)


def _num_threads(decided: Decided, found: Solution) -> int | None:
    """The cores of a process if the CPU computes or runs an optimizer; else no more than small CPU tensors can use."""
    if "OMP_NUM_THREADS" in decided.hardware.environment:
        return None
    cores = max(1, decided.hardware.host.num_cores // decided.host_processes)
    return cores if device_of(decided) == "cpu" or found.levers.offload_optimizer else min(cores, THREADS_BESIDE_A_GPU)


def _notes(decided: Decided) -> tuple[str, ...]:
    notes = []
    workload, hardware = decided.workload, decided.hardware
    for device in hardware.devices:
        taken = device.memory_total_bytes - device.memory_free_bytes
        if hardware.emulated is None and taken > device.memory_total_bytes // 10:
            notes.append(
                f"other processes use {format_bytes(taken)} of {device.name}: planned for the "
                f"{format_bytes(device.memory_free_bytes)} that is free"
            )
    model = workload.main_model
    if not model.exact:
        notes.append(f"`{model.model_type}` is not a known model family: its parameters are counted as for llama")
    if model.own_forward_obstacle is not None and workload.generates and decided.request.engine == "native":
        notes.append(
            f"rollout engine `native` calls the model's own forward, which is slower: {model.own_forward_obstacle}"
        )
    if model.max_positions is not None and workload.length > model.max_positions:
        notes.append(
            f"a sequence may have {workload.length} tokens and the model supports {model.max_positions}: reduce "
            "`data.max_prompt_length` or `data.max_response_length`"
        )
    plan = decided.requests.plan
    if has_unified_memory(hardware) and True in (plan.offload_optimizer, plan.offload_idle_models):
        notes.append("offload has no effect: the device's memory is the host's")
    return tuple(notes)
