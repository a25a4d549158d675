"""Summarize the measurements of all sides as medians, quartiles and ratios, and format them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAME_WORK = ("prompt_tokens", "response_tokens")
OURS = "rl_compat"

Round = Mapping[str, Mapping[str, Any]]
"what each side measured, by its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
        return cls(median=median, low=low, high=high)

    def as_dict(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Seconds of each side over all rounds without first steps, and the time of each peer over ours per round."""
    names = [OURS, *(name for name in rounds[0] if name != OURS)]
    sides = {}
    for side in names:
        results = [one[side] for one in rounds]
        device_peaks = [r["peak_device_bytes"] for r in results if r["peak_device_bytes"] is not None]
        sides[side] = {
            "versions": results[0]["versions"],
            "step_seconds": Spread.of([s for r in results for s in r["step_seconds"][1:]]).as_dict(),
            "rollout_seconds": Spread.of([s for r in results for s in r["rollout_seconds"][1:]]).as_dict(),
            "peak_rss_bytes": max(r["peak_rss_bytes"] for r in results),
            "peak_device_bytes": max(device_peaks, default=None),
        }
    return {
        "sides": sides,
        "ratio_step": {peer: ratio(rounds, peer, "step_seconds") for peer in names[1:]},
        "ratio_rollout": {peer: ratio(rounds, peer, "rollout_seconds") for peer in names[1:]},
        "work": {side: rounds[0][side]["work"] for side in names},
        "rounds": list(rounds),
    }


def ratio(rounds: Sequence[Round], peer: str, key: str) -> dict[str, float]:
    """Median time of a peer over ours per round: median, lowest and highest. Above 1, rl_compat is faster."""
    ratios = [statistics.median(one[peer][key][1:]) / statistics.median(one[OURS][key][1:]) for one in rounds]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def different_work(work: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The counts of work that differ between the sides."""
    ours = work[OURS]
    return [
        f"{name} is {ours.get(name)} in {OURS} and {theirs.get(name)} in {peer}"
        for peer, theirs in work.items()
        for name in SAME_WORK
        if ours.get(name) != theirs.get(name)
    ]


def as_text(headline: str, result: Mapping[str, Any]) -> str:
    """The result as text."""
    sides = result["sides"]
    kind = "peak_rss_bytes" if sides[OURS]["peak_device_bytes"] is None else "peak_device_bytes"
    title = "peak RSS" if kind == "peak_rss_bytes" else "peak on GPU"
    lines = [headline, f"{'':12}{'step s (quartiles)':26}{'rollout s (quartiles)':26}{title:>13}"]
    for side, found in sides.items():
        times = "".join(
            f"{found[key]['median']:.3f} ({found[key]['low']:.3f} to {found[key]['high']:.3f})".ljust(26)
            for key in ("step_seconds", "rollout_seconds")
        )
        lines.append(f"{side:12}{times}{found[kind] / 2**20:9,.0f} MiB")
    for name in ("step", "rollout"):
        for peer, found in result[f"ratio_{name}"].items():
            spread = f"({found['lowest']:.2f} to {found['highest']:.2f})"
            lines.append(f"{peer} / {OURS}, {name}: {found['median']:.2f} {spread}")
    work = result["work"]
    lines.append("work of the first step:" + "".join(f"{side:>14}" for side in work))
    for name in sorted({name for counts in work.values() for name in counts}):
        lines.append(f"  {name:21}" + "".join(f"{counts.get(name, 0):>14,}" for counts in work.values()))
    for side, found in sides.items():
        lines.append(side + ": " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    return "\n".join(lines)
