"""The timeline of a step: lanes, idle shares, trace and picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from rl_compat.tracking.timeline import Span
from rl_compat.tracking.timeline_picture import COLORS, StepTimeline

SPANS = [
    Span(name="step", start=100.0, end=110.0, step=3, thread="MainThread"),
    Span(name="update_actor", start=106.0, end=109.0, step=3, thread="MainThread"),
    Span(name="gen", start=98.0, end=104.0, step=4, thread="rollout", rows=8),
    Span(name="RolloutWorker.generate", start=98.0, end=104.0, step=3, pool="gen", rank=1, rows=4, version=2),
    Span(name="RolloutWorker.generate", start=98.0, end=102.0, step=3, pool="gen", rank=0, rows=4, version=2),
    Span(name="PolicyWorker.update", start=106.0, end=109.0, step=3, pool="main", rank=0, version=3),
    Span(name="PolicyWorker.logprobs", start=105.0, end=107.0, step=3, pool="main", rank=0, rows=8, version=2),
    Span(name="gen", start=90.0, end=97.0, step=3, thread="rollout", rows=8),
    Span(name="step", start=110.0, end=121.0, step=4, thread="MainThread"),
]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def timeline() -> StepTimeline:
    found = StepTimeline.of(SPANS, 3)
    assert found is not None
    return found


def test_a_step_has_what_ran_in_its_time_whatever_step_it_was_for(timeline: StepTimeline) -> None:
    assert timeline.seconds == 10.0
    assert list(timeline.lanes) == ["MainThread", "rollout", "gen/0", "gen/1", "main/0"]
    (generated,) = timeline.lanes["rollout"]
    assert (generated.start, generated.end, generated.step) == (100.0, 104.0, 4)
    assert StepTimeline.of(SPANS, 7) is None


def test_a_device_is_idle_when_no_call_runs_on_it(timeline: StepTimeline) -> None:
    assert timeline.idle_shares() == pytest.approx({"gen/0": 0.8, "gen/1": 0.6, "main/0": 0.6}), "overlaps count once"


def test_a_trace_has_a_process_for_each_pool_and_times_in_microseconds(timeline: StepTimeline) -> None:
    events = timeline.chrome_trace()["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["phases", "pool gen", "pool main"]
    (update,) = [event for event in events if event["name"] == "PolicyWorker.update"]
    assert (names[update["pid"]], update["ph"], update["cat"]) == ("pool main", "X", "update")
    assert (update["ts"], update["dur"]) == pytest.approx((6e6, 3e6))
    assert update["args"] == {"step": 3, "policy_version": 3}
    assert len({(event["pid"], event["tid"]) for event in events}) == 5


def test_a_picture_shows_each_span_once_in_the_color_of_its_kind(timeline: StepTimeline) -> None:
    root = ElementTree.fromstring(timeline.svg())
    bars = {group.find(f"{SVG}title").text: group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")}  # type: ignore[union-attr]
    assert len(bars) == 6
    update = bars["PolicyWorker.update, 3 s, version 3, of step 3"]
    assert update is not None
    assert update.get("fill") == COLORS["update"]
    generated = bars["RolloutWorker.generate, 4 s, 4 rows, version 2, of step 3"]
    assert generated is not None
    assert generated.get("fill") == COLORS["generate"]
    assert float(generated.get("width", 0)) / float(update.get("width", 1)) == pytest.approx(4 / 3, rel=0.01)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "gen/0, idle 80%" in texts
    assert {"update", "generate", "logprobs"} < set(texts)
    assert "prefers-color-scheme: dark" in timeline.svg()


def test_spans_that_overlap_in_a_lane_stand_below_each_other(timeline: StepTimeline) -> None:
    root = ElementTree.fromstring(timeline.svg())
    tops = {}
    for group in root.iter(f"{SVG}g"):
        title, bar = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert bar is not None
        tops[title.text] = float(bar.get("y", 0))
    names = "PolicyWorker.logprobs, 2 s, 8 rows, version 2, of step 3", "PolicyWorker.update, 3 s, version 3, of step 3"
    assert tops[names[1]] - tops[names[0]] == 22.0
