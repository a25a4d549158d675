"""Load a model from a folder of safetensors onto its device with the dtypes, attention and quantization of a plan."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from rl_compat.errors import ModelError, did_you_mean, quoted
from rl_compat.models.attention import attn_implementation_for
from rl_compat.models.deferred import deferred, stored_weights
from rl_compat.models.files.storage import ExactHead, keep_in_int8, keep_in_storage_dtype
from rl_compat.models.lora import LoraSettings, add_adapters
from rl_compat.planning.types import TRAINED_ROLES, RolePlan

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def autocast_for(role: RolePlan) -> torch.autocast:
    """Autocast to the role's compute dtype on its device; disabled for fp32."""
    device_type = torch.device(role.device).type
    if role.compute_dtype == "fp32":
        return torch.autocast(device_type, enabled=False)
    return torch.autocast(device_type, dtype=TORCH_DTYPES[role.compute_dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The model that a worker loads."""

    folder: Path
    role: RolePlan
    lora: LoraSettings | None = None
    "train adapters and freeze the rest; None trains all weights, of a role that learns"
    trust_remote_code: bool


def load_causal_lm(settings: LoadSettings) -> nn.Module:
    """A language model, in eval mode; trained weights are in fp32.

    Raises ModelError if the folder cannot be loaded completely.
    """
    return _load(settings, AutoModelForCausalLM)


def load_trunk(settings: LoadSettings) -> nn.Module:
    """Like `load_causal_lm`, without the language-model head: `forward` returns hidden states."""
    return _load(settings, AutoModel)


def load_sequence_classifier(settings: LoadSettings) -> nn.Module:
    """A frozen reward model: one number for a sequence, not rounded to bf16 under autocast.

    Raises ModelError if the folder cannot be loaded completely or the model does not have exactly one output.
    """
    model = _load(settings, AutoModelForSequenceClassification)
    _check_outputs(model.config, settings.folder)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features == 1:
            module.__class__ = ExactHead
    return model


def check_targets(folder: Path, targets: Sequence[str], *, headless: bool, trust_remote_code: bool) -> None:
    """Raise ModelError for adapter targets that are not layers of the model, without loading its weights.

    Without a head, as in a critic, one target that is there is enough.
    """
    if tuple(targets) == ("all-linear",):
        return
    options = {"trust_remote_code": trust_remote_code}
    config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
    with torch.device("meta"):
        model = (AutoModel if headless else AutoModelForCausalLM).from_config(config, **options)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding | Conv1D)]
    missing = [t for t in targets if not any(f".{name}".endswith(f".{t}") for name in layers)]
    if missing and not (headless and len(missing) < len(targets)):
        known = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        raise ModelError(
            f"`model.lora_targets` names `{missing[0]}`, and `{type(model).__name__}` in `{folder}` has no such layer",
            hint=did_you_mean(missing[0], known, f"its layers are {quoted(known)}; `all-linear` takes the linear ones"),
        )


def check_reward_head(folder: Path, *, trust_remote_code: bool) -> None:
    """Raise ModelError for a folder without the one output of a reward model, without loading its weights."""
    options = {"trust_remote_code": trust_remote_code}
    config = AutoConfig.from_pretrained(folder, local_files_only=True, **options)
    _check_outputs(config, folder)
    stored: set[str] = set()
    try:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, **options)
        for file in folder.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                stored.update(tensors.keys())
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"the model in `{folder}` could not be loaded: {error}") from error
    head = [name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")]
    _check_complete(sorted(set(head) - stored), folder)


def _check_outputs(config: Any, folder: Path) -> None:
    if config.num_labels != 1:
        raise ModelError(
            f"the model in `{folder}` has {config.num_labels} outputs and a reward model has 1",
            hint="a reward model needs `num_labels=1`: choose a model that was trained to score responses",
        )


def _check_complete(missing: Sequence[str], folder: Path) -> None:
    if missing:
        raise ModelError(
            f"the weights in `{folder}` lack {len(missing)} tensors of the model, first `{missing[0]}`",
            hint=_missing_hint(list(missing)),
        )


def _load(settings: LoadSettings, auto: Any) -> nn.Module:
    role, lora = settings.role, settings.lora
    trains_all = role.role in TRAINED_ROLES and lora is None
    storage = "fp32" if trains_all else role.storage_dtype
    if role.quantization != "none" and trains_all:
        raise ModelError(
            f"`{role.role}` trains all its weights, which cannot be quantized to `{role.quantization}`",
            hint="set `model.lora_rank` to train adapters, or `plan.quantization=none`",
        )
    model = _from_folder(settings, auto, storage=storage)
    if role.quantization == "int8":
        keep_in_int8(model, device=role.device)
    if storage != "fp32":
        keep_in_storage_dtype(model)
        if not stored_weights(model):  # those that wait are read into their dtype
            _restore_exact_parameters(model, settings.folder)
    model.requires_grad_(trains_all)
    if lora is not None:
        add_adapters(model, lora)
    if role.gradient_checkpointing and role.role in TRAINED_ROLES:
        enable_checkpointing(model)
    if role.quantization != "nf4" and role.num_shards == 1:  # shards move to the device layer by layer
        model.to(role.device)
    for module in model.modules():
        # bitsandbytes repacks weights on CPUs with avx512_bf16, and the repacked product has no gradient
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010
    return model.eval()


def _from_folder(settings: LoadSettings, auto: Any, *, storage: str) -> nn.Module:
    folder, role = settings.folder, settings.role
    if not (folder / "config.json").is_file():
        raise ModelError(f"`{folder}` has no `config.json`", hint="give a folder saved by `save_pretrained`")
    options: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(folder, **options)
        for part in (config, config.get_text_config()):
            for name, value in list(vars(part).items()):
                if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float):
                    setattr(part, name, 0.0)
        options |= {"dtype": TORCH_DTYPES[storage], "attn_implementation": _supported_attention(config, role)}
        if role.num_shards > 1 and not hasattr(config, "quantization_config"):
            waiting = _deferred(auto, config, folder, options)
            if waiting is not None:
                return waiting
        if role.quantization == "nf4":
            options |= {"quantization_config": _nf4(role), "device_map": {"": role.device}}
        with _without_progress_bars():
            model, info = auto.from_pretrained(
                folder, config=config, use_safetensors=True, output_loading_info=True, **options
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the model in `{folder}` could not be loaded: {error}") from error
    mismatched = sorted(str(key) for key in info.get("mismatched_keys", ()))
    _check_complete(sorted(info["missing_keys"]) + mismatched, folder)
    loaded: nn.Module = model
    return loaded


def _deferred(auto: Any, config: Any, folder: Path, options: Mapping[str, Any]) -> nn.Module | None:
    """The model with weights that wait in the files; None if they have to be loaded whole."""
    given = {name: value for name, value in options.items() if name != "local_files_only"}
    model: Any = deferred(lambda: auto.from_config(copy.deepcopy(config), **given), folder)
    if model is not None and model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model  # type: ignore[no-any-return]


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Disable the progress bars of transformers inside the context."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _missing_hint(missing: list[str]) -> str:
    if missing in (["score.weight"], ["classifier.weight"], ["classifier.bias", "classifier.weight"]):
        return "it has no reward output: choose a model that was trained as a reward model"
    return "`config.json` and the safetensors files of the folder do not match"


def _supported_attention(config: Any, role: RolePlan) -> str:
    """The attention of the plan, or eager for a model that caps its attention logits, which SDPA does not support."""
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    if capped and role.attention == "sdpa":
        warnings.warn(
            f"`{config.model_type}` caps its attention logits, which `sdpa` does not support: "
            f"`{role.role}` uses `eager`",
            RuntimeWarning,
            stacklevel=4,
        )
        return "eager"
    return attn_implementation_for(role)


def _nf4(role: RolePlan) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=TORCH_DTYPES[role.compute_dtype],
    )


def enable_checkpointing(model: Any) -> None:
    """Recompute each layer in the backward pass. Takes effect in train mode only."""
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


@torch.no_grad()
def _restore_exact_parameters(model: nn.Module, folder: Path) -> None:
    """Reload the fp32 parameters of a model stored in fp16 or bf16 from the file, so that they are not rounded."""
    wanted = {name: p for name, p in model.named_parameters() if p.dtype == torch.float32}
    prefix = getattr(model, "base_model_prefix", "")
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            stored = set(tensors.keys())
            for name, parameter in wanted.items():
                key = name if name in stored else f"{prefix}.{name}"
                if key in stored and tensors.get_slice(key).get_shape() == list(parameter.shape):
                    parameter.copy_(tensors.get_tensor(key))
