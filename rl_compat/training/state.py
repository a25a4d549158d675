"""The saved state of a training engine: two files in a folder, or a copy in host memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.errors import CheckpointError
from rl_compat.training.checked_files import Shapes, read_object, read_tensors, write_object, write_tensors

WEIGHTS_FILE = "weights.safetensors"
TRAINING_FILE = "training.pt"


def save_training_state(
    folder: Path,
    *,
    parameters: Mapping[str, nn.Parameter],
    optimizer_name: str,
    optimizer: Any,
    progress: dict[str, Any],
) -> None:
    """Write the trained weights (tied weights once), the optimizer state and plain numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS_FILE, parameters)
    training = {"optimizer_name": optimizer_name, "optimizer": optimizer.state_dict(), "progress": progress}
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
    _load_optimizer(optimizer, saved["optimizer"])
    progress: dict[str, Any] = saved["progress"]
    return progress


def _load_optimizer(optimizer: Any, state: Any) -> None:
    hyperparameters = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, hyperparameters, strict=True):
        group.update(own)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """A copy in host memory of everything that training changes."""

    weights: dict[str, Tensor]
    optimizer: Any
    progress: dict[str, Any]


@torch.no_grad()
def copy_training_state(
    parameters: Mapping[str, nn.Parameter], optimizer: Any, progress: dict[str, Any], into: TrainingState | None
) -> TrainingState:
    """Copy the weights and the optimizer's state. The tensors of `into`, an earlier copy, are reused."""
    weights, of_optimizer = (None, None) if into is None else (into.weights, into.optimizer)
    return TrainingState(
        weights=_host_copy({name: parameter.detach() for name, parameter in parameters.items()}, weights),
        optimizer=_host_copy(optimizer.state_dict(), of_optimizer),
        progress=progress,
    )


@torch.no_grad()
def put_back_training_state(
    state: TrainingState, parameters: Mapping[str, nn.Parameter], optimizer: Any
) -> dict[str, Any]:
    """Restore weights and optimizer from a copy; returns the plain numbers."""
    for name, parameter in parameters.items():
        parameter.copy_(state.weights[name])
    _load_optimizer(optimizer, state.optimizer)
    return state.progress


def _host_copy(value: Any, into: Any = None) -> Any:
    """A value with its tensors copied to the host, into tensors of equal shape and dtype of an earlier copy."""
    if isinstance(value, Tensor):
        if isinstance(into, Tensor) and (into.shape, into.dtype) == (value.shape, value.dtype):
            return into.copy_(value)
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        earlier = into if isinstance(into, dict) else {}
        return {key: _host_copy(item, earlier.get(key)) for key, item in value.items()}
    return copy.deepcopy(value)


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

    saved = read_tensors(file, check)
    for name, parameter in parameters.items():
        parameter.copy_(saved[name])


def _check_names(file: Path, *, saved: set[str], wanted: set[str]) -> None:
    if saved == wanted:
        return
    differing = sorted(saved ^ wanted)
    raise CheckpointError(
        f"`{file}` holds {len(saved)} trained weights and the model trains {len(wanted)}, "
        f"`{differing[0]}` is in only one of them",
        hint="resume with the model and adapter settings of the checkpoint",
    )
