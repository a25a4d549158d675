"""The state of a run between two steps, apart from the models."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_compat.errors import CheckpointError

STATE_FILE = "trainer.json"
RNG_FILE = "rng.pt"
FORMAT = 2
"of checkpoints: 2 derives seeds by hash and saves the version of each worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State between two steps, with which a run that stops during the next step can be saved."""

    step: int
    elapsed_seconds: float
    total_optimizer_steps: int
    order: dict[str, Any]
    "the position in the order of the rows"
    pending: tuple[int, ...] = ()
    "rows before this position that no step has used"
    num_draws: int
    recipe: dict[str, Any]
    "the recipe's state between steps apart from the models"
    rng: RngState


@dataclass(frozen=True, slots=True, kw_only=True)
class RngState:
    """The states of the generators of Python, NumPy and torch, one per device."""

    python: list[Any]
    numpy: list[Any]
    torch_cpu: torch.Tensor
    torch_cuda: list[torch.Tensor]

    @classmethod
    def take(cls) -> RngState:
        name, keys, position, has_gauss, cached = np.random.get_state()
        return cls(
            python=list(random.getstate()),
            numpy=[name, [int(key) for key in keys], position, has_gauss, cached],
            torch_cpu=torch.get_rng_state(),
            torch_cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        )

    def restore(self) -> None:
        """Restore the generators; states of devices that this machine lacks are ignored."""
        version, internal, gauss = self.python
        random.setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = self.numpy
        np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        torch.set_rng_state(self.torch_cpu)
        for index, state in enumerate(self.torch_cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)


def save_run_state(state: RunState, folder: Path) -> None:
    plain = {"format": FORMAT} | {key: value for key, value in asdict(state).items() if key != "rng"}
    plain["python_rng"], plain["numpy_rng"] = state.rng.python, state.rng.numpy
    (folder / STATE_FILE).write_text(json.dumps(plain))
    torch.save({"cpu": state.rng.torch_cpu, "cuda": state.rng.torch_cuda}, folder / RNG_FILE)


def load_run_state(folder: Path) -> RunState:
    """Raises CheckpointError for files that cannot be read and for a checkpoint of another format."""
    try:
        plain = json.loads((folder / STATE_FILE).read_text())
        _check_format(folder, plain.pop("format", 1))
        generators = torch.load(folder / RNG_FILE, weights_only=True)
        plain.setdefault("pending", plain["recipe"].pop("left_over", ()))
        plain.setdefault("num_draws", plain["step"])
        rng = RngState(
            python=plain.pop("python_rng"),
            numpy=plain.pop("numpy_rng"),
            torch_cpu=generators["cpu"],
            torch_cuda=generators["cuda"],
        )
        return RunState(**plain, rng=rng)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the state in `{folder}` cannot be read: {error}") from error


def _check_format(folder: Path, found: int) -> None:
    if found != FORMAT:
        raise CheckpointError(
            f"`{folder}` has checkpoint format {found} and this version resumes format {FORMAT}",
            hint="finish the run with the version that started it, or train from its weights: `rlc export`, then "
            "`model.path` and a new `trainer.output_dir`",
        )


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators. Accepts any non-negative `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed % 2**63)
