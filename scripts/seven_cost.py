"""A cost that is unrelated to correctness: whether a response contains a seven."""

from __future__ import annotations


def compute_scores(solution_strs: list[str]) -> list[float]:
    """1 for each response that contains a seven, else 0."""
    return [float("7" in text) for text in solution_strs]
