"""The engine of a reward model: one number per sequence of token ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_compat.models.reward_model import RewardNetwork
from rl_compat.planning.types import RolePlan
from rl_compat.training.base import TrainEngine
from rl_compat.training.micro_batches import MicroBatches
from rl_compat.training.precision import autocast_for


class RewardEngine(TrainEngine):
    """A frozen reward model, in micro-batches under the plan's token budget."""

    model: RewardNetwork

    def __init__(self, model: RewardNetwork, *, role: RolePlan, pad_token_id: int) -> None:
        super().__init__(model, role=role, optimizer=None)
        self._pad_token_id = pad_token_id

    def rewards(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """The reward of each sequence, in order. Sequences must not be empty."""

        def attempt(micro_batches: MicroBatches) -> list[float]:
            rewards: dict[int, float] = {}
            for rows in micro_batches:
                self._running_rows = rows
                computed = self._forward([sequences[row] for row in rows] or [[self._pad_token_id]])
                rewards |= zip(rows, computed, strict=False)
            return [rewards[row] for row in range(len(sequences))]

        return self._within_memory([len(sequence) for sequence in sequences], attempt)

    def _forward(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        input_ids = torch.full((len(sequences), int(lengths.max())), self._pad_token_id)
        for row, sequence in enumerate(sequences):
            input_ids[row, : len(sequence)] = torch.tensor(list(sequence))
        with torch.no_grad(), autocast_for(self.role):
            rewards = self.model(input_ids.to(self.role.device), lengths.to(self.role.device))
        return [float(reward) for reward in rewards.cpu()]
