from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from rl_compat.errors import ConfigError
from rl_compat.tracking.build import Trackers, build_trackers
from rl_compat.tracking.jsonl import JsonlTracker
from rl_compat.tracking.types import Destination


class MemoryTracker:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


class FragileTracker(MemoryTracker):
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        if step == 2:
            raise ConnectionError("gone")

    def close(self) -> None:
        raise ConnectionError("still gone")


def build(names: list[str], folder: Path, *, resume_step: int = 0, warn=pytest.fail) -> Trackers:
    return build_trackers(
        names, Destination(folder=folder, project="p", experiment="e", resume_step=resume_step, warn=warn)
    )


def test_metrics_go_to_every_tracker_named(tmp_path, capsys):
    pytest.importorskip("tensorboard")

    with closing(build(["console", "jsonl", "tensorboard"], tmp_path / "run")) as trackers:
        trackers.log(1, {"critic/score/mean": 0.5})

    assert capsys.readouterr().out == "step:1 - critic/score/mean:0.5\n"
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text()) == {"step": 1, "critic/score/mean": 0.5}
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_a_name_given_twice_is_one_tracker_and_no_name_is_none(tmp_path):
    assert len(build(["console", "console"], tmp_path).trackers) == 1
    assert build([], tmp_path).trackers == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [("tensorbord", "did you mean `tensorboard`"), ("mlflow", "`console`, `jsonl`, `tensorboard`, `wandb`")],
)
def test_an_unknown_name_is_refused_before_anything_is_written(tmp_path, name, hint):
    with pytest.raises(ConfigError, match=f"`{name}`") as caught:
        build(["jsonl", name], tmp_path / "run")

    assert hint in str(caught.value.hint)
    assert not (tmp_path / "run").exists()


def test_resuming_continues_the_json_lines_after_the_step(tmp_path):
    with closing(build(["jsonl"], tmp_path)) as trackers:
        for step in (1, 2, 3):
            trackers.log(step, {"a": 1.0})

    with closing(build(["jsonl"], tmp_path, resume_step=2)) as trackers:
        trackers.log(3, {"a": 2.0})

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["a"]) for line in lines] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_wandb_that_is_switched_off_leaves_local_files_and_one_warning(tmp_path, monkeypatch):
    """A-UX-01: also where the package is not installed."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    warnings: list[str] = []

    with closing(build(["wandb"], tmp_path, warn=warnings.append)) as trackers:
        trackers.log(1, {"a": 1.0})

    assert len(warnings) == 1
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": 1.0}\n'


def test_warnings_go_to_stderr_unless_somebody_else_takes_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")

    build_trackers(["wandb"], Destination(folder=tmp_path, project="p", experiment="e", resume_step=0)).close()

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("warning: W&B")
    assert err.count("\n") == 1


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on():
    fragile, steady, warnings = FragileTracker(), MemoryTracker(), []
    trackers = Trackers([fragile, steady], warn=warnings.append)

    for step in (1, 2, 3):
        trackers.log(step, {})

    assert fragile.steps == [1, 2]
    assert steady.steps == [1, 2, 3]
    assert len(warnings) == 1
    assert "Fragile" in warnings[0]


def test_json_lines_that_cannot_be_written_stop_the_run(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.close()

    with pytest.raises(ValueError, match="closed"):
        Trackers([tracker], warn=pytest.fail).log(1, {})


def test_closing_closes_all_of_them_and_may_happen_twice():
    fragile, steady, warnings = FragileTracker(), MemoryTracker(), []
    trackers = Trackers([fragile, steady], warn=warnings.append)

    trackers.close()
    trackers.close()

    assert steady.closed
    assert len(warnings) == 1
