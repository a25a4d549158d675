from __future__ import annotations

from typing import Any

import pytest

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError, RewardError
from rl_compat.rewards.builtin.texts import (
    arithmetic,
    cosine_length,
    exact_match,
    format_tags,
    overlong,
    qa_exact_match,
    regex,
    repetition,
)
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


def _requests(*lengths: int | None, text: str = "#### 42") -> list[ScoreRequest]:
    return [
        ScoreRequest(
            response_text=text,
            prompt=Prompt(token_ids=(1,), text="p", ground_truth="42", row=i),
            response_ids=None if length is None else tuple(range(length)),
        )
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (110, -1.5)]
)
def test_the_overlong_penalty_grows_over_the_buffer(length: int, penalty: float) -> None:
    outcome = overlong(20)("", response_ids=[7] * length, max_response_length=100)
    assert outcome.reward == pytest.approx(penalty)


def test_the_overlong_penalty_is_a_part_of_the_sum_and_no_part_of_correctness() -> None:
    config = RewardConfig(functions=("gsm8k",), overlong_buffer=20, overlong_penalty=0.5)
    scores = build_scorer(config, data_sources=(), max_response_length=100).score(_requests(80, 90, 100))
    assert scores.rewards == pytest.approx((1.0, 0.75, 0.5))
    assert scores.components == {"gsm8k": (1.0, 1.0, 1.0), "overlong": (0.0, -0.5, -1.0)}
    assert scores.weights == {"gsm8k": 1.0, "overlong": 0.5}
    assert scores.correct == (True, True, True)


def test_a_buffer_needs_a_longest_response_that_it_fits_into() -> None:
    with pytest.raises(ConfigError) as error:
        build_scorer(RewardConfig(functions=("gsm8k",), overlong_buffer=20), data_sources=(), max_response_length=10)
    assert "`reward.overlong_buffer`" in error.value.message
    assert "20" in error.value.message
    assert "10" in error.value.message
    with pytest.raises(ConfigError) as error:
        build_scorer(RewardConfig(functions=("gsm8k",), overlong_buffer=20), data_sources=())
    assert "`reward.overlong_buffer`" in error.value.message
    scorer = build_scorer(
        RewardConfig(functions=("gsm8k",), overlong_buffer=20), data_sources=(), max_response_length=100
    )
    with pytest.raises(RewardError) as error:
        scorer.score(_requests(None))
    assert "row 0" in error.value.message


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [
        ((1, 2, 3, 4), 0.0),
        ((1, 2), 0.0),
        ((), 0.0),
        ((5, 5, 5, 5), -0.5),
        ((1, 2, 3, 1, 2, 3), -0.25),
    ],
)
def test_repetition_is_the_share_of_ngrams_seen_before(tokens: tuple[int, ...], reward: float) -> None:
    assert repetition("", response_ids=tokens).reward == pytest.approx(reward)


def test_repetition_counts_words_where_tokens_are_not_known() -> None:
    assert repetition("a b a b a", ngram=2).reward == pytest.approx(2 / 4 - 1)


@pytest.mark.parametrize(
    ("correct", "length", "reward"),
    [
        (True, 0, 2.0),
        (True, 50, 1.5),
        (True, 99, 1.0002467),
        (False, 0, -10.0),
        (False, 50, -5.0),
        (True, 100, -10.0),
        (False, 100, -10.0),
    ],
)
def test_short_is_better_when_right_and_long_when_wrong(correct: bool, length: int, reward: float) -> None:
    outcome = cosine_length("", correct=correct, response_ids=range(length), max_response_length=100)
    assert outcome.reward == pytest.approx(reward, abs=1e-6)


def test_the_cosine_builds_on_what_the_other_functions_judged_wherever_it_is_named() -> None:
    config = RewardConfig(
        functions=("cosine_length", "gsm8k"), weights=(1.0, 0.0), function_arguments={"wrong_short": "-4"}
    )
    scorer = build_scorer(config, data_sources=(), max_response_length=100)
    assert scorer.score([*_requests(0), *_requests(0, text="#### 41")]).rewards == (2.0, -4.0)


def test_the_cosine_alone_says_what_it_needs() -> None:
    alone = build_scorer(RewardConfig(functions=("cosine_length",)), data_sources=(), max_response_length=100)
    with pytest.raises(RewardError) as error:
        alone.score(_requests(3))
    assert "`cosine_length`" in error.value.message
    assert "row 0" in error.value.message
    unknown = build_scorer(RewardConfig(functions=("cosine_length", "gsm8k")), data_sources=())
    with pytest.raises(RewardError) as error:
        unknown.score(_requests(3))
    assert "`data.max_response_length`" in error.value.message
