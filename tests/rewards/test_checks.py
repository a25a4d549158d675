from __future__ import annotations

import pytest

from rl_compat.data.builtin import gsm8k
from rl_compat.rewards.checks import gold_answer, reference_judge, truth_problem


def test_every_official_solution_of_gsm8k_is_accepted() -> None:
    judge = reference_judge(["auto"])
    for split in ("train", "test"):
        for row in gsm8k.rows(split, limit=1000):
            assert judge(row["data_source"], row["reward_model"]["ground_truth"], row["extra_info"]["answer"]) == []


@pytest.mark.parametrize(
    ("function", "truth", "reference", "found"),
    [
        ("gsm8k", "4", "so #### 5", [(True, "`gsm8k`")]),
        ("gsm8k", "four", None, [(True, "`gsm8k`")]),
        ("gsm8k_strict", "4", "so 4", [(True, "`gsm8k_strict`")]),
        ("multiple_choice", "E5", None, [(True, "`multiple_choice`")]),
        ("math", [], None, [(True, "`math`")]),
        ("math", r"\frac{1}{2}", r"\boxed{\dfrac{1}{2}}", []),
        ("math", r"\frac{1}{2}", r"\boxed{0.5}", [(False, "`math`")]),
        ("math", "0.5", r"\boxed{}", [(True, "`math`")]),
        ("format", None, "text", []),
        ("mine.py:score", None, "text", []),
        ("regex", "x", "y", []),
    ],
)
def test_a_row_is_judged_by_the_rewards_of_the_run(
    function: str, truth: object, reference: str | None, found: list[tuple[bool, str]]
) -> None:
    arguments = {"pattern": "y"} if function == "regex" else {}
    judged = reference_judge([function], arguments=arguments)("mine", truth, reference)
    assert [spoils for spoils, _, _ in judged] == [spoils for spoils, _ in found]
    assert all(literal in problem for (_, problem, _), (_, literal) in zip(judged, found, strict=True))


def test_a_source_of_the_settings_names_the_reward() -> None:
    judge = reference_judge(["auto"], sources={"mine": "exact_match"})
    assert judge("mine", "a", None) == []
    ((spoils, problem, hint),) = judge("other", "a", None)
    assert spoils
    assert "`other`" in problem
    assert "`reward.sources`" in (hint or "")


@pytest.mark.parametrize(
    ("name", "truth", "gold"),
    [
        ("gsm8k", "so 4 + 5\n#### 9", "9"),
        ("gsm8k_strict", "1080", "1080"),
        ("gsm8k_strict", "1,080", None),
        ("gsm8k_strict", "so 4 + 5\n#### 9", None),
        ("multiple_choice", "b", "B"),
        ("multiple_choice", "5", None),
        ("math", ["1/2", 0.5], "1/2 | 0.5"),
        ("qa_exact_match", {"target": ["a", "b"]}, "a | b"),
        ("exact_match", {"answer": "a"}, None),
        ("exact_match", [["a"]], None),
        ("arithmetic", ["9"], None),
        ("arithmetic", 9, "9"),
    ],
)
def test_a_reward_says_what_it_compares_an_answer_with(name: str, truth: object, gold: str | None) -> None:
    assert gold_answer(name, truth) == gold
    assert (truth_problem(name, truth) is None) == (gold is not None)
