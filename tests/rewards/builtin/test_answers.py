from __future__ import annotations

import pytest

from rl_compat.rewards.builtin.answers import last_announced, last_boxed, last_tagged


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\sqrt{\frac{a_{1}}{b^{2}}}} end", r"\sqrt{\frac{a_{1}}{b^{2}}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\fbox{ 3 }", "3"),
        (r"\boxed 5$", "5"),
        (r"\boxed{}", ""),
        (r"\boxedx{1}", None),
        ("no box", None),
        (r"\boxed", None),
    ],
)
def test_the_last_box_that_closes_is_read_to_its_own_brace(text: str, content: str | None) -> None:
    """A-REW-06"""
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer> a </answer>", "a"),
        ("<answer>a</answer> no, <answer>b</answer>", "b"),
        ("<answer>a</answer> and <answer>b", "a"),
        ("<answer>a", None),
        ("</answer>", None),
        ("<answer>x <answer>y</answer>", "y"),
    ],
)
def test_the_last_closed_tag_is_read(text: str, content: str | None) -> None:
    assert last_tagged(text, "answer") == content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("The answer is 5.", "5."),
        ("the final answer is: **7**", "7"),
        ("Answer: x\nmore", "x"),
        ("**Answer:** 17", "17"),
        ("answer = 3", "3"),
        ("The answer is 5. No, the answer is 6", "6"),
        ("I can answer that", None),
        ("answers: many", None),
        ("The answer is\n5", "5"),
        ("", None),
    ],
)
def test_what_follows_the_last_phrase_is_read(text: str, content: str | None) -> None:
    assert last_announced(text) == content
