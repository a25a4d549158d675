from __future__ import annotations

from pathlib import Path

import pytest

from rl_compat.tracking.build import open_tensorboard
from rl_compat.tracking.types import Destination, Warn


def destination(folder: Path, resume_step: int, *, warn: Warn) -> Destination:
    return Destination(folder=folder, project="p", experiment="e", resume_step=resume_step, warn=warn)


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def write(folder: Path, resume_step: int, steps: range, value: float) -> None:
    tracker = open_tensorboard(destination(folder, resume_step, warn=pytest.fail))
    assert tracker is not None
    for step in steps:
        tracker.log(step, {"critic/rewards/mean": value, "actor/lr": 1e-6})
    tracker.close()


def test_metrics_become_scalars(tmp_path):
    pytest.importorskip("tensorboard")

    write(tmp_path, 0, range(1, 4), 0.5)

    assert scalars(tmp_path, "critic/rewards/mean") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert scalars(tmp_path, "actor/lr")[0] == (1, pytest.approx(1e-6))


def test_resuming_hides_the_steps_that_are_done_again(tmp_path):
    pytest.importorskip("tensorboard")
    write(tmp_path, 0, range(1, 6), 0.25)

    write(tmp_path, 3, range(4, 7), 0.75)

    values = scalars(tmp_path, "critic/rewards/mean")
    assert values == [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75), (5, 0.75), (6, 0.75)]


def test_without_the_package_there_is_one_warning_and_no_tracker(tmp_path):
    warnings: list[str] = []

    tracker = open_tensorboard(destination(tmp_path, 0, warn=warnings.append), writer_module="a_package_nobody_has")

    assert tracker is None
    assert len(warnings) == 1
    assert "a_package_nobody_has" in warnings[0]
    assert "pip install tensorboard" in warnings[0]
