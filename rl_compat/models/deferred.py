"""A model without memory for its weights, which are read from its files part by part once ranks have divided them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.overrides import TorchFunctionMode

from rl_compat.models.parts import local, own_place


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the content of a weight is."""

    file: Path
    key: str


def deferred(make: Callable[[], nn.Module], folder: Path) -> nn.Module | None:
    """A model whose weights wait in the safetensors files of a folder, on the CPU; its buffers are complete.

    A weight that waits is one number, seen in the shape of the weight. None if the files do not hold each weight under
    its name and in its shape: transformers may convert them.
    """
    with torch.random.fork_rng(devices=[]), _EmptyOnMeta():
        model = make()
    stored = _stored(folder)
    prefix = getattr(model, "base_model_prefix", "")
    places: dict[nn.Parameter, Stored | None] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        keys = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
        fitting = (stored[key][0] for key in keys if key in stored and stored[key][1] == list(parameter.shape))
        places[parameter] = places.get(parameter) or next(fitting, None)
    if any(place is None for place in places.values()) or any(buffer.is_meta for buffer in model.buffers()):
        return None
    waiting: dict[nn.Parameter, nn.Parameter] = {}
    for parameter, place in places.items():
        waiting[parameter] = nn.Parameter(torch.zeros((), dtype=parameter.dtype).expand(parameter.shape))
        waiting[parameter].stored = place  # type: ignore[attr-defined]
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, waiting[parameter])
    return model


def give_memory(module: nn.Module, device: str) -> None:
    """Uninitialized memory for the weights of a module that wait."""
    for parameter in module.parameters():
        if hasattr(parameter, "stored") and not parameter.is_contiguous():
            parameter.data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)


def stored_weights(model: nn.Module) -> dict[str, Stored]:
    """The weights that wait, by name."""
    return {name: p.stored for name, p in model.named_parameters() if hasattr(p, "stored")}


@torch.no_grad()
def fill(model: nn.Module, stored: Mapping[str, Stored]) -> None:
    """Read the parts of this rank of weights that have waited and are divided among ranks now."""
    by_file: dict[Path, list[tuple[nn.Parameter, str]]] = {}
    for name, parameter in model.named_parameters():
        if name in stored:
            by_file.setdefault(stored[name].file, []).append((parameter, stored[name].key))
    for file, weights in by_file.items():
        with safe_open(file, framework="pt") as tensors:
            for parameter, key in weights:
                local(parameter).copy_(tensors.get_slice(key)[own_place(parameter)])


def _stored(folder: Path) -> dict[str, tuple[Stored, list[int]]]:
    """The place and the shape of each tensor in the files of a folder."""
    found: dict[str, tuple[Stored, list[int]]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                found[key] = Stored(file, key), tensors.get_slice(key).get_shape()
    return found


class _EmptyOnMeta(TorchFunctionMode):
    """`torch.empty`, with which matrices begin, takes no memory; what is computed, such as rotary tables, is real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **((kwargs or {}) | ({"device": "meta"} if func is torch.empty else {})))
