"""A cost that has nothing to do with being right: whether a response holds a seven."""

from __future__ import annotations


def compute_scores(solution_strs: list[str]) -> list[float]:
    """1 for each response with a seven, else 0."""
    return [float("7" in text) for text in solution_strs]
