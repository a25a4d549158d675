"""What an engine needs to go on where it stopped, as two files in a folder."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from rl_compat.errors import CheckpointError

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
    """Write the trained weights (tied ones once), the optimizer's state and plain numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: parameter.detach().to("cpu").contiguous() for name, parameter in parameters.items()}
    save_file(weights, folder / WEIGHTS_FILE)
    training = {"optimizer_name": optimizer_name, "optimizer": optimizer.state_dict(), "progress": progress}
    torch.save(training, folder / TRAINING_FILE)


def load_training_state(
    folder: Path, *, parameters: Mapping[str, nn.Parameter], optimizer_name: str, optimizer: Any
) -> dict[str, Any]:
    """Copy the weights into the parameters and the state into the optimizer; returns the plain numbers.

    Hyperparameters stay those of the optimizer, not of the file. Raises CheckpointError, before anything is changed,
    for files that are missing, damaged or of another model.
    """
    saved = _read_training_file(folder)
    if saved["optimizer_name"] != optimizer_name:
        raise CheckpointError(
            f"`{folder / TRAINING_FILE}` holds the state of `{saved['optimizer_name']}`, "
            f"the plan is `{optimizer_name}`",
            hint=f"resume with `optimizer.name={saved['optimizer_name']}`",
        )
    load_trained_weights(folder, parameters)
    hyperparameters = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved["optimizer"])
    for group, own in zip(optimizer.param_groups, hyperparameters, strict=True):
        group.update(own)
    progress: dict[str, Any] = saved["progress"]
    return progress


def _read_training_file(folder: Path) -> dict[str, Any]:
    file = folder / TRAINING_FILE
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"`{file}` is missing") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError, OSError) as error:
        raise CheckpointError(f"`{file}` cannot be read: {error}") from error
    if not isinstance(saved, dict) or saved.keys() != {"optimizer_name", "optimizer", "progress"}:
        raise CheckpointError(f"`{file}` is not the state of a training engine")
    return saved


@torch.no_grad()
def load_trained_weights(folder: Path, parameters: Mapping[str, nn.Parameter]) -> None:
    """Copy the weights of a saved state into the parameters. Raises CheckpointError, before anything is changed."""
    file = folder / WEIGHTS_FILE
    try:
        with safe_open(file, framework="pt") as tensors:
            _check_names(file, saved=set(tensors.keys()), wanted=set(parameters))
            for name, parameter in parameters.items():
                shape = tensors.get_slice(name).get_shape()
                if shape != list(parameter.shape):
                    raise CheckpointError(f"`{name}` is {shape} in `{file}` and {list(parameter.shape)} in the model")
            for name, parameter in parameters.items():
                parameter.copy_(tensors.get_tensor(name))
    except FileNotFoundError as error:
        raise CheckpointError(f"`{file}` is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"`{file}` cannot be read: {error}") from error


def _check_names(file: Path, *, saved: set[str], wanted: set[str]) -> None:
    if saved == wanted:
        return
    differing = sorted(saved ^ wanted)
    raise CheckpointError(
        f"`{file}` holds {len(saved)} trained weights and the model trains {len(wanted)}, "
        f"`{differing[0]}` is in only one of them",
        hint="resume with the model and the adapter settings that the checkpoint was saved with",
    )
