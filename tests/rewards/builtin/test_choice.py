from __future__ import annotations

import pytest

from rl_compat.rewards.builtin.choice import multiple_choice, truth_letter


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        ("b", None),
        ("I think so.\nB", "B"),
        (r"so \boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{b}", "B"),
        ("<answer>(B)</answer>", "B"),
        ("<answer>B. Paris</answer>", "B"),
        ("The answer is B.", "B"),
        ("The answer is (B) because of A.", "B"),
        ("the correct answer is option B", "B"),
        ("**Answer:** B", "B"),
        ("Answer: $B$", "B"),
        ("I choose option B here", "B"),
        ("Of (A) and (B), (B) fits", "B"),
        ("The answer is A. Wait, the answer is B.", "B"),
        ("The answer is Berlin", None),
        ("The answer is A cat", None),
        ("I would say so", None),
        ("A cat sat.", None),
        ("", None),
    ],
)
def test_the_letter_that_the_response_settles_on(response: str, letter: str | None) -> None:
    outcome = multiple_choice(response, "B")
    assert outcome.extras["answer"] == letter
    assert outcome.answer_found == (letter is not None)
    assert outcome.reward == float(letter == "B")


@pytest.mark.parametrize(
    ("truth", "letter"), [("C", "C"), ("(C)", "C"), ("c", "C"), ("C. Paris", "C"), ("Paris", None), (2, None)]
)
def test_the_letter_of_a_ground_truth(truth: object, letter: str | None) -> None:
    assert truth_letter(truth) == letter
