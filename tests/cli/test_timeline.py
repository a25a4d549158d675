"""`rlc timeline` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_compat.cli.app import main
from rl_compat.tracking.timeline import Span, append_spans


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (1, 2):
        start = 10.0 * step
        spans = [
            Span(name="step", start=start, end=start + 8, step=step, thread="MainThread"),
            Span(name="gen", start=start, end=start + 2, step=step, thread="MainThread", rows=4),
            Span(name="RolloutWorker.generate", start=start, end=start + 2, step=step, pool="main", rank=0, version=1),
        ]
        append_spans(tmp_path / "timeline.jsonl", spans)
    return tmp_path


def test_the_newest_step_is_shown_with_the_idle_share_of_each_device(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", str(run)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("step 2: 8.000 s\n")
    assert "75.0%" in text
    assert main(["timeline", str(run), "--step", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"step": 1, "seconds": 8.0, "idle_share": {"main/0": 0.75}}


def test_a_picture_and_a_trace_are_written(run: Path, tmp_path: Path) -> None:
    picture, trace = tmp_path / "step.svg", tmp_path / "step.json"
    assert main(["timeline", str(run), "-o", str(picture)]) == 0
    assert main(["timeline", str(run), "-o", str(trace)]) == 0
    assert picture.read_text().startswith("<svg ")
    assert [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"] == [
        "gen",
        "RolloutWorker.generate",
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["{run}", "--step", "3"], "steps 1 to 2"),
        (["{run}/nothing"], "nothing/timeline.jsonl"),
        (["{run}", "-o", "step.png"], "step.png"),
        (["{run}", "-o", "{run}/no/step.svg"], "no/step.svg"),
        (["{run}", "--step", "one"], "--step"),
    ],
)
def test_wrong_input_is_a_usage_error(
    run: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", *(text.format(run=run) for text in arguments)]) == 2
    assert named in capsys.readouterr().err
