from __future__ import annotations

from typing import Any

import pytest

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.texts import exact_match, qa_exact_match, regex
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
