"""The metrics that people read, as one line per step on stdout in verl's format."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TextIO

SHOWN = re.compile(
    r"""
      critic/score/mean | cost/score/mean | cost/multiplier
    | train/loss | rewards/(margins|accuracies) | actor/(pg_loss|entropy|kl_loss|ppo_kl|pg_clipfrac|lr|grad_norm)
    | actor/reward_kl_penalty | critic/(vf_loss|vf_explained_var)
    | response_length/(mean|clip_ratio|empty_ratio) | training/(zero_spread_groups|rollout_probs_diff_max)
    | val-core/.+/(mean|low95|high95)@1 | val-aux/response_length/mean | eval/.+
    | actor/perf/max_memory_allocated_gb | perf/throughput | timing_s/(gen|step|testing)
    """,
    re.VERBOSE,
)
"names of metrics, others are in the other trackers"
IF_NOT_ZERO = re.compile(r"reward/(timeouts|errors|unscored) | \w+/skipped_steps", re.VERBOSE)


class ConsoleTracker:
    """Prints `step:N - key:value - key:value`, with a part of the metrics."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        "`sys.stdout` at the time of each line if None, so that a progress bar can stay below the lines"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        shown = {
            name: value
            for name, value in metrics.items()
            if SHOWN.fullmatch(name) or (value and IF_NOT_ZERO.fullmatch(name))
        }
        print(format_line(step, shown), file=self._stream or sys.stdout, flush=True)

    def close(self) -> None:
        """Nothing to close."""


def format_line(step: int, metrics: Mapping[str, float]) -> str:
    """The line of a step: fields between ` - `, name and value between `:`."""
    return " - ".join([f"step:{step}", *(f"{name}:{_short(value)}" for name, value in metrics.items())])


def _short(value: float) -> str:
    """Whole numbers in full, others with five significant digits; `float` reads all of them."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return str(int(value)) if isinstance(value, int) else f"{value:.1f}"
    return f"{value:.5g}" if abs(value) < 1e5 else f"{value:.1f}"
