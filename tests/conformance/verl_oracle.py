"""verl itself, when it can be imported, and random inputs for both.

`VERL_ORACLE` may name a folder that holds verl and what it imports, for example one made with
`pip install --no-deps --target FOLDER verl tensordict omegaconf hydra-core ray ...`.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

WHOLE = (4, 4, 2, 2)
UNEVEN = (4, 4, 3, 1)


def verl_module(name: str) -> ModuleType:
    """A module of verl; skips the test if verl is not installed."""
    folder = os.environ.get("VERL_ORACLE")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"verl cannot be imported ({error}); `pip install verl`, or set VERL_ORACLE to a folder with it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Twelve responses of up to eight tokens in float64: uneven, two of them with a gap as after a tool's answer."""

    mask: Tensor
    groups: Tensor
    token_rewards: Tensor
    rewards: Tensor
    tensors: dict[str, Tensor]
    "[12, 8] by name"

    @property
    def index(self) -> Any:
        """The groups as verl has them."""
        return numpy.array([f"prompt-{group}" for group in self.groups.tolist()], dtype=object)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


def draw(seed: int, *, sizes: tuple[int, ...] = UNEVEN, spread: float = 0.5) -> Draw:
    """Inputs of one seed; `spread` is how far the policies lie apart."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    rows, width = sum(sizes), 8
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width)[None, :] < lengths[:, None]
    mask[:2, :] = True
    mask[:2, 3:5] = False
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    rewards = torch.randint(-2, 3, (rows,), generator=generator).double() / 2 if seed % 2 else normal(rows)
    last = mask.long().cumsum(1).argmax(1)
    token_rewards = torch.zeros(rows, width, dtype=torch.float64).scatter_(1, last[:, None], rewards[:, None])
    old = -normal(rows, width).abs() - 0.1
    tensors = {
        "old_logprobs": old,
        "logprobs": old + spread * normal(rows, width),
        "rollout_logprobs": old + spread * normal(rows, width),
        "ref_logprobs": old + spread * normal(rows, width),
        "values": normal(rows, width),
        "returns": normal(rows, width),
        "old_values": normal(rows, width),
        "advantages": normal(rows, width),
        "sum_pi_squared": normal(rows, width).sigmoid(),
        "weights": (spread * normal(rows, width)).exp(),
    }
    return Draw(mask=mask, groups=groups, token_rewards=token_rewards, rewards=rewards, tensors=tensors)
