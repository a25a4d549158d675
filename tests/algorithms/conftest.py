"""The golden numbers, and small random responses with uneven masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


class Golden:
    """Inputs made here and what verl returned for them, as float32 tensors."""

    def __init__(self, numbers: dict[str, Any]) -> None:
        self.numbers = numbers
        self.mask = torch.tensor(numbers["inputs"]["response_mask"]).bool()
        self.groups = torch.tensor(numbers["inputs"]["groups"])

    def input(self, name: str) -> Tensor:
        return torch.tensor(self.numbers["inputs"][name])

    def output(self, *path: str) -> Tensor:
        value: Any = self.numbers
        for key in path:
            value = value[key]
        return torch.tensor(value)


class Responses:
    """Six rows of seven tokens: uneven lengths, a hole in row 1, an empty row 4, in float64."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.lengths = torch.tensor([7, 6, 3, 1, 0, 5])
        self.mask = torch.arange(7)[None, :] < self.lengths[:, None]
        self.mask[1, 2:4] = False
        self.groups = torch.tensor([0, 1, 0, 1, 1, 0])
        self.token_rewards, self.values, self.logprobs, self.old_logprobs, self.advantages, self.returns = (
            torch.randn(6, 7, dtype=torch.float64, generator=generator) for _ in range(6)
        )
        self.rewards = torch.randn(6, dtype=torch.float64, generator=generator)

    def padded_with(self, x: Tensor, filler: float) -> Tensor:
        return torch.where(self.mask, x, filler)


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden(json.loads((Path(__file__).parent / "golden.json").read_text()))


@pytest.fixture
def responses() -> Responses:
    return Responses()
