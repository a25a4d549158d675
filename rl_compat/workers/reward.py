"""The reward: scores of responses from functions and a reward model, replaceable between steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from rl_compat.config.types import RewardConfig
from rl_compat.distributed.dispatch import Shares, dispatch
from rl_compat.distributed.group import WorkerGroup
from rl_compat.distributed.pool import ResourcePool, start_without_device
from rl_compat.errors import ConfigError, nearest
from rl_compat.rewards.rows import join_scores, pick_scores
from rl_compat.rewards.score import Scorer, ScoreRequest, Scores, build_scorer
from rl_compat.workers.reward_model import RewardModelScorer, RewardModelSettings, plan_reward_model
from rl_compat.workers.sequences import Sequences


def _in_order(results: Sequence[Scores], shares: Shares) -> Scores:
    """The scores of several workers in the order of the requests."""
    if len(results) == 1:
        return results[0]
    order = [row for rows in shares for row in rows]
    joined = join_scores([scores for scores in results if scores.rewards])
    return pick_scores(joined, sorted(range(len(order)), key=order.__getitem__))


class RewardWorker:
    """Scores responses."""

    def __init__(
        self,
        config: RewardConfig,
        data_sources: Sequence[str],
        max_response_length: int | None = None,
        learned: RewardModelSettings | None = None,
        callables: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._data_sources = data_sources
        self._callables = callables or {}
        self._max_response_length = max_response_length
        self._learned = None if learned is None else RewardModelScorer(learned)
        self.scorer = self._build(config)

    @dispatch(split=("requests",), merge=_in_order)
    def score(self, *, requests: Sequence[ScoreRequest]) -> Scores:
        """The rewards in the order of the requests."""
        if not requests:
            return Scores(rewards=(), components={}, correct=())
        scores = self.scorer.score(requests)
        notes = self._learned.take_notes() if self._learned is not None else []
        return dataclasses.replace(scores, notes=(*scores.notes, *notes))

    @dispatch()
    def load(self) -> None:
        """Load the reward model now instead of on first use."""
        if self._learned is not None:
            self._learned.load()

    @dispatch()
    def replace(self, *, config: RewardConfig) -> None:
        """Replace functions and weights and keep the reward model. On an error nothing changes."""
        replaced, self.scorer = self.scorer, self._build(config)
        replaced.close()

    @dispatch(urgent=True)
    def close(self) -> None:
        """End the processes of the functions, so that a running call fails, and free the reward model's memory."""
        self.scorer.close()
        if self._learned is not None:
            self._learned.close()

    def _build(self, config: RewardConfig) -> Scorer:
        return build_scorer(
            config,
            data_sources=self._data_sources,
            max_response_length=self._max_response_length,
            learned=self._learned,
            callables=self._callables,
        )


class RewardModel:
    """The reward of a run: functions, a reward model, or a weighted sum of both."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        data_sources: Sequence[str],
        pool: ResourcePool,
        max_response_length: int | None = None,
        learned: RewardModelSettings | None = None,
        callables: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """`callables` are Python functions by their names in `reward.functions`."""
        self.config = config
        self.uses_device = learned is not None
        "whether scoring shares a device with other models, and so waits for them"
        start = start_without_device if learned is None else pool.start
        self.group: WorkerGroup[RewardWorker] = start(
            partial(RewardWorker, config, data_sources, max_response_length, learned, callables)
        )

    @classmethod
    def from_functions(
        cls,
        *functions: str,
        weights: Sequence[float] = (),
        pool: ResourcePool | None = None,
        max_response_length: int | None = None,
        **settings: Any,
    ) -> RewardModel:
        """The weighted sum of built-in and `file.py:function` rewards; `settings` are further ones of `[reward]`.

        Raises DataError or ConfigError.
        """
        config = _changed(RewardConfig(), {"functions": functions, "weights": tuple(weights), **settings})
        pool = pool or ResourcePool(gpus=[])
        return cls(config, data_sources=(), pool=pool, max_response_length=max_response_length)

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        pool: ResourcePool,
        functions: Sequence[str] = (),
        num_labels: int = 1,
        max_prompt_length: int = 512,
        max_response_length: int = 256,
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> RewardModel:
        """A sequence classification model `path` with one output, alone or with `functions`, on the pool's device.

        `settings` are further ones of `[reward]`, such as `weights` and `model_weight`. The lengths are those that
        the memory plan assumes. Raises ModelError, ConfigError, HardwareError or DoesNotFitError.
        """
        if num_labels != 1:
            raise ConfigError(f"`num_labels` is {num_labels} and a reward is 1 number")
        lengths = {"max_prompt_length": max_prompt_length, "max_response_length": max_response_length}
        return cls(
            _changed(RewardConfig(), {"functions": tuple(functions), "model": path, **settings}),
            data_sources=(),
            pool=pool,
            max_response_length=max_response_length,
            learned=plan_reward_model(path, pool.hardware, trust_remote_code=trust_remote_code, **lengths),
        )

    def compute_rewards(self, sequences: Sequences) -> Future[Scores]:
        """One reward per response; None for a response that `on_error=skip` excludes."""
        requests = [
            ScoreRequest(response_text=text, prompt=trajectory.prompt, response_ids=trajectory.response_ids)
            for text, trajectory in zip(sequences.texts, sequences.trajectories, strict=True)
        ]
        return self.group.run(RewardWorker.score, requests=requests)

    def load(self) -> None:
        """Load the reward model, if there is one, now instead of on first use. Raises ModelError."""
        self.group.run(RewardWorker.load).result()

    def replace(self, **settings: Any) -> None:
        """Change settings of `[reward]`, such as `functions` and `weights`, from the next call on.

        New functions are loaded before the old ones end, so an error (ConfigError, DataError) changes nothing. Other
        functions reset the weights. The reward model cannot be replaced; build another `RewardModel` for that.
        """
        if "functions" in settings:
            settings = {"weights": (), "function_arguments": {}, **settings}
        config = _changed(self.config, settings)
        if config.model != self.config.model:
            raise ConfigError(
                "`reward.model` cannot be replaced in place", hint="build another `RewardModel` and use it instead"
            )
        self.group.run(RewardWorker.replace, config=config).result()
        self.config = config

    def close(self) -> None:
        """End the processes of the functions, and free the memory of a reward model."""
        self.group.run(RewardWorker.close).result()


def _changed(config: RewardConfig, settings: dict[str, Any]) -> RewardConfig:
    known = [field.name for field in dataclasses.fields(RewardConfig)]
    for name in settings:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean `{close}`" if close else f"settings are {', '.join(known)}"
            raise ConfigError(f"`{name}` is not a setting of `[reward]`", hint=hint)
    given: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in settings.items()}
    return dataclasses.replace(config, **given)
