"""The reward: scores of responses from functions, replaceable between steps."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from rl_compat.config.types import RewardConfig
from rl_compat.distributed.dispatch import dispatch
from rl_compat.distributed.pool import ResourcePool, WorkerGroup
from rl_compat.rewards.score import ScoreRequest, Scores, build_scorer
from rl_compat.workers.sequences import Sequences


class RewardWorker:
    """Scores responses in one place."""

    def __init__(self, config: RewardConfig, data_sources: Sequence[str]) -> None:
        self.scorer = build_scorer(config, data_sources=data_sources)

    @dispatch(merge="first")
    def score(self, *, requests: Sequence[ScoreRequest]) -> Scores:
        return self.scorer.score(requests)

    def close(self) -> None:
        self.scorer.close()


class RewardModel:
    """The reward of a run."""

    def __init__(self, config: RewardConfig, *, data_sources: Sequence[str], pool: ResourcePool) -> None:
        self.group: WorkerGroup = pool.start(partial(RewardWorker, config, data_sources))

    @classmethod
    def from_functions(
        cls, *functions: str, weights: Sequence[float] = (), pool: ResourcePool | None = None
    ) -> RewardModel:
        """The weighted sum of built-in functions and `file.py:function`s. Raises DataError or ConfigError."""
        config = RewardConfig(functions=tuple(functions), weights=tuple(weights))
        return cls(config, data_sources=(), pool=pool or ResourcePool(gpus=[]))

    def compute_rewards(self, sequences: Sequences) -> Future[Scores]:
        """One reward for each response; None for a response left out by `on_error=skip`."""
        requests = [
            ScoreRequest(response_text=text, prompt=trajectory.prompt)
            for text, trajectory in zip(sequences.texts, sequences.trajectories, strict=True)
        ]
        return self.group.run(RewardWorker.score, requests=requests)

    def close(self) -> None:
        """End the processes that custom functions run in."""
        self.group.run(RewardWorker.close).result()
