"""Runs that train on responses more than once, and runs that record all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import GRPO_LORA, PPO, records, settings, steps, train
from safetensors.torch import load_file

from rl_compat.config.load import load_config
from rl_compat.config.types import RunConfig, SamplesConfig
from rl_compat.replay.buffer import STATE_FILE
from rl_compat.replay.record import drawn_groups, read_steps
from rl_compat.replay.report import summarize
from rl_compat.trainer.online import reuse
from rl_compat.trainer.online.reuse import reuse_notes, stored_bytes

GRPO = GRPO_LORA | {"model.lora_dropout": 0.0, "samples.keep": True}
REUSE = {"samples.reuse": 3, "samples.replay.draws": 1, "samples.replay.priority": "advantage"}


def weights(run: Path, step: int) -> dict[str, Any]:
    return load_file(run / "checkpoints" / f"step_{step}" / "actor" / "weights.safetensors")


def assert_same_weights(run: Path, other: Path, *, step: int) -> None:
    mine, others = weights(run, step), weights(other, step)
    assert all(mine[name].equal(others[name]) for name in others)


def record(run: Path) -> dict[int, tuple[list[int], list[int]]]:
    """The groups of each step, and those it drew."""
    return {step: (table["group"].to_pylist(), drawn_groups(table)) for step, table in read_steps(run / "replay")}


@pytest.fixture(scope="module")
def whole(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reuse") / "run"
    train(settings(llama_folder, folder, GRPO, REUSE, num_steps=6, keep_checkpoints=6))
    return folder


def test_a_record_changes_no_number(llama_folder: Path, tmp_path: Path) -> None:
    """Nor does its limit, which here is less than a step."""
    for name, samples in (("kept", {"samples.keep_gib": 1e-6}), ("not", {"samples.keep": False})):
        train(settings(llama_folder, tmp_path / name, GRPO, samples, num_steps=2))

    kept, without = tmp_path / "kept", tmp_path / "not"
    assert steps(kept) == steps(without)
    assert_same_weights(kept, without, step=2)
    assert (kept / "samples.jsonl").read_text() == ""
    assert (list(record(kept)), (without / "replay").exists()) == ([2], False)


def test_the_disk_space_that_is_checked_before_a_run_is_enough_for_its_record(whole: Path) -> None:
    config = load_config(whole / "run.toml", []).config
    size = sum(path.stat().st_size for path in (whole / "replay").iterdir())

    assert size <= stored_bytes(config, total_steps=6).record
    assert (whole / "checkpoints" / "step_6" / STATE_FILE).stat().st_size <= stored_bytes(config, total_steps=6).buffer
    limited = replace(config, samples=replace(config.samples, keep_gib=1.0))
    assert stored_bytes(limited, total_steps=10**9).record < 1.2 * 1024**3
    assert stored_bytes(RunConfig(), total_steps=6) == (0, 0)


def test_more_uses_than_are_useful_are_warned_about() -> None:
    def notes(reuse: int) -> str:
        return " ".join(reuse_notes(replace(RunConfig(), samples=SamplesConfig(reuse=reuse))))

    assert "`samples.reuse` is 4" in notes(4)
    assert "`samples.reuse`" not in notes(3) and notes(1) == ""


def test_no_response_is_trained_on_more_often_than_allowed(whole: Path) -> None:
    found = record(whole)
    uses: Counter[int] = Counter()
    for step, (groups, drawn) in found.items():
        assert len(groups) == 4 * 4
        assert len(set(drawn)) == len(drawn) <= 4
        assert steps(whole)[step]["replay/drawn"] == len(drawn)
        uses.update([*set(groups), *drawn])

    assert list(found) == [1, 2, 3, 4, 5, 6]
    assert found[1][1] == []
    assert max(uses.values()) <= 3
    assert sum(uses.values()) > 6 * 4


def test_drawn_responses_are_measured(whole: Path) -> None:
    of_step = steps(whole)

    assert "replay/ess" not in of_step[1]
    for step in range(2, 7):
        assert 1 <= of_step[step]["replay/staleness/mean"] <= of_step[step]["replay/staleness/max"] <= 4
        assert 0 < of_step[step]["replay/ess"] <= 1
        assert of_step[step]["replay/reuse"] == 1 + of_step[step]["replay/drawn"] / 4
    assert of_step[2]["critic/score/mean"] != of_step[1]["critic/score/mean"]


@pytest.mark.parametrize(
    "changes",
    [
        PPO | {"samples.replay.priority": "td_error"},
        PPO | {"off_policy.vtrace.enabled": True, "samples.replay.priority": "age"},
        GRPO | {"samples.replay.priority": "kl", "algorithm.policy_loss": "clip_cov"},
        GRPO | {"off_policy.bypass": True},
        GRPO | {"trainer.flow": "async"},
        {"algorithm.name": "remax"},
    ],
)
def test_every_kind_of_algorithm_trains_on_drawn_responses(
    llama_folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    train(settings(llama_folder, tmp_path / "run", changes, {"samples.reuse": 2}, num_steps=3))

    of_step = steps(tmp_path / "run")
    assert [of_step[step]["replay/drawn"] > 0 for step in (1, 2, 3)] == [False, True, True]
    assert all(of_step[step]["actor/grad_norm"] > 0 for step in (1, 2, 3))


def test_an_earlier_checkpoint_brings_back_its_buffer(whole: Path, llama_folder: Path, tmp_path: Path) -> None:
    """Steps after a checkpoint are trained again as they were, with the same draws."""
    resume = whole / "checkpoints" / "step_3"
    arguments = settings(llama_folder, tmp_path / "run", GRPO, REUSE, num_steps=6, keep_checkpoints=6, resume=resume)

    train(arguments)

    assert {step: record(tmp_path / "run")[step] for step in (4, 5, 6)} == {
        step: record(whole)[step] for step in (4, 5, 6)
    }
    assert_same_weights(tmp_path / "run", whole, step=6)


def test_prompts_that_dynamic_sampling_replaced_are_recorded_and_not_drawn(llama_folder: Path, tmp_path: Path) -> None:
    """Responses have one token, so that some groups of two have equal rewards."""
    changes = GRPO | {"algorithm.group_size": 2, "algorithm.dynamic_sampling": True, "data.max_response_length": 1}
    train(settings(llama_folder, tmp_path / "run", changes, {"samples.reuse": 2}, num_steps=3))

    filtered: set[int] = set()
    drawn: set[int] = set()
    for step, table in read_steps(tmp_path / "run" / "replay"):
        trained = table.filter(table["trained"])["group"].unique().to_pylist()
        measured = steps(tmp_path / "run")[step]
        assert len(trained) == measured["training/filter_groups/kept_prompts"]
        assert len(table["group"].unique()) == measured["training/filter_groups/sampled_prompts"]
        filtered |= {*table["group"].to_pylist()} - {*trained}
        drawn |= {*drawn_groups(table)}
    assert filtered and drawn and not filtered & drawn
    assert summarize(tmp_path / "run" / "replay").groups_by_uses[0] == len(filtered)


def test_auto_uses_responses_twice_while_steps_wait_for_generation(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"samples.keep": False, "trainer.save_every": 0, "data.val_files": ""}
    train(settings(llama_folder, tmp_path / "twice", GRPO, few, {"samples.reuse": 2}, num_steps=3))
    for name, bottleneck in (("waits", -1.0), ("does not", 1.0)):
        monkeypatch.setattr(reuse, "BOTTLENECK", bottleneck)
        train(settings(llama_folder, tmp_path / name, GRPO, few, {"samples.reuse": "auto"}, num_steps=3))
    assert steps(tmp_path / "waits") == steps(tmp_path / "twice")
    assert [step["replay/drawn"] for step in steps(tmp_path / "does not").values()] == [0.0, 0.0, 0.0]
    assert all(0 < record["perf/waiting_share"] < 1 for record in records(tmp_path / "waits"))
