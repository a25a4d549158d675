"""Competition problems in the form of MATH: a problem, and a solution with the answer in its last box."""

from __future__ import annotations

from typing import Any

from rl_compat.data.builtin.verl_schema import schema_row
from rl_compat.data.form.columns import Record
from rl_compat.rewards.builtin.answers import last_boxed

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
INSTRUCTION = r"Let's think step by step and output the final answer within \boxed{}."


def answer_in(solution: str) -> str | None:
    """The content of the last box of a solution, None where there is none or it is empty."""
    return last_boxed(solution) or None


def row(problem: str, solution: str, *, answer: str | None = None, split: str, index: int) -> dict[str, Any] | None:
    """One row in verl's schema, None where neither `answer` nor the solution has one."""
    truth = answer or answer_in(solution)
    if truth is None:
        return None
    return schema_row(
        question=problem,
        instruction=INSTRUCTION,
        ground_truth=truth,
        answer=solution,
        data_source=DATA_SOURCE,
        split=split,
        index=index,
    )


def from_raw(record: Record, index: int, split: str) -> Record | None:
    """A row of the schema from `problem`, `solution` and optionally `answer`; None without an answer."""
    problem, solution, answer = record.get("problem"), record.get("solution"), record.get("answer")
    if not isinstance(problem, str) or not isinstance(solution, str):
        return None
    given = str(answer).strip() if answer is not None else ""
    return row(problem, solution, answer=given or None, split=split, index=index)
