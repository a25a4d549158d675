"""verl's GSM8K score and overlong penalty as an oracle: every reference solution and thousands of perturbed texts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from conformance.verl_oracle import verl_module

from rl_compat.data.read.reading import load_rows
from rl_compat.rewards.builtin.gsm8k import gsm8k_strict

pytestmark = pytest.mark.slow

NUM_PERTURBED = 4000


@pytest.fixture(scope="module")
def score() -> Callable[..., float]:
    return verl_module("verl.utils.reward_score.gsm8k").compute_score


@pytest.fixture(scope="module")
def solutions() -> list[tuple[str, str]]:
    """Reference solutions with their ground truths, of both files."""
    rows: list[Any] = [*load_rows(["gsm8k"], split="train"), *load_rows(["gsm8k"], split="test")]
    return [(str(row.extra_info["answer"]), str(row.ground_truth)) for row in rows]


def test_every_reference_solution_scores_as_in_verl(
    score: Callable[..., float], solutions: list[tuple[str, str]]
) -> None:
    assert len(solutions) == 7473 + 1319
    assert [(text, truth) for text, truth in solutions if gsm8k_strict(text, truth).reward != score(text, truth)] == []
    assert all(gsm8k_strict(text, truth).reward == 1 for text, truth in solutions)


def test_perturbed_solutions_score_as_in_verl(score: Callable[..., float], solutions: list[tuple[str, str]]) -> None:
    chance = random.Random(0)
    texts = [(perturbed(text, chance), truth) for text, truth in chance.choices(solutions, k=NUM_PERTURBED)]

    assert [pair for pair in texts if gsm8k_strict(*pair).reward != score(*pair)] == []
    assert {gsm8k_strict(*pair).reward for pair in texts} == {0.0, 1.0}


def perturbed(text: str, chance: random.Random) -> str:
    """One of many ways in which a model gets the form wrong."""
    head, _, answer = text.rpartition("#### ")
    changes: list[Callable[[], str]] = [
        lambda: f"{head}####{answer}",
        lambda: f"{head}#### ${answer}",
        lambda: f"{head}#### {answer}.",
        lambda: f"{head}#### {answer}.00",
        lambda: f"{head}#### -{answer}",
        lambda: f"{head}#### {answer} dollars",
        lambda: f"{head}### {answer}",
        lambda: f"{head}#### {answer}\n#### 7",
        lambda: f"{head}#### 7\n#### {answer}",
        lambda: f"#### {answer}" + " and so on" * chance.randint(20, 40),
        lambda: f"{head}####  {answer}",
        lambda: f"{head}#### {answer[:-1]},{answer[-1:]}",
        lambda: f"{head}The answer is {answer}",
        lambda: text[: chance.randint(0, len(text))],
        lambda: text.replace("#### ", "#### \n"),
        lambda: "".join(chance.sample(text, len(text))),
        lambda: text,
    ]
    return chance.choice(changes)()
