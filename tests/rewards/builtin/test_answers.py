from __future__ import annotations

import pytest

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.answers import after_thoughts, last_announced, last_boxed, last_tagged
from rl_compat.rewards.score import ScoreRequest, build_scorer
from rl_compat.trajectory import Prompt


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


@pytest.mark.parametrize(
    ("response", "prompt", "answer"),
    [
        ("18", "", "18"),
        ("<think>17</think>18", "", "18"),
        ("<think>a</think>17<think>b</think>18", "", "18"),
        ("<think>18", "", ""),
        ("<think>a</think>18<think>b", "", ""),
        ("so 17</think>\n18", "<think>\n", "\n18"),
        ("so 18", "<think>\n", ""),
        ("so 17</think>18", "", "18"),
        ("18", "<think>\n\n</think>\n\n", "18"),
        ("<reasoning>17</reasoning>18", "", "18"),
        ("<reasoning>18", "", ""),
        ("◁think▷17◁/think▷18", "", "18"),
        ("◁think▷18", "", ""),
        ("18", "◁think▷", ""),
        ("[THINK]17[/THINK]18", "", "18"),
        ("<|channel|>analysis<|message|>17assistant<|channel|>final<|message|>18", "", "18"),
        ("<|channel|>analysis<|message|>18", "", ""),
        ("a < b, <b>18</b>", "", "a < b, <b>18</b>"),
    ],
)
def test_only_what_follows_the_last_thought_is_read(response: str, prompt: str, answer: str) -> None:
    assert after_thoughts(response, prompt) == answer


JUDGES = {
    "gsm8k": 0.0,
    "gsm8k_strict": 0.0,
    "arithmetic": 0.0,
    "math": 0.0,
    "math_dapo": -1.0,
    "exact_match": 0.0,
    "qa_exact_match": 0.0,
    "multiple_choice": 0.0,
}
ANSWERS = {"arithmetic": "18", "math_dapo": "Answer: 18", "exact_match": "18", "multiple_choice": "(C)"}


def _scored(name: str, response: str, *, prompt: str = "", **settings: str) -> tuple[float | None, bool | None]:
    truth = "C" if name == "multiple_choice" else "18"
    row = Prompt(token_ids=(1,), text=prompt, data_source="", ground_truth=truth, row=0)
    scorer = build_scorer(RewardConfig(functions=(name,), **settings), data_sources=())
    scores = scorer.score([ScoreRequest(response_text=response, prompt=row)])
    scorer.close()
    return scores.rewards[0], scores.correct[0]


@pytest.mark.parametrize("name", JUDGES)
def test_a_right_answer_inside_an_unfinished_thought_is_not_paid(name: str) -> None:
    answer = ANSWERS.get(name, "<answer>18</answer>" if name == "qa_exact_match" else "#### 18")
    assert _scored(name, f"<think>hm</think>{answer}") == (1.0, True)
    assert _scored(name, f"hm {answer}", prompt="user: 9+9?<think>\n") == (JUDGES[name], False)
    assert _scored(name, f"<think>hm {answer}") == (JUDGES[name], False)


def test_the_markers_of_thoughts_are_a_setting() -> None:
    assert _scored("gsm8k", "<think>#### 18", thinking="off") == (1.0, True)
    assert _scored("gsm8k", "<scratch>#### 18", thinking="<scratch>,</scratch>") == (0.0, False)
    with pytest.raises(ConfigError, match="thinking"):
        _scored("gsm8k", "18", thinking="<scratch>")


def test_a_format_is_that_of_the_whole_response() -> None:
    assert _scored("format", "<think>hm</think><answer>18</answer>")[0] == 1.0
