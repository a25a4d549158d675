"""What a run does with responses after the step that generated them: train on them again, and record them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_compat import seeds
from rl_compat.algorithms.masking import masked_mean
from rl_compat.batch import Batch
from rl_compat.config.rules.follow import STALE_TRUNCATE, applies_ratio
from rl_compat.config.types import RunConfig
from rl_compat.planning.workload import drawn_rows
from rl_compat.replay.buffer import DrawnGroups, ReplayBuffer
from rl_compat.replay.priorities import effective_fraction
from rl_compat.replay.record import FOLDER, RecordLimits, RecordWriter, forget_steps_after
from rl_compat.replay.rows import Outcomes, to_table
from rl_compat.rewards.types import Scores
from rl_compat.trainer.loop import Collected, Replayed, Rollout
from rl_compat.units import GIB

ROW_BYTES, PROMPT_TOKEN_BYTES, RESPONSE_TOKEN_BYTES, STEP_BYTES = 64, 6, 11, 16_384
"compressed, on the disk: ids and text of tokens, of responses also log-probabilities; a step has a header"
USEFUL = 3
"uses of a response above which nothing is gained"
BOTTLENECK = 0.5
"share of a step that waits for generation, above which `samples.reuse=auto` uses responses twice"


class SampleStore:
    """The buffer and the record of a run; without `samples.reuse` and `samples.keep` it does nothing."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        samples, self._folder = config.samples, Path(config.trainer.output_dir) / FOLDER
        self._buffer = ReplayBuffer(samples, hot=config.trainer.batch_size) if samples.most_uses > 1 else None
        self._waiting_share: float | None = None
        "of a step that learns once from each response: the time in which it waits for generation"
        self._record = RecordWriter(self._folder, record_limits(config)) if samples.keep else None

    def forget_after(self, step: int) -> None:
        """Drop the record of later steps, which the run takes now."""
        forget_steps_after(step, self._folder)

    def draw(
        self, fresh: Collected, collect: Callable[[Rollout, RunConfig], Collected], *, version: int
    ) -> Replayed | None:
        """Responses of earlier steps for the policy of a version, with what `collect` computes from them, if any."""
        if self._buffer is None or (self.config.samples.reuse == "auto" and (self._waiting_share or 0.0) <= BOTTLENECK):
            return None
        seed = seeds.derive(self.config.rollout.seed, "replay", int(fresh.sequences.batch.groups.min()))
        drawn = self._buffer.draw(drawn_rows(self.config), version=version, seed=seed)
        if drawn is None:
            return None
        collected = collect(_as_rollout(drawn, fresh.scores), corrected(self.config))
        return Replayed(drawn=drawn, experience=collected.experience)

    def learned(self, step: int, fresh: Collected, *, version: int) -> dict[str, float]:
        """Keep the responses that the policy of a version has learned from; returns metrics. Raises RLCompatError."""
        if self._buffer is None and self._record is None:
            return {}
        table, again = to_table(fresh.sequences, _outcomes(fresh), step=step), fresh.replayed
        if self._record is not None:
            rows = [table]
            if (filtered := fresh.filtered) is not None:
                rows += [to_table(filtered.sequences, Outcomes(scores=filtered.scores), step=step, trained=False)]
            drawn = [] if again is None else again.drawn.groups.tolist()
            self._record.write(step, *rows, drawn=drawn)
        if self._buffer is None:
            return {}
        batch = fresh.experience.batch
        if again is not None:
            self._buffer.count_use(self._buffer.priorities(again.experience.batch))
        left = self._buffer.add_rows(table, self._buffer.priorities(batch), version=version)
        dropped = {f"replay/dropped/{rule}": float(count) for rule, count in left.items()}
        return dropped | {"replay/groups": float(len(self._buffer))} | _drawn_metrics(batch, again)

    def count_time(self, fresh: Collected, seconds: Mapping[str, float]) -> dict[str, float]:
        """Take note of the times of a step, which decide about the next with `samples.reuse=auto`; returns metrics."""
        if self.config.samples.reuse != "auto":
            return {}
        num_new = len(fresh.experience.batch.groups.unique())
        num_drawn = 0 if fresh.replayed is None else len(fresh.replayed.drawn.groups)
        learning = (seconds["step"] - seconds["wait"]) * num_new / (num_new + num_drawn)
        share = seconds["wait"] / (seconds["wait"] + learning)
        self._waiting_share = share if self._waiting_share is None else (self._waiting_share + share) / 2
        return {"perf/waiting_share": self._waiting_share}

    def state_dict(self) -> dict[str, Any]:
        return {} if self._waiting_share is None else {"waiting_share": self._waiting_share}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting_share = state.get("waiting_share")

    def save(self, folder: Path) -> None:
        """Write the buffer into a checkpoint once the record of its steps is on disk. Raises RLCompatError."""
        if self._record is not None:
            self._record.flush()
        if self._buffer is not None:
            self._buffer.save(folder)

    def load(self, folder: Path) -> None:
        """Continue with the buffer of a checkpoint. Raises DamagedCheckpointError."""
        if self._buffer is not None:
            self._buffer.load(folder)

    def close(self) -> None:
        """Finish the record."""
        if self._record is not None:
            self._record.close()


def corrected(config: RunConfig) -> RunConfig:
    """The settings with which drawn responses are trained on.

    The proximal policy is the present one, and the ratio to the policy that drew the responses is corrected for, as
    `off_policy` says, or else by truncated importance weights per token (decoupled PPO: Hilton et al. 2022,
    arXiv 2110.00641; Fu et al. 2025, "AReaL").
    """
    if applies_ratio(config.off_policy):
        return config
    return replace(
        config, off_policy=replace(config.off_policy, importance="token", truncate=STALE_TRUNCATE, band=None)
    )


def record_limits(config: RunConfig) -> RecordLimits:
    """What becomes of the files of the record of a run."""
    limit = config.samples.keep_gib
    return RecordLimits(max_bytes=None if limit is None else int(limit * GIB))


class StoredBytes(NamedTuple):
    """The most disk space of stored responses."""

    record: int
    buffer: int
    "in each checkpoint"


def stored_bytes(config: RunConfig, *, total_steps: int) -> StoredBytes:
    """The disk space of the responses of a run, all of them as long as they may be."""
    data, samples, algorithm = config.data, config.samples, config.algorithm
    row = ROW_BYTES + PROMPT_TOKEN_BYTES * data.max_prompt_length + RESPONSE_TOKEN_BYTES * data.max_response_length
    rounds = algorithm.max_sampling_rounds if algorithm.dynamic_sampling else 1
    step = STEP_BYTES + config.trainer.batch_size * algorithm.group_size * rounds * row
    record, limits = total_steps * step if samples.keep else 0, record_limits(config)
    if limits.max_bytes is not None:
        record = min(record, limits.max_bytes + int(limits.max_merged_bytes) + step)
    buffer = samples.replay.capacity * algorithm.group_size * row if samples.most_uses > 1 else 0
    return StoredBytes(record=record, buffer=buffer)


def reuse_notes(config: RunConfig) -> list[str]:
    """What the user should know about the reuse of a run."""
    reuse, notes = config.samples.most_uses, []
    if reuse > USEFUL:
        notes.append(f"`samples.reuse` is {reuse}, and more than {USEFUL} uses of a response seldom help and can harm")
    if reuse > 1 and corrected(config) is not config:
        notes.append(
            f"responses of earlier steps are trained on with `off_policy.importance=token` and "
            f"`off_policy.truncate={STALE_TRUNCATE:g}`"
        )
    return notes


def _outcomes(collected: Collected) -> Outcomes:
    greedy = collected.greedy_rewards
    if greedy is not None:
        position = collected.sequences.batch.groups.unique(return_inverse=True)[1]
        greedy = tuple(greedy[place] for place in position.tolist())
    costs = None if collected.costs is None else collected.costs.rewards
    return Outcomes(scores=collected.scores, costs=costs, greedy_rewards=greedy)


def _as_rollout(drawn: DrawnGroups, fresh: Scores) -> Rollout:
    """Drawn groups as if they had just been generated, weighted as they were drawn."""
    sequences, outcomes = drawn.responses()
    scores = replace(outcomes.scores, weights=fresh.weights)
    costs = outcomes.costs
    greedy = outcomes.greedy_rewards
    of_groups = None if greedy is None else dict(zip(sequences.batch.groups.tolist(), greedy, strict=True))
    return Rollout(
        sequences=sequences,
        scores=_done(scores),
        costs=None if costs is None else _done(replace(scores, rewards=tuple(costs))),
        greedy_rewards=None if of_groups is None else tuple(of_groups[group] for group in sorted(of_groups)),
        metrics={},
    )


def _done(scores: Scores) -> Future[Scores]:
    future: Future[Scores] = Future()
    future.set_result(scores)
    return future


def _drawn_metrics(fresh: Batch, again: Replayed | None) -> dict[str, float]:
    """The reuse factor of a step, and the staleness and the effective sample size of what it drew."""
    if again is None:
        return {"replay/reuse": 1.0, "replay/drawn": 0.0}
    batch, staleness = again.experience.batch, again.drawn.staleness
    assert batch.weights is not None
    weights = masked_mean(batch.weights.double(), mask=batch.response_mask, dim=1)[batch.response_mask.any(1)]
    return {
        "replay/reuse": 1 + len(staleness) / len(fresh.groups.unique()),
        "replay/drawn": float(len(staleness)),
        "replay/staleness/mean": float(np.mean(staleness)),
        "replay/staleness/max": float(np.max(staleness)),
        "replay/ess": effective_fraction(weights.numpy()) if len(weights) else 0.0,
    }
