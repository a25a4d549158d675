"""A cost that grows with the length of a response: its characters over a number."""

from __future__ import annotations


def compute_scores(solution_strs: list[str], per: str = "4") -> list[float]:
    """Characters divided by `per`, for a batch of responses."""
    return [len(text) / float(per) for text in solution_strs]
