"""The devices, the profile, the choices and the memory request: all of a plan that needs no search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.capability.devices import emulated_on_cpu, on_cpu, select_devices
from rl_compat.capability.offload import host_budget_bytes
from rl_compat.capability.optimizers import STATE_BYTES
from rl_compat.capability.torch_build import torch_build
from rl_compat.capability.types import Choice
from rl_compat.config.types import RolloutConfig, RunConfig
from rl_compat.errors import ConfigError, HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.choices import Chooser
from rl_compat.planning.memory.ladder import Levels
from rl_compat.planning.memory.request import MemoryRequest
from rl_compat.planning.memory.share import engine_room_bytes, with_share
from rl_compat.planning.memory.sizing import Room, Wanted
from rl_compat.planning.profile import Profile, match_profile
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import DType

VALIDATION_SEQS = 128
"responses that a validation can use at once, however small a training batch is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A request after every decision that does not depend on memory."""

    config: RunConfig
    hardware: Hardware
    "with only the selected devices; none when the device is the CPU"
    profile: Profile
    choices: Mapping[str, Choice]
    request: MemoryRequest
    levels: Levels
    wanted: Wanted
    room: Room
    host_budget_bytes: int


def decide(
    config: RunConfig,
    hardware: Hardware,
    shape: ModelShape,
    critic_shape: ModelShape,
    reward_shape: ModelShape | None = None,
    cost_shape: ModelShape | None = None,
    *,
    engine: Choice | None = None,
) -> Decided:
    """All decisions; `engine` is the rollout engine when it has been chosen already.

    Raises HardwareError for a setting that the hardware cannot honour, ConfigError for contradicting settings.
    """
    selected = selected_hardware(config, hardware)
    profile, why = match_profile(selected, config.plan.profile)
    choices = {"profile": Choice(value=profile.name, reason=why, asked=config.plan.profile != "auto")}
    asked = replace(config, rollout=RolloutConfig()) if is_offline(config.algorithm.name) else config
    choices |= Chooser(config=asked, hardware=selected, profile=profile, shape=shape, engine=engine).everything()
    request = memory_request(
        config,
        profile,
        choices,
        shape,
        critic_shape,
        reward_shape,
        cost_shape,
        on_cpu=on_cpu(selected) or emulated_on_cpu(selected),
    )
    request = with_share(request, config, selected)
    available = available_bytes(selected, config.plan.memory_fraction)
    return Decided(
        config=config,
        hardware=selected,
        profile=profile,
        choices=choices,
        request=request,
        levels=_levels(config, selected, choices, request, profile),
        wanted=_wanted(config, request),
        room=Room(
            available_bytes=available,
            engine_bytes=engine_room_bytes(config, selected, request),
            sequences_wait=request.engine == "vllm" and config.rollout.max_num_seqs is not None,
        ),
        host_budget_bytes=host_budget_bytes(selected, fraction=config.plan.memory_fraction),
    )


def selected_hardware(config: RunConfig, hardware: Hardware) -> Hardware:
    """The devices of the run. Raises HardwareError when they are not there or torch cannot use them."""
    plan = config.plan
    if plan.device == "cuda" and not hardware.devices:
        select_devices(hardware, plan.num_devices)
    if plan.num_devices > 1:
        select_devices(hardware, plan.num_devices)
        raise HardwareError(
            f"asked for {plan.num_devices} devices and a run trains on one", hint="set `plan.num_devices=1`"
        )
    if plan.device == "cpu" or not hardware.devices:
        return select_devices(hardware, 0)
    selected = select_devices(hardware, 1)
    usable = torch_build(selected)
    if not usable.supported:
        raise HardwareError(
            "; ".join(usable.reasons_against),
            hint="`rlc doctor` says which torch to install; `plan.device=cpu` does without",
        )
    return selected


def available_bytes(hardware: Hardware, fraction: float) -> int:
    """What the phases may fill: free memory of the device, or of the host when the CPU computes."""
    host = host_budget_bytes(hardware, fraction=fraction)
    if on_cpu(hardware):
        return host
    free = int(min(device.memory_free_bytes for device in hardware.devices) * fraction)
    return min(free, host) if emulated_on_cpu(hardware) else free


def memory_request(
    config: RunConfig,
    profile: Profile,
    choices: Mapping[str, Choice],
    shape: ModelShape,
    critic_shape: ModelShape,
    reward_shape: ModelShape | None = None,
    cost_shape: ModelShape | None = None,
    *,
    on_cpu: bool,
) -> MemoryRequest:
    """What the algorithm needs in memory, without sizes."""
    algorithm, lora = config.algorithm, config.model.lora_rank > 0
    row = ALGORITHMS[algorithm.name]
    offline = is_offline(algorithm.name)
    reference = not offline and (algorithm.kl_in_reward != "none" or algorithm.kl_loss != "none")
    free = algorithm.name == "dpo" and config.algorithm.dpo.reference_free
    shapes = [item for item in (shape, critic_shape, reward_shape, cost_shape) if item is not None]
    grouped = any(item.num_kv_heads < item.num_heads for item in shapes)
    repeat = choices.get("repeat_kv")
    return MemoryRequest(
        actor=shape,
        critic=critic_shape if row.needs_critic else None,
        has_reference=reference and not lora,
        reference_pass=reference or (row.compares_with_reference and not free),
        lora_rank=config.model.lora_rank,
        lora_targets=config.model.lora_targets,
        quantization=choices["quantization"].value,
        max_prompt_length=config.data.max_prompt_length,
        max_response_length=config.data.max_response_length,
        compute_dtype=cast(DType, choices["compute_dtype"].value),
        rollout_dtype=cast(DType, choices["rollout_dtype"].value),
        repeat_kv=grouped and repeat is not None and repeat.value == "on",
        eager_attention=choices["attention"].value == "eager",
        optimizer_state_bytes=STATE_BYTES[choices["optimizer"].value],
        engine=choices["rollout_engine"].value,
        on_cpu=on_cpu,
        cuda_graphs=choices["cuda_graphs"].value == "on",
        with_entropy=not offline and algorithm.entropy_coef != 0.0,
        sorts_vocabulary=config.rollout.top_p < 1.0 or config.rollout.top_k > 0,
        context_bytes=profile.limits.context_bytes,
        allocator_factor=profile.limits.allocator_factor,
        reward=reward_shape,
        cost=cost_shape if row.needs_cost else None,
        has_cost_critic=row.needs_cost,
        generates=not offline,
        compares=row.learns_from == "preference",
        scores=row.scores,
        packs=algorithm.name == "sft" and config.algorithm.sft.packing,
    )


def _levels(
    config: RunConfig, hardware: Hardware, choices: Mapping[str, Choice], request: MemoryRequest, profile: Profile
) -> Levels:
    plan, cpu = config.plan, on_cpu(hardware)
    both = (False, True)
    idle = both if len(request.roles) > 1 and not cpu else (False,)
    optimizer = both if not cpu and choices["optimizer"].value == "adamw" else (False,)
    return Levels(
        sleep_between=both if request.generates else (False,),
        gradient_checkpointing=_fixed(plan.gradient_checkpointing, both),
        frozen_dtype=_frozen_dtypes(choices["frozen_storage_dtype"], request, profile),
        offload_idle=(False,) if cpu else _fixed(plan.offload_idle_models, idle),
        offload_optimizer=(False,) if cpu else _fixed(plan.offload_optimizer, optimizer),
    )


def _fixed(setting: bool | str, otherwise: tuple[bool, ...]) -> tuple[bool, ...]:
    return otherwise if isinstance(setting, str) else (setting,)


def _frozen_dtypes(chosen: Choice, request: MemoryRequest, profile: Profile) -> tuple[DType, ...]:
    """The chosen dtype, and the profile's later ones that work here; only the first without frozen weights."""
    frozen = bool({"reference", "reward", "cost"} & request.roles.keys()) or request.lora_rank > 0
    order = profile.prefer["frozen_storage_dtype"].order
    impossible = {item.value for item in chosen.rejected if "is preferred" not in item.reasons[0]}
    later = [value for value in order if value != chosen.value and value not in impossible]
    dtypes = (chosen.value,) if chosen.asked or not frozen else (chosen.value, *later)
    return cast(tuple[DType, ...], dtypes)


def _wanted(config: RunConfig, request: MemoryRequest) -> Wanted:
    plan, group = config.plan, sequences_per_row(config)
    prefill = config.rollout.max_num_batched_tokens if request.generates else None
    if request.generates:
        _check_lengths(config, request)
    if prefill is not None and prefill < request.max_prompt_length and request.engine != "vllm":
        raise ConfigError(
            f"`rollout.max_num_batched_tokens` is {prefill} and a prompt may have {request.max_prompt_length} tokens",
            hint=f"set it to {request.max_prompt_length} or more, or leave it out",
        )
    sequences = config.trainer.batch_size * group
    validates = bool(config.data.val_files) and (
        config.trainer.validate_before or config.trainer.validate_after or config.trainer.validate_every > 0
    )
    sequences = max(sequences, VALIDATION_SEQS) if validates else sequences
    if request.engine == "vllm" and prefill is not None:
        sequences = min(sequences, prefill)
    return Wanted(
        num_sequences=sequences,
        mini_batch_sequences=config.trainer.mini_batch_size * group,
        max_num_seqs=config.rollout.max_num_seqs,
        max_prefill_tokens=prefill,
        micro_batch_size=_number(plan.micro_batch_size),
        micro_batch_tokens=_number(plan.max_tokens_per_micro_batch),
        logprob_chunk_tokens=_number(plan.logprob_chunk_tokens),
    )


def _check_lengths(config: RunConfig, request: MemoryRequest) -> None:
    """Raise ConfigError for limits of the rollout that contradict each other or what is asked for."""
    rollout = config.rollout
    if rollout.max_model_len is not None and rollout.max_model_len < request.length:
        raise ConfigError(
            f"`rollout.max_model_len` is {rollout.max_model_len}, and prompt and response may have "
            f"{request.max_prompt_length} + {request.max_response_length} tokens",
            hint=f"set it to {request.length} or more, or leave it out",
        )
    batched, sequences = rollout.max_num_batched_tokens, rollout.max_num_seqs or 1
    if request.engine == "vllm" and batched is not None and batched < sequences:
        raise ConfigError(
            f"`rollout.max_num_batched_tokens` is {batched} and `rollout.max_num_seqs` is {sequences}: "
            "vLLM computes a token of every sequence in each step",
            hint=f"set it to {sequences} or more, or leave it out",
        )


def sequences_per_row(config: RunConfig) -> int:
    """Responses to each prompt, or those that a row comes with."""
    learns_from = ALGORITHMS[config.algorithm.name].learns_from
    return config.algorithm.group_size if learns_from == "prompts" else 2 if learns_from == "preference" else 1


def _number(setting: int | str) -> int | None:
    return None if isinstance(setting, str) else setting
