from __future__ import annotations

import pytest

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError, RewardError
from rl_compat.rewards.builtin.texts import cosine_length, overlong, repetition
from rl_compat.rewards.score import ScoreRequest, build_scorer
from rl_compat.trajectory import Prompt


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
