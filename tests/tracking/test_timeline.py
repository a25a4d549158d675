"""What ran when, as JSON lines."""

from __future__ import annotations

from pathlib import Path

from rl_compat.tracking.timeline import Span, append_spans, read_spans

PHASE = Span(name="gen", start=1796133938.410431, end=1796133938.588621, step=1, thread="MainThread", rows=128)
CALL = Span(name="RolloutWorker.generate", start=3.0, end=5.5, step=1, pool="gen", rank=2, rows=64, version=7)


def test_spans_read_back_as_they_were_to_ten_microseconds(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    append_spans(file, [PHASE])
    append_spans(file, [CALL])
    phase, call = read_spans(file)
    assert call == CALL
    assert abs(phase.start - PHASE.start) <= 1e-5
    assert phase.lane == "MainThread"
    assert call.lane == "gen/2"


def test_an_incomplete_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    file.write_text(CALL.line() + "\n" + PHASE.line()[:40])
    assert list(read_spans(file)) == [CALL]


def test_a_span_takes_at_most_200_bytes() -> None:
    longest = Span(
        name="PolicyWorker.compute_token_outputs",
        start=1796133938.41043,
        end=1796133938.58862,
        step=100_000,
        pool="generation_on_a100",
        rank=1023,
        rows=65_536,
        version=100_000,
    )
    assert len(longest.line()) < 200
