"""On all of the real GSM8K: the official answers, and verl's exact rule next to ours."""

from __future__ import annotations

import random
import re

import pytest

from rl_compat.data.builtin import gsm8k as data
from rl_compat.rewards.builtin.gsm8k import gsm8k, gsm8k_strict

NUM_ROWS = {"train": 7473, "test": 1319}
NUM_PERTURBED = 2000


def _rows(split: str) -> list[tuple[str, str]]:
    """Reference solution and ground truth of every row."""
    return [(row["extra_info"]["answer"], row["reward_model"]["ground_truth"]) for row in data.rows(split)]


def _verl_rule(response: str, ground_truth: str) -> float:
    """The strict rule in verl's words: last 300 characters, last match, separators removed, equal as text."""
    matches = re.findall(r"#### (\-?[0-9\.\,]+)", response[-300:])
    return float(bool(matches) and matches[-1].replace(",", "").replace("$", "") == ground_truth)


def _official(solution: str) -> str:
    """The answer as GSM8K's authors read it."""
    return solution.split("#### ")[-1].strip().replace(",", "")


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_parser_agrees_with_the_official_answer_of_every_reference_solution(split: str) -> None:
    rows = _rows(split)
    assert len(rows) == NUM_ROWS[split]
    wrong = [solution for solution, _ in rows if gsm8k(solution, _official(solution)).reward != 1.0]
    built = [solution for solution, truth in rows if gsm8k(solution, truth).reward != 1.0]
    assert (wrong, built) == ([], [])


@pytest.mark.parametrize("split", ["train", "test"])
def test_strict_is_verls_rule_on_every_reference_solution(split: str) -> None:
    differing = [
        solution
        for solution, truth in _rows(split)
        if gsm8k_strict(solution, truth).reward != _verl_rule(solution, truth)
    ]
    assert differing == []


def test_strict_is_verls_rule_on_perturbed_solutions_right_and_wrong() -> None:
    drawn = random.Random(0)
    rows = _rows("test")
    cases = [(_perturbed(solution, drawn), truth) for solution, truth in drawn.choices(rows, k=NUM_PERTURBED)]
    rewards = [gsm8k_strict(response, truth).reward for response, truth in cases]
    assert rewards == [_verl_rule(response, truth) for response, truth in cases]
    assert NUM_PERTURBED * 0.1 < sum(rewards) < NUM_PERTURBED * 0.9


def _perturbed(solution: str, drawn: random.Random) -> str:
    """A solution with one to three changes of the kinds that models make."""
    for _ in range(drawn.randint(1, 3)):
        solution = drawn.choice(CHANGES)(solution, drawn)
    return solution


CHANGES = (
    lambda text, drawn: text.replace("#### ", drawn.choice(["####", "####  ", "### ", "#### $", "#### -", "#####  "])),
    lambda text, drawn: text + drawn.choice([".", ",", ".0", ".00", " dollars", "%", "\n", "#### 7", " #### ", ",000"]),
    lambda text, drawn: text + "x" * drawn.choice([1, 280, 290, 295, 300, 400]),
    lambda text, drawn: text + f"\n#### {drawn.randint(-50, 2000):,}",
    lambda text, drawn: f"#### {drawn.randint(0, 99)}\n" + text,
    lambda text, drawn: text[: drawn.randint(len(text) // 2, len(text))],
    lambda text, drawn: re.sub(r"(\d)(\d{3})\b", r"\1,\2", text),
    lambda text, drawn: text.translate({ord("-"): "\u2212"}),
    lambda text, drawn: text,
)
