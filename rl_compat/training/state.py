"""The saved state of a training engine: two files in a folder, or a copy in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_compat.errors import CheckpointError
from rl_compat.models.parts import from_part, is_shared, local, own_part, whole
from rl_compat.training.checked_files import Shapes, read_object, read_tensors, write_object, write_tensors
from rl_compat.training.optimizers import parameter_groups
from rl_compat.units import MIB

WEIGHTS_FILE = "weights.safetensors"
TRAINING_FILE = "training.pt"
BUFFER_BYTES = 64 * MIB
"of memory that are allocated at once: a power of two, which is what pinned memory comes in"
ALIGNMENT_BYTES = 16
"of a tensor in a buffer: a multiple of every element size"
CopyPlace = Literal["device", "host"]
"where a copy is kept: next to what it copies, or in host memory"


def save_training_state(
    folder: Path | None,
    *,
    parameters: Mapping[str, nn.Parameter],
    optimizer_name: str,
    optimizer: Any,
    progress: dict[str, Any],
) -> None:
    """Write the trained weights (tied weights once), the optimizer state and plain numbers.

    All ranks make this call, and one of them gives a folder. The files do not depend on how ranks share the weights.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    write_tensors(None if folder is None else folder / WEIGHTS_FILE, parameters)
    state = _whole_state(optimizer.state_dict(), _in_order(parameters), keeps=folder is not None)
    if folder is not None:
        training = {"optimizer_name": optimizer_name, "optimizer": state, "progress": progress}
        write_object(folder / TRAINING_FILE, training)


def load_training_state(
    folder: Path, *, parameters: Mapping[str, nn.Parameter], optimizer_name: str, optimizer: Any
) -> dict[str, Any]:
    """Load weights and optimizer state; returns the plain numbers.

    The optimizer keeps its own hyperparameters. Raises CheckpointError, before anything changes, for files that are
    missing, damaged or of another model.
    """
    saved = _read_training_file(folder)
    if saved["optimizer_name"] != optimizer_name:
        raise CheckpointError(
            f"`{folder / TRAINING_FILE}` holds the state of `{saved['optimizer_name']}`, "
            f"the plan is `{optimizer_name}`",
            hint=f"resume with `optimizer.name={saved['optimizer_name']}`",
        )
    load_trained_weights(folder, parameters)
    _load_optimizer(optimizer, _own_state(saved["optimizer"], _in_order(parameters)))
    progress: dict[str, Any] = saved["progress"]
    return progress


def _in_order(parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    """The parameters as an optimizer numbers them."""
    return [parameter for group in parameter_groups(parameters, weight_decay=0.0) for parameter in group["params"]]


def _whole_state(state: Any, parameters: Sequence[Tensor], *, keeps: bool) -> Any:
    """An optimizer state with whole tensors, which those who do not keep it only give their parts of."""

    def gathered(value: Any, like: Tensor) -> Any:
        if not is_shared(like) or not _has_parts(value):
            return value
        together = whole(from_part(local(value), like))
        return together.cpu() if keeps else None

    return _with_each(state, parameters, gathered)


def _own_state(state: Any, parameters: Sequence[Tensor]) -> Any:
    """A whole optimizer state with the parts of this rank."""
    return _with_each(state, parameters, lambda value, like: own_part(value, like) if _has_parts(value) else value)


def _has_parts(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _with_each(state: Any, parameters: Sequence[Tensor], change: Callable[[Any, Tensor], Any]) -> Any:
    """An optimizer state whose values are changed, each with the parameter that it belongs to."""
    changed = {
        number: {name: change(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return state | {"state": changed}


def _load_optimizer(optimizer: Any, state: Any) -> None:
    """Load a state with the parts of this rank; the optimizer keeps its own hyperparameters."""
    hyperparameters = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.load_state_dict(
        _with_each(state, parameters, lambda value, like: from_part(value, like) if _has_parts(value) else value)
    )
    for group, own in zip(optimizer.param_groups, hyperparameters, strict=True):
        group.update(own)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Stands for a tensor in an optimizer state whose content is in a `StateCopy`."""

    shape: torch.Size
    dtype: torch.dtype
    place: torch.device


class StateCopy:
    """A copy of everything that training changes, in buffers that are allocated once.

    CUDA tensors are copied to the host into pinned memory on a separate stream. Call `wait` before a tensor changes
    or is freed.
    """

    def __init__(self) -> None:
        self._layout: list[_Kept] = []
        self._places: list[list[Tensor]] = []
        "the parts of the buffers that hold each tensor, or the whole as one part"
        self._optimizer: Any = None
        "the state of the optimizer with `_Kept` in place of tensors"
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    @torch.no_grad()
    def start(self, parameters: Mapping[str, nn.Parameter], optimizer: Any, *, place: CopyPlace) -> None:
        """Copy the weights and the optimizer's state. Raises torch.OutOfMemoryError if the place has no room."""
        if self._copied is not None:
            self._copied.synchronize()
        state = optimizer.state_dict()
        tensors = [*(local(parameter.detach()) for parameter in parameters.values()), *_tensors_in(state)]
        self._optimizer = _without_data(state)
        host = torch.device("cpu")
        layout = [_Kept(t.shape, t.dtype, t.device if place == "device" else host) for t in tensors]
        device = None if place == "device" else next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if layout != self._layout:
            self._layout, self._places = [], []
            self._places = _allocate(layout, pin=device is not None)
            self._layout = layout
        if device is None:
            self._copied = None
            self._write(tensors)
            return
        self._stream = self._stream or torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            self._write(tensors)
        self._copied = self._stream.record_event()

    def wait(self) -> None:
        """Make the device's current stream wait for the copy."""
        if self._stream is not None and self._copied is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._copied)

    @torch.no_grad()
    def put_back(self, parameters: Mapping[str, nn.Parameter], optimizer: Any) -> None:
        """Restore weights and optimizer, in place where their tensors still exist."""
        if self._copied is not None:
            self._copied.synchronize()
        places = iter(self._places)
        for parameter in parameters.values():
            _read(local(parameter.detach()), next(places))
        _load_optimizer(optimizer, _with_data(self._optimizer, optimizer.state_dict(), places))

    def _write(self, tensors: Sequence[Tensor]) -> None:
        """One call for all tensors: a call for each costs more than the copy of a small one."""
        sources = [part for tensor, places in zip(tensors, self._places, strict=True) for part in _cut(tensor, places)]
        torch._foreach_copy_([place for places in self._places for place in places], sources, non_blocking=True)


def _allocate(layout: Iterable[_Kept], *, pin: bool) -> list[list[Tensor]]:
    """Uninitialized memory for each tensor, one after another in buffers of equal size."""
    places: list[list[Tensor]] = []
    buffers: dict[torch.device, tuple[Tensor, int]] = {}
    for kept in layout:
        buffer, end = buffers.get(kept.place, (torch.empty(0, dtype=torch.uint8), 0))
        parts: list[Tensor] = []
        rest = kept.shape.numel() * kept.dtype.itemsize
        while rest or not parts:
            end += -end % ALIGNMENT_BYTES
            if end >= len(buffer):
                buffer = torch.empty(BUFFER_BYTES, dtype=torch.uint8, device=kept.place, pin_memory=pin)
                end = 0
            count = min(rest, BUFFER_BYTES - end)
            parts.append(buffer[end : end + count].view(kept.dtype))
            rest, end = rest - count, end + count
        buffers[kept.place] = buffer, end
        places.append([parts[0].view(kept.shape)] if len(parts) == 1 else parts)
    return places


def _cut(tensor: Tensor, places: Sequence[Tensor]) -> Sequence[Tensor]:
    """The parts of a tensor that belong to its places: the tensor itself where it has one place."""
    return [tensor] if len(places) == 1 else tensor.reshape(-1).split([len(place) for place in places])


def _read(tensor: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Fill a tensor in place from its places, and return it."""
    whole = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    for part, place in zip(_cut(whole, places), places, strict=True):
        part.copy_(place)
    return tensor if whole is tensor else tensor.copy_(whole)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield local(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)


def _without_data(value: Any) -> Any:
    if isinstance(value, Tensor):
        part = local(value)
        return _Kept(part.shape, part.dtype, part.device)
    if isinstance(value, dict):
        return {key: _without_data(item) for key, item in value.items()}
    return copy.deepcopy(value)


def _with_data(kept: Any, live: Any, places: Iterator[Sequence[Tensor]]) -> Any:
    """The kept state with its tensors read into those of the live state, or into new ones."""
    if isinstance(kept, _Kept):
        part = local(live) if isinstance(live, Tensor) else None
        fits = part is not None and (part.shape, part.dtype) == (kept.shape, kept.dtype)
        return _read(part if part is not None and fits else torch.empty(kept.shape, dtype=kept.dtype), next(places))
    if isinstance(kept, dict):
        now = live if isinstance(live, dict) else {}
        return {key: _with_data(item, now.get(key), places) for key, item in kept.items()}
    return kept


def _read_training_file(folder: Path) -> dict[str, Any]:
    file = folder / TRAINING_FILE
    saved = read_object(file)
    if not isinstance(saved, dict) or saved.keys() != {"optimizer_name", "optimizer", "progress"}:
        raise CheckpointError(f"`{file}` is not the state of a training engine")
    return saved


@torch.no_grad()
def load_trained_weights(folder: Path, parameters: Mapping[str, nn.Parameter]) -> None:
    """Load only the weights of a saved state. Raises CheckpointError before anything changes."""
    file = folder / WEIGHTS_FILE

    def check(shapes: Shapes) -> None:
        _check_names(file, saved=set(shapes), wanted=set(parameters))
        for name, parameter in parameters.items():
            if shapes[name] != list(parameter.shape):
                raise CheckpointError(
                    f"`{name}` is {shapes[name]} in `{file}` and {list(parameter.shape)} in the model"
                )

    saved = read_tensors(file, check, lambda name, tensor: own_part(tensor, parameters[name]))
    for name, parameter in parameters.items():
        local(parameter).copy_(saved[name])


def _check_names(file: Path, *, saved: set[str], wanted: set[str]) -> None:
    if saved == wanted:
        return
    differing = sorted(saved ^ wanted)
    raise CheckpointError(
        f"`{file}` holds {len(saved)} trained weights and the model trains {len(wanted)}, "
        f"`{differing[0]}` is in only one of them",
        hint="resume with the model and adapter settings of the checkpoint",
    )
