"""The output of a rollout for the other roles: trajectories, texts and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rl_compat.batch import Batch
from rl_compat.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """B responses with their prompts: as trajectories, as texts and as tensors, in the same order."""

    trajectories: tuple[Trajectory, ...]
    texts: tuple[str, ...]
    "each response as text, without special tokens"
    batch: Batch

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], texts: Sequence[str]) -> Self:
        return cls(trajectories=tuple(trajectories), texts=tuple(texts), batch=Batch.from_trajectories(trajectories))

    def __len__(self) -> int:
        return len(self.trajectories)
