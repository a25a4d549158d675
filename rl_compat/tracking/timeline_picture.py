"""The timeline of a step: as a Chrome trace, as a picture in SVG, and the idle share of each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from rl_compat.tracking.timeline import STEP, Span

COLORS = {
    "generate": "#3b82f6",
    "reward": "#10b981",
    "score": "#f59e0b",
    "update": "#a855f7",
    "state": "#94a3b8",
    "other": "#f472b6",
}
"by kind, readable on a light and on a dark page"
KINDS = {
    "update": ("update",),
    "generate": ("gen", "testing"),
    "reward": ("reward", "cost", "RewardWorker"),
    "score": ("log", "ref", "value", "output", "adv", "score"),
    "state": ("save", "load", "keep", "mark", "put_back", "publish", "handover"),
}
"beginnings or parts of names, the first match counts"
WIDTH, LABELS, ROW, GAP, MARGIN = 1200, 190, 22, 8, 44
"pixels"
CHARACTER = 6.2
"pixels, in bars"
PAGE, BACK, TICK, INK, ON_BAR = "#ffffff", "#f1f5f9", "#cbd5e1", "#1e293b", "#0b1220"
STYLE = """@media (prefers-color-scheme: dark) {
  text { fill: #e2e8f0 } .bar { fill: #0b1220 }
  .page { fill: #0f172a } .lane { fill: #1e293b } .tick { stroke: #475569 }
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """What ran during a step, whatever step it was for."""

    step: int
    start: float
    end: float
    spans: tuple[Span, ...]
    "cut at the ends of the step, without that of the step itself"

    @classmethod
    def of(cls, spans: Sequence[Span], step: int) -> StepTimeline | None:
        """The timeline of a step; None if nothing of it is recorded."""
        own = [span for span in spans if span.step == step]
        whole = [span for span in own if span.name == STEP] or own
        if not whole:
            return None
        start, end = min(span.start for span in whole), max(span.end for span in whole)
        inside = [span for span in spans if span.name != STEP and span.start < end and span.end > start]
        cut = [replace(span, start=max(start, span.start), end=min(end, span.end)) for span in inside]
        return cls(step=step, start=start, end=end, spans=tuple(sorted(cut, key=lambda span: span.start)))

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def lanes(self) -> Mapping[str, list[Span]]:
        """The spans of each thread, then those of each device."""
        found: dict[str, list[Span]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda span: (span.pool or "", span.rank or 0, span.thread or "")):
            found[span.lane].append(span)
        return found

    def idle_shares(self) -> dict[str, float]:
        """Share of the step in which a device, or the host with its reward functions, runs no call."""
        shares = {}
        for lane, spans in self.lanes.items():
            if spans[0].pool is None:
                continue
            busy, until = 0.0, self.start
            for span in sorted(spans, key=lambda span: span.start):
                busy += max(0.0, span.end - max(until, span.start))
                until = max(until, span.end)
            shares[lane] = 1.0 - busy / self.seconds if self.seconds else 0.0
        return shares

    def chrome_trace(self) -> dict[str, Any]:
        """For `chrome://tracing` and Perfetto: a process for the threads and for each pool, with a track per lane."""
        processes: dict[str, int] = {}
        events: list[dict[str, Any]] = []
        for number, (lane, spans) in enumerate(self.lanes.items(), start=1):
            name = f"pool {spans[0].pool}" if spans[0].pool is not None else "phases"
            process = processes.setdefault(name, len(processes) + 1)
            place = {"pid": process, "tid": number}
            for kind, label in (("process_name", name), ("thread_name", lane)):
                events.append({"name": kind, "ph": "M", "args": {"name": label}} | place)
            for span in spans:
                known = {"step": span.step, "rows": span.rows, "policy_version": span.version}
                times = {"ts": 1e6 * (span.start - self.start), "dur": 1e6 * span.seconds}
                facts = {key: value for key, value in known.items() if value is not None}
                events.append({"name": span.name, "cat": _kind(span), "ph": "X", "args": facts} | times | place)
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def svg(self) -> str:
        """A picture for a light or a dark page, with details in tooltips."""
        idle, right = self.idle_shares(), WIDTH - MARGIN
        scale = (right - LABELS) / max(self.seconds, 1e-9)
        backs, bars, words = [], [], [_text(GAP, 20, f"step {self.step}: {_time(self.seconds)}")]
        top = MARGIN + GAP
        for lane, spans in self.lanes.items():
            rows = _rows(spans)
            backs.append(_rect(LABELS, top, right - LABELS, len(rows) * ROW, BACK, "lane"))
            share = f", idle {idle[lane]:.0%}" if lane in idle else ""
            words.append(_text(LABELS - GAP, top + 15, f"{lane}{share}", anchor="end"))
            for number, row in enumerate(rows):
                bars += [self._bar(span, top + number * ROW, scale) for span in row]
            top += len(rows) * ROW + GAP
        for number in range(6):
            x = LABELS + number * (right - LABELS) / 5
            backs.append(f'<path class="tick" stroke="{TICK}" d="M{x:.1f} {MARGIN}V{top}"/>')
            words.append(_text(x, MARGIN - 6, _time(number * self.seconds / 5, unit=self.seconds), anchor="middle"))
        for number, (kind, color) in enumerate(COLORS.items()):
            bars.append(_rect(LABELS + 110 * number, top + GAP, 14, 14, color))
            words.append(_text(LABELS + 110 * number + 20, top + GAP + 12, kind))
        size = f'width="{WIDTH}" height="{top + MARGIN}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + MARGIN}" {size}>'
        page = _rect(0, 0, WIDTH, top + MARGIN, PAGE, "page")
        return "\n".join([head, f"<style>{STYLE}</style>", page, *backs, *bars, *words, "</svg>\n"])

    def _bar(self, span: Span, top: int, scale: float) -> str:
        x, width = LABELS + scale * (span.start - self.start), max(1.0, scale * span.seconds)
        facts = [span.name, _time(span.seconds)]
        facts += [f"{span.rows} rows"] if span.rows is not None else []
        facts += [f"version {span.version}"] if span.version is not None else []
        facts += [f"of step {span.step}"] if span.step is not None else []
        name = span.name.rpartition(".")[2]
        shown = name if len(name) * CHARACTER + GAP <= width else ""
        bar = _rect(x, top + 2, width, ROW - 4, COLORS[_kind(span)])
        label = _text(x + 4, top + 15, shown, of_bar=True) if shown else ""
        return f"<g><title>{escape(', '.join(facts))}</title>{bar}{label}</g>"


def _kind(span: Span) -> str:
    """The kind of a phase or call, by its name."""
    return next((kind for kind, parts in KINDS.items() if any(part in span.name for part in parts)), "other")


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans of a lane in as few rows as overlap."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        free = next((row for row in rows if row[-1].end <= span.start), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def _time(seconds: float, *, unit: float | None = None) -> str:
    """Text in seconds or milliseconds, as fits the seconds or those of `unit`."""
    in_seconds = (seconds if unit is None else unit) >= 1
    return f"{seconds:.3g} s" if in_seconds else f"{1000 * seconds:.3g} ms"


def _rect(x: float, y: float, width: float, height: float, color: str, name: str = "") -> str:
    of_class = f'class="{name}" ' if name else 'rx="3" '
    return f'<rect {of_class}x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", of_bar: bool = False) -> str:
    look = f'class="bar" font-size="11" fill="{ON_BAR}"' if of_bar else f'font-size="12" fill="{INK}"'
    font = 'font-family="ui-sans-serif, system-ui, sans-serif"'
    return f'<text {look} {font} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
