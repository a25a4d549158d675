from __future__ import annotations

import pytest

from rl_compat.rewards.builtin.form import format_tags


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("  <think>a</think>\n\n<answer>b</answer>\n", 1.0),
        ("<think>a < b</think><answer>b</answer>", 1.0),
        ("<think>a</think>", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("so <think>a</think><answer>b</answer>", 0.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer> end", 0.0),
        ("<think>a</think><answer> </answer>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think>a<answer>b</answer></think>", 0.0),
        ("<think>a<answer>b</think></answer>", 0.0),
        ("<think>a</think><answer>b", 0.0),
        ("a</think><answer>b</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_the_response_is_the_tags_and_nothing_else(response: str, reward: float) -> None:
    assert format_tags(response).reward == reward


def test_other_tags_may_be_named() -> None:
    assert format_tags("<plan>a</plan><code>b</code>", tags="plan, code").reward == 1.0
    assert format_tags("<plan>a</plan>", tags="plan, code").reward == 0.0


def test_a_tag_that_the_template_has_opened_may_be_missing() -> None:
    assert format_tags("a</think><answer>b</answer>", prompt_text="<|assistant|><think>\n").reward == 1.0
    assert format_tags("<think>a</think><answer>b</answer>", prompt_text="…<think>\n").reward == 1.0
    assert format_tags("b</answer>", prompt_text="<think>").reward == 0.0
