"""Measurements of both sides become medians, spreads and ratios, and a text with them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAME_WORK = ("prompt_tokens", "response_tokens")
SIDES = ("rl_compat", "trl")


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


def summary(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Each side's seconds over all rounds, first steps dropped, and the ratio TRL / ours of each round's medians."""
    sides = {}
    for side in SIDES:
        results = [one[side] for one in rounds]
        sides[side] = {
            "versions": results[0]["versions"],
            "step_seconds": Spread.of([s for r in results for s in r["step_seconds"][1:]]).as_dict(),
            "rollout_seconds": Spread.of([s for r in results for s in r["rollout_seconds"][1:]]).as_dict(),
            "peak_rss_bytes": max(r["peak_rss_bytes"] for r in results),
        }
    return {
        "sides": sides,
        "ratio_step": ratio(rounds, "step_seconds"),
        "ratio_rollout": ratio(rounds, "rollout_seconds"),
        "work": {side: rounds[0][side]["work"] for side in SIDES},
        "rounds": list(rounds),
    }


def ratio(rounds: Sequence[Mapping[str, Mapping[str, Any]]], key: str) -> dict[str, float]:
    """TRL's median time over ours, round by round: median, lowest and highest. Above 1 we are faster."""
    ratios = [statistics.median(one["trl"][key][1:]) / statistics.median(one["rl_compat"][key][1:]) for one in rounds]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def different_work(work: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What must be equal on both sides and is not."""
    ours, theirs = (work[side] for side in SIDES)
    return [
        f"{name} is {ours.get(name)} in rl_compat and {theirs.get(name)} in trl"
        for name in SAME_WORK
        if ours.get(name) != theirs.get(name)
    ]


def as_text(headline: str, result: Mapping[str, Any]) -> str:
    """The result for people."""
    lines = [headline, f"{'':12}{'step s (quartiles)':26}{'rollout s (quartiles)':26}{'peak RSS':>10}"]
    for side, found in result["sides"].items():
        times = "".join(
            f"{found[key]['median']:.3f} ({found[key]['low']:.3f} to {found[key]['high']:.3f})".ljust(26)
            for key in ("step_seconds", "rollout_seconds")
        )
        lines.append(f"{side:12}{times}{found['peak_rss_bytes'] / 2**20:6.0f} MiB")
    for name in ("step", "rollout"):
        found = result[f"ratio_{name}"]
        lines.append(
            f"trl / rl_compat, {name}: {found['median']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})"
        )
    lines.append("work of the first step:")
    ours, theirs = (result["work"][side] for side in SIDES)
    for name in sorted(ours.keys() | theirs.keys()):
        lines.append(f"  {name:18}{ours.get(name, 0):>12}{theirs.get(name, 0):>12}")
    for side, found in result["sides"].items():
        lines.append(side + ": " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    return "\n".join(lines)
