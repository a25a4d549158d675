"""What was decided and found becomes the Plan that the compute tower obeys."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from rl_compat.capability.attention import sdpa_backends
from rl_compat.capability.devices import emulated_on_cpu, on_cpu
from rl_compat.capability.offload import offload
from rl_compat.capability.rollout_engines import vllm_attention
from rl_compat.capability.types import Choice, Rejected
from rl_compat.planning.decide import Decided
from rl_compat.planning.memory.budget import host_bytes, phase_budgets
from rl_compat.planning.memory.ladder import Found
from rl_compat.planning.memory.share import device_bytes
from rl_compat.planning.memory.vllm import cache_bytes, vllm_bytes
from rl_compat.planning.types import Plan, RoleName, RolePlan, RolloutPlan
from rl_compat.units import format_bytes

LEVER_CHOICES = {
    "sleep_between": ("sleep_between", ""),
    "gradient_checkpointing": ("gradient_checkpointing", "gradient_checkpointing"),
    "offload_idle": ("offload_idle_models", "offload_idle_models"),
    "offload_optimizer": ("offload_optimizer", "offload_optimizer"),
}
"lever: concern, and the setting under `plan` that fixes it"
ROLLOUT_CONCERNS = ("rollout_dtype", "rollout_engine", "cuda_graphs", "sleep_between")
"not said of training that generates nothing"
THREADS_BESIDE_A_GPU = 8


def resolve(decided: Decided, found: Found) -> Plan:
    """The plan, with a choice recorded for every lever."""
    request, hardware = decided.request, decided.hardware
    budgets = phase_budgets(request, found.levers, found.sizes)
    cpu = on_cpu(hardware)
    emulated = hardware.emulated is not None and not cpu
    peak = max(budget.total_bytes for budget in budgets)
    return Plan(
        profile=decided.profile.name,
        device=device_of(decided),
        device_name=hardware.host.cpu_name if cpu else hardware.devices[0].name,
        roles={role: _role(decided, found, cast(RoleName, role)) for role in request.roles},
        rollout=_rollout(decided, found),
        budgets=budgets,
        memory_available_bytes=decided.room.available_bytes,
        host_bytes=peak if cpu else host_bytes(request, found.levers),
        choices={
            concern: choice
            for concern, choice in (dict(decided.choices) | _lever_choices(decided, found)).items()
            if request.generates or concern not in ROLLOUT_CONCERNS
        },
        notes=_notes(decided),
        tf32=decided.choices["tf32"].value == "on",
        num_threads=_num_threads(decided, found),
        memory_cap_bytes=hardware.devices[0].memory_total_bytes if emulated else None,
        sdpa_backends=sdpa_backends(hardware),
        emulated=hardware.emulated if emulated else None,
        emulated_capability=hardware.weakest_capability() if emulated else None,
    )


def device_of(decided: Decided) -> str:
    """torch's name of the device."""
    hardware = decided.hardware
    return "cpu" if on_cpu(hardware) or emulated_on_cpu(hardware) else f"cuda:{hardware.devices[0].index}"


def _role(decided: Decided, found: Found, role: RoleName) -> RolePlan:
    choices, request, wanted = decided.choices, decided.request, decided.wanted
    trained = request.trained_parameters(role) > 0
    all_trained = trained and request.lora_rank == 0
    limits = decided.profile.limits
    rows = wanted.micro_batch_size or max(1, min(limits.max_micro_batch_size, wanted.mini_batch_sequences))
    return RolePlan(
        role=role,
        device=device_of(decided),
        storage_dtype="fp32" if all_trained else found.levers.frozen_dtype,
        compute_dtype=request.compute_dtype,
        attention=choices["attention"].value,
        repeat_kv=request.repeat_kv,
        loss_scaling=trained and choices["loss_scaling"].value == "on",
        gradient_checkpointing=trained and found.levers.gradient_checkpointing,
        offload_optimizer=trained and found.levers.offload_optimizer,
        offload_idle=found.levers.offload_idle,
        optimizer=choices["optimizer"].value,
        quantization=request.quantization if trained else "none",
        micro_batch_size=rows,
        max_tokens_per_micro_batch=found.sizes.micro_batch_tokens,
        logprob_chunk_tokens=found.sizes.logprob_chunk_tokens,
    )


def _rollout(decided: Decided, found: Found) -> RolloutPlan:
    request, choices = decided.request, decided.choices
    plan = RolloutPlan(
        engine=request.engine,
        compute_dtype=request.rollout_dtype,
        max_num_seqs=found.sizes.max_num_seqs,
        max_prefill_tokens=found.sizes.max_prefill_tokens,
        cuda_graphs=choices["cuda_graphs"].value == "on" and device_of(decided) != "cpu",
        gpu_memory_utilization=decided.config.rollout.gpu_memory_utilization,
        sleep_between=found.levers.sleep_between,
        packed_linears=request.packs_linears,
        kernel_architecture=_kernel_architecture(decided),
    )
    return _for_vllm(plan, decided, found) if request.engine == "vllm" else plan


def _kernel_architecture(decided: Decided) -> str | None:
    """Of the device that is really there: an emulated card's code does not load on it."""
    hardware = decided.hardware
    if device_of(decided) == "cpu" or hardware.emulated is not None or decided.request.engine != "native":
        return None
    return "sm_{}{}".format(*hardware.devices[0].compute_capability)


def _for_vllm(plan: RolloutPlan, decided: Decided, found: Found) -> RolloutPlan:
    """With what vLLM is started for. A share that the user gave is vLLM's to fill, on a CPU the plan's."""
    request, hardware = decided.request, decided.hardware
    cache = cache_bytes(request, found.sizes)
    fills = plan.gpu_memory_utilization is not None and device_of(decided) != "cpu"
    share = sum(vllm_bytes(request, found.sizes).values()) / device_bytes(hardware)
    return replace(
        plan,
        kv_cache_bytes=None if fills else cache,
        max_model_len=decided.config.rollout.max_model_len or request.length,
        attention_backend=vllm_attention(hardware),
        gpu_memory_utilization=plan.gpu_memory_utilization or round(share, 4),
    )


def _lever_choices(decided: Decided, found: Found) -> dict[str, Choice]:
    recorded = {}
    away = offload(decided.hardware, num_bytes=0, fraction=1.0).reasons_against
    for lever, (concern, key) in LEVER_CHOICES.items():
        on = getattr(found.levers, lever)
        asked = bool(key) and getattr(decided.config.plan, key) != "auto"
        impossible = "; ".join(away) if lever.startswith("offload") else ""
        otherwise = impossible or ("asked for" if asked else "every phase fits without it")
        reason = found.because.get(lever) or otherwise
        recorded[concern] = Choice(value="on" if on else "off", reason=reason, asked=asked)
    frozen = decided.choices["frozen_storage_dtype"]
    if found.levers.frozen_dtype != frozen.value:
        reason = found.because["frozen_dtype"]
        others = tuple(item for item in frozen.rejected if item.value != found.levers.frozen_dtype)
        passed_over = Rejected(value=frozen.value, reasons=(reason,))
        recorded["frozen_storage_dtype"] = Choice(
            value=found.levers.frozen_dtype, reason=reason, rejected=(passed_over, *others)
        )
    return recorded


def _num_threads(decided: Decided, found: Found) -> int | None:
    """All cores where the CPU does the arithmetic; beside a GPU no more than its small tensors have use for."""
    if "OMP_NUM_THREADS" in decided.hardware.environment:
        return None
    cores = decided.hardware.host.num_cores
    return cores if device_of(decided) == "cpu" or found.levers.offload_optimizer else min(cores, THREADS_BESIDE_A_GPU)


def _notes(decided: Decided) -> tuple[str, ...]:
    notes = []
    for device in decided.hardware.devices:
        taken = device.memory_total_bytes - device.memory_free_bytes
        if decided.hardware.emulated is None and taken > device.memory_total_bytes // 10:
            notes.append(
                f"{format_bytes(taken)} of {device.name} is in use by others: planned for the "
                f"{format_bytes(device.memory_free_bytes)} that are free"
            )
    if not decided.request.actor.exact:
        notes.append(f"`{decided.request.actor.model_type}` is not a known family: memory is counted as for llama")
    forward = decided.request.actor.own_forward_obstacle
    if forward is not None and decided.request.generates and decided.request.engine == "native":
        notes.append(f"rollout engine `native` calls the model's own forward, which is slower: {forward}")
    limit = decided.request.actor.max_positions
    if limit is not None and decided.request.length > limit:
        notes.append(
            f"a sequence may have {decided.request.length} tokens and the model was made for {limit}: shorten "
            "`data.max_prompt_length` or `data.max_response_length`"
        )
    plan = decided.config.plan
    if on_cpu(decided.hardware) and True in (plan.offload_optimizer, plan.offload_idle_models):
        notes.append("offload has no effect: the device is the CPU and its memory is the host's")
    return tuple(notes)
