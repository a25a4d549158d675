"""LoRA adapters: inject them into a model, disable them to get the base model, merge them for export.

`peft` takes seconds to import, and is imported where adapters or quantized weights need it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_compat.errors import ModelError
from rl_compat.models.files.storage import Int8Linear
from rl_compat.models.parts import whole

if TYPE_CHECKING:
    from peft import LoraConfig

_ADAPTER = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The adapters of a model (Hu et al. 2021, "LoRA")."""

    rank: int
    "inner dimension of the two matrices"
    alpha: float
    "the adapters are scaled by alpha / rank"
    dropout: float
    targets: tuple[str, ...]
    "names of the modules that get an adapter; `all-linear` is every linear layer except the output head"
    seed: int = 0
    "of the first weights, in every process"


def add_adapters(model: nn.Module, settings: LoraSettings) -> None:
    """Freeze a transformers model and inject fp32 adapters, in place. Its class and parameter names do not change.

    Raises ModelError if no module matches the targets.
    """
    from peft import inject_adapter_in_model

    model.requires_grad_(False)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")  # see `unties`
            torch.default_generator.manual_seed(settings.seed)  # peft makes the weights on the CPU
            inject_adapter_in_model(peft_config(settings), model, adapter_name=_ADAPTER)
    except ValueError as error:
        raise ModelError(
            f"no adapter could be placed on `{', '.join(settings.targets)}`: {error}",
            hint="name linear layers of the model in `model.lora_targets`, or use `all-linear`",
        ) from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.float()


@contextmanager
def adapter_disabled(model: nn.Module) -> Iterator[None]:
    """Inside the context, the model is its frozen base, which is the reference of a policy that trains adapters."""
    layers = _adapted(model).values()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter in trainable:
            parameter.requires_grad_(True)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name. A tied weight appears once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def merge_for_export(model: nn.Module, *, keeps: bool = True) -> dict[str, Tensor]:
    """A copy of the weights on the CPU under Hugging Face names, with adapters merged and tied weights once.

    Weights that adapters make different are no longer tied, and each is there. Quantized weights are dequantized. The
    model itself is not changed. Ranks that share weights make this call together; those without `keeps` get nothing.
    """
    if not keeps:
        for _ in merged_tensors(model):
            pass
        return {}
    merged = {name: tensor.cpu().clone() for name, tensor in merged_tensors(model)}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                merged[f"{prefix}.{name}" if prefix else name] = buffer.detach().cpu().clone()
    return merged


def merged_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of `merge_for_export` one at a time on their device: parameters, and new tensors where merged."""
    adapted = _adapted(model)
    done, differing = set[int](), _untied(model)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if "lora_" in name or (id(parameter) in done and id(parameter) not in differing):
            continue
        done.add(id(parameter))
        owner_name, _, leaf = name.rpartition(".")
        layer = adapted.get(owner_name.removesuffix(".base_layer"))
        with torch.no_grad():
            owner = model.get_submodule(owner_name)
            weight = _whole_weight(owner) if leaf == "weight" else whole(parameter.detach())
            if layer is not None and leaf == "weight" and owner_name.endswith(".base_layer"):
                weight = (weight.float() + _delta(layer).float()).to(weight.dtype)
        yield name.replace(".base_layer.", "."), weight


def _delta(layer: Any) -> Tensor:
    """The product of the two matrices of an adapter, which is computed whole: ranks may divide them differently."""
    held = [(module, module.weight) for part in (layer.lora_A, layer.lora_B) for module in part.values()]
    try:
        for module, parameter in held:
            module.weight = nn.Parameter(whole(parameter.detach()), requires_grad=False)
        return whole(layer.get_delta_weight(_ADAPTER))
    finally:
        for module, parameter in held:
            module.weight = parameter


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The adapters alone, on the CPU, under the names that `peft` reads. Ranks that share them call this together."""
    named = ((name, parameter.detach()) for name, parameter in model.named_parameters() if "lora_" in name)
    return {
        f"base_model.model.{name.replace(f'.{_ADAPTER}', '')}": whole(tensor).cpu().clone() for name, tensor in named
    }


def peft_config(settings: LoraSettings) -> LoraConfig:
    """The adapters as `peft` describes them."""
    from peft import LoraConfig

    all_linear = settings.targets == ("all-linear",)
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=settings.dropout,
        target_modules="all-linear" if all_linear else list(settings.targets),
    )


def unties(model: nn.Module) -> bool:
    """Whether adapters make weights different that the model ties, such as its embedding and its output head."""
    return bool(_untied(model))


def _adapted(model: nn.Module) -> dict[str, Any]:
    """The layers with an adapter, by name: those that wrap a layer."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "base_layer")}


def _untied(model: nn.Module) -> set[int]:
    """The identities of tied weights of which at least one has an adapter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {key for key, tied in names.items() if len(tied) > 1 and any(".base_layer." in name for name in tied)}


def _whole_weight(layer: nn.Module) -> Tensor:
    """The weight of a layer, dequantized if need be, from the parts of all ranks."""
    if isinstance(layer, Int8Linear):
        return layer.dequantized()
    parameter = layer.weight
    if type(parameter) is nn.Parameter:
        return parameter.detach()
    from peft.utils.integrations import dequantize_module_weight

    weight = whole(dequantize_module_weight(layer).detach())
    # peft 0.21 replaces the weight of an int8 bitsandbytes layer on a CPU by one without its scales
    layer.weight = parameter
    return weight
