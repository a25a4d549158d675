"""The buffer holds whole groups within its limits, and a checkpoint brings all of it back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from fakes.responses import groups, many_groups, response, rows
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rl_compat.batch import Sequences
from rl_compat.config.types import ReplayConfig, SamplesConfig
from rl_compat.errors import ConfigError, DamagedCheckpointError
from rl_compat.replay.buffer import STATE_FILE, ReplayBuffer
from rl_compat.replay.levels import Level, ReplayRule
from rl_compat.rewards.types import Scores


def buffer(*, hot: int = 2, reuse: int = 3, **settings: Any) -> ReplayBuffer:
    replay = ReplayConfig(**{"capacity": 4, "priority": "advantage", **settings})
    return ReplayBuffer(SamplesConfig(reuse=reuse, replay=replay), hot=hot)


def held(found: ReplayBuffer) -> dict[int, Level]:
    return {int(entry["group"]): Level(entry["level"]) for entry in found.entries}


def add(found: ReplayBuffer, priorities: dict[int, float], *, version: int = 0) -> dict[str, int]:
    """The number of groups that left, by the rules by which some did."""
    left = found.add_rows(groups(*priorities, version=version), priorities, version=version)
    return {name: count for name, count in left.items() if count}


def test_the_newest_groups_are_hot_and_the_best_of_the_others_warm() -> None:
    found = buffer()

    add(found, {1: 0.5, 2: 0.1})
    assert held(found) == {1: Level.HOT, 2: Level.HOT}
    add(found, {3: 0.9, 4: 0.2})
    assert held(found) == {1: Level.WARM, 2: Level.WARM, 3: Level.HOT, 4: Level.HOT}
    left = add(found, {5: 0.01, 6: 0.02})

    assert held(found) == {1: Level.WARM, 3: Level.WARM, 5: Level.HOT, 6: Level.HOT}
    assert left == {"displaced": 2}


def test_a_group_is_drawn_whole_with_its_rows() -> None:
    found = buffer()
    add(found, {1: 1.0, 2: 1.0}, version=3)

    drawn = found.draw(5, version=5, seed=0)

    assert drawn is not None
    assert drawn.groups.tolist() == [1, 2]
    assert drawn.table["response_ids"].to_pylist() == [[1, 0], [1, 1], [2, 0], [2, 1]]
    assert drawn.staleness.tolist() == [2, 2]
    assert drawn.responses()[0].batch.weights.tolist() == [[1, 1]] * 4
    assert found.draw(0, version=5, seed=0) is None


def test_a_group_leaves_after_its_last_use() -> None:
    found = buffer(reuse=2)
    add(found, {1: 1.0, 2: 1.0})

    found.count_use({1: 0.5})

    assert add(found, {3: 1.0}) == {"used_up": 1}
    assert held(found) == {2: Level.HOT, 3: Level.HOT}


def test_a_stale_group_is_neither_drawn_nor_kept() -> None:
    found = buffer(max_staleness=1)
    add(found, {1: 1.0}, version=0)
    add(found, {2: 1.0}, version=1)

    drawn = found.draw(5, version=2, seed=0)
    assert drawn is not None and drawn.groups.tolist() == [2]

    assert add(found, {3: 1.0}, version=2) == {"too_old": 1}
    assert set(held(found)) == {2, 3}


def test_the_age_of_a_group_is_that_of_its_oldest_token() -> None:
    found = buffer()
    mixed = response(1, (5, 6), version=4)
    found.add_rows(rows(response(1, (7,), version=2), mixed), {1: 1.0}, version=4)

    assert found.entries["oldest"].tolist() == [2]


def test_groups_without_a_priority_are_not_kept() -> None:
    found = buffer()

    assert add(found, {1: 0.0, 2: float("nan"), 3: 1e-9}) == {"no_priority": 2}
    assert set(held(found)) == {3}


def test_the_same_responses_to_the_same_prompt_count_once() -> None:
    found = buffer(reuse=4, hot=4)
    found.add_rows(rows(response(1, (5, 6), row=3), response(1, (8,), row=3)), {1: 1.0}, version=0)
    found.add_rows(rows(response(2, (8,), row=3), response(2, (5, 6), row=3)), {2: 1.0}, version=1)
    found.add_rows(rows(response(3, (8,), row=4), response(3, (5, 6), row=4)), {3: 1.0}, version=1)
    found.add_rows(rows(response(4, (8, 5), row=3), response(4, (6,), row=3)), {4: 1.0}, version=1)

    assert {int(entry["group"]): int(entry["uses"]) for entry in found.entries} == {2: 2, 3: 1, 4: 1}
    found.add_rows(
        rows(response(7, (8,), row=4), response(8, (1,), row=5), response(9, (1,), row=5)),
        {7: 1.0, 8: 1.0, 9: 1.0},
        version=1,
    )
    assert {int(entry["group"]): int(entry["uses"]) for entry in found.entries}[9] == 2


def test_draws_by_age_prefer_new_groups() -> None:
    found = buffer(priority="age", alpha=1.0, capacity=40, hot=40, max_staleness=9)
    add(found, dict.fromkeys(range(20), 1.0), version=0)
    add(found, dict.fromkeys(range(20, 40), 1.0), version=9)

    chosen = [found.draw(10, version=9, seed=seed) for seed in range(50)]

    new = np.mean([(drawn.groups >= 20).mean() for drawn in chosen if drawn is not None])
    assert new == pytest.approx(1 / (1 + 1 / 10), abs=0.03)


def test_the_same_seed_draws_the_same_groups() -> None:
    found = buffer(capacity=30, hot=30)
    add(found, {number: 1.0 + number for number in range(30)})

    first, again, other = (found.draw(5, version=0, seed=seed) for seed in (1, 1, 2))

    assert first is not None and again is not None and other is not None
    assert first.groups.tolist() == again.groups.tolist() != other.groups.tolist()


def test_responses_and_their_rewards_come_back_as_they_were() -> None:
    trajectories = [response(3, (5, 6), version=1), response(3, (7,), version=1)]
    sequences = Sequences.from_trajectories(trajectories, ["five six", "seven"])
    scores = Scores(rewards=(0.5, None), correct=(True, None), components={"length": (2.0, None)})
    found = buffer()

    found.add(sequences, scores, {3: 2.0}, version=1)
    drawn = found.draw(1, version=1, seed=0)

    assert drawn is not None
    again, outcomes = drawn.responses()
    assert again.texts == sequences.texts
    assert again.batch.response_ids.equal(sequences.batch.response_ids)
    assert again.batch.rollout_logprobs.equal(sequences.batch.rollout_logprobs)
    assert again.batch.weights.tolist() == [[1, 1], [1, 0]]
    assert (outcomes.scores.rewards, outcomes.scores.components) == (scores.rewards, scores.components)


def test_rules_are_data_that_a_program_may_add_to() -> None:
    wrong = ReplayRule(name="wrong", matches=lambda entries, bounds: entries["priority"] < 0.1)
    found = buffer()
    found.rules += (wrong,)

    assert add(found, {1: 0.5, 2: 0.05}) == {"wrong": 1}
    assert set(held(found)) == {1}


def test_groups_that_do_not_fit_the_call_are_named() -> None:
    found = buffer()
    with pytest.raises(ConfigError, match="group 2"):
        found.add_rows(groups(1, 2), {1: 1.0}, version=0)
    with pytest.raises(ConfigError, match="group 7"):
        found.count_use({7: 1.0})
    with pytest.raises(ConfigError, match="`count` is -1"):
        found.draw(-1, version=0, seed=0)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(b"PAR1 and no more")

    with pytest.raises(DamagedCheckpointError, match=STATE_FILE):
        buffer().load(tmp_path)


@pytest.mark.parametrize(
    ("total", "capacity"), [(40_000, 4_000), pytest.param(1_000_000, 1_000_000, marks=pytest.mark.slow)]
)
def test_memory_follows_the_capacity_and_not_the_number_of_groups(total: int, capacity: int) -> None:
    """Old groups leave bit by bit, so that each of their tables keeps a few."""
    step, before = total // 100, pyarrow.total_allocated_bytes()
    found = buffer(capacity=capacity, hot=step)
    one = many_groups(0, step).nbytes / step
    generator = np.random.default_rng(0)
    for first in range(0, total, step):
        priority = dict(zip(range(first, first + step), generator.random(step) + 0.1, strict=True))
        found.add_rows(many_groups(first, step), priority, version=0)
        assert len(found) == min(capacity, first + step)
        assert pyarrow.total_allocated_bytes() - before < 2.2 * one * (len(found) + step)

    assert found.entries.nbytes < 100 * (capacity + step)
    drawn = found.draw(100, version=0, seed=0)
    assert drawn is not None and len(drawn.table) == 100
    best = found.entries["priority"][found.entries["level"] == Level.WARM]
    assert best.min(initial=1.1) >= (1 - capacity / total) or capacity == total


class Buffers(RuleBasedStateMachine):
    """Steps of any size, with draws, and restarts at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.found = buffer(capacity=6, hot=3, max_staleness=3)
        self.version = 0
        self.next_group = 0
        self.uses: dict[int, int] = {}

    @rule(
        new=some.lists(some.floats(0, 10), min_size=1, max_size=5), count=some.integers(0, 5), seed=some.integers(0, 99)
    )
    def step(self, new: list[float], count: int, seed: int) -> None:
        drawn = self.found.draw(count, version=self.version, seed=seed)
        if drawn is not None:
            assert len(drawn.groups) <= count
            assert drawn.staleness.max() <= 3
            self.found.count_use(dict.fromkeys(drawn.groups.tolist(), 1.0))
            for group in drawn.groups.tolist():
                self.uses[group] += 1
        numbers = range(self.next_group, self.next_group + len(new))
        add(self.found, dict(zip(numbers, new, strict=True)), version=self.version)
        self.uses |= dict.fromkeys(numbers, 1)
        self.next_group += len(new)
        self.version += 1

    @rule()
    def restart(self) -> None:
        before, again = self.found, buffer(capacity=6, hot=3, max_staleness=3)
        with tempfile.TemporaryDirectory() as folder:
            before.save(Path(folder))
            again.load(Path(folder))
        assert held(again) == held(before)
        one, other = (item.draw(4, version=self.version, seed=3) for item in (before, again))
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.table.equals(other.table)
            assert one.weights.tolist() == other.weights.tolist()
        self.found = again

    @invariant()
    def holds(self) -> None:
        assert len(self.found) <= 6
        assert list(held(self.found).values()).count(Level.HOT) <= 3
        for entry in self.found.entries:
            assert int(entry["uses"]) == self.uses[int(entry["group"])] < 3
        assert (
            self.found._rows(self.found.entries)["group"].to_pylist()
            == [int(entry["group"]) for entry in self.found.entries for _ in range(2)]
            if len(self.found)
            else True
        )


Buffers.TestCase.settings = hypothesis_settings(max_examples=25, stateful_step_count=20, deadline=None)
TestBuffers = Buffers.TestCase
