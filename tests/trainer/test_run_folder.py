"""What makes two configurations different runs, and what a run that begins again does with an earlier record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rl_compat.config.types import PlanConfig, PoolConfig, RunConfig
from rl_compat.trainer.run_folder import RunFolder, differences


def test_a_run_may_continue_on_other_devices_and_pools() -> None:
    before = replace(RunConfig(), pools={"score": PoolConfig(roles=("critic",))})
    now = replace(
        RunConfig(), plan=PlanConfig(num_devices=4), pools={"value": PoolConfig(roles=("critic",), gpus=(4,))}
    )

    assert differences(before, now) == differences(RunConfig(), before) == []


def test_a_run_may_not_continue_with_another_model() -> None:
    other = replace(RunConfig(), model=replace(RunConfig().model, path="another"))

    assert differences(RunConfig(), other) == [("model.path", RunConfig().model.path, "another")]


STEP = '{"step": 1, "training/global_step": 1}\n'


def filled(folder: Path, metrics: str) -> RunFolder:
    run = RunFolder(folder)
    run.record.mkdir(parents=True)
    (run.record / "step_00000001.parquet").touch()
    for file, text in ((run.metrics, metrics), (run.samples, '{"step": 1}\n'), (run.timeline, "{}\n")):
        file.write_text(text)
    return run


def test_what_a_first_step_left_that_did_not_end_is_not_counted_as_well(tmp_path: Path) -> None:
    run = filled(tmp_path, '{"step": 0, "val-core/accuracy": 1.0}\n')

    assert run.start_again() == []

    assert not run.samples.exists() and not run.timeline.exists()


def test_the_record_of_steps_without_a_checkpoint_is_kept_whole_whenever_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, renamed, rename = filled(tmp_path, STEP), [], Path.rename

    def ends_at_the_third(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 3:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", ends_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            run.start_again()
    (note,) = run.start_again()

    assert "metrics.1.jsonl" in note
    kept = {"metrics.1.jsonl", "samples.1.jsonl", "timeline.1.jsonl", "replay.1"}
    assert {path.name for path in tmp_path.iterdir()} == kept
