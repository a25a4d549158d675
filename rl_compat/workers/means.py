"""The mean metrics of several optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence

_SUMMED = ("skipped_steps",)
_LAST = ("lr",)


def mean_metrics(steps: Sequence[dict[str, float]], *, prefix: str) -> dict[str, float]:
    """Means over the steps; skipped steps are counted and `lr` is the last one. Names get the prefix."""
    merged = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        full_name = name if "/" in name else f"{prefix}{name}"
        if name in _SUMMED:
            merged[full_name] = sum(values)
        elif name in _LAST:
            merged[full_name] = values[-1]
        else:
            merged[full_name] = sum(values) / len(values)
    return merged
