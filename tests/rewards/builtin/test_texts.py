from __future__ import annotations

from typing import Any

import pytest

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.texts import arithmetic, exact_match, format_tags, qa_exact_match, regex
from rl_compat.rewards.score import ScoreRequest, build_scorer
from rl_compat.trajectory import Prompt


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        ("Paris", "paris", 1.0),
        ("  **Paris**. ", "Paris", 1.0),
        ("New\n York", "new york", 1.0),
        ("ﬁne", "fine", 1.0),
        ("<think>Rome?</think><answer>Paris</answer>", "Paris", 1.0),
        ("It is Paris", "Paris", 0.0),
        ("the Paris", "Paris", 0.0),
        ("5", 5, 1.0),
        ("Lutetia", ["Paris", "Lutetia"], 1.0),
        ("", "Paris", 0.0),
    ],
)
def test_exact_match_ignores_case_space_and_markup_at_the_ends(response: str, truth: Any, reward: float) -> None:
    outcome = exact_match(response, truth)
    assert (outcome.reward, outcome.answer_found) == (reward, response != "")


@pytest.mark.parametrize(
    ("response", "truth", "reward", "found"),
    [
        ("<answer>The Eiffel Tower!</answer>", {"target": ["Eiffel tower"]}, 1.0, True),
        ("<answer>a</answer> <answer>U.S.</answer>", ["US"], 1.0, True),
        ("<answer>Eiffel</answer>", "Eiffel Tower", 0.0, True),
        ("Eiffel Tower", "Eiffel Tower", 0.0, False),
    ],
)
def test_question_answers_are_compared_as_squad_does(response: str, truth: Any, reward: float, found: bool) -> None:
    outcome = qa_exact_match(response, truth)
    assert (outcome.reward, outcome.answer_found) == (reward, found)


def test_a_pattern_that_is_found_counts() -> None:
    assert regex("code 123", "", pattern=r"\d{3}").reward == 1.0
    assert regex("code 12", "", pattern=r"\d{3}").reward == 0.0


@pytest.mark.parametrize("group", ["1", "value"])
def test_the_group_of_the_last_match_is_compared_with_the_truth(group: str) -> None:
    pattern = r"x=(?P<value>\w+)"
    assert regex("x=1 x=2", "2", pattern=pattern, group=group).reward == 1.0
    assert regex("x=1 x=2", "1", pattern=pattern, group=group).reward == 0.0
    assert regex("nothing", "1", pattern=pattern, group=group).answer_found is False


@pytest.mark.parametrize(
    ("arguments", "literals"),
    [
        ({}, ["`regex`", "`reward.function_arguments.pattern`"]),
        ({"pattern": "("}, ["`(`"]),
        ({"pattern": "a(b)", "group": "2"}, ["`a(b)`", "1", "2"]),
        ({"pattern": "a(b)", "group": "x"}, ["`a(b)`", "`x`"]),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_when_built(arguments: dict[str, str], literals: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build_scorer(RewardConfig(functions=("regex",), function_arguments=arguments), data_sources=())
    assert all(literal in error.value.message for literal in literals)


def test_a_pattern_that_backtracks_forever_costs_its_row_only() -> None:
    """A-REW-10"""
    config = RewardConfig(functions=("regex",), function_arguments={"pattern": "^(a+)+$"}, timeout_seconds=0.5)
    scorer = build_scorer(config, data_sources=())
    texts = ("aaa", "a" * 64 + "b", "ab")
    requests = [ScoreRequest(response_text=text, prompt=Prompt(token_ids=(1,), text="p")) for text in texts]
    scores = scorer.score(requests)
    scorer.close()
    assert scores.rewards == (1.0, 0.0, 0.0)
    assert (scores.metrics["reward/timeouts"], scores.metrics["reward/errors"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("response", "reward", "found"),
    [
        ("42", 1.0, True),
        (" 42\n", 1.0, True),
        ("042", 0.0, True),
        ("41", 0.0, True),
        ("42.", 0.0, False),
        ("=42", 0.0, False),
        ("", 0.0, False),
    ],
)
def test_only_the_digits_themselves_count(response: str, reward: float, found: bool) -> None:
    outcome = arithmetic(response, "42")
    assert (outcome.reward, outcome.correct, outcome.answer_found) == (reward, reward == 1.0, found)


def test_a_ground_truth_may_be_a_number() -> None:
    assert arithmetic("42", 42).reward == 1.0


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
