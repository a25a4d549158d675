"""Settings of the data that an algorithm makes nothing of are said, and those that do not fit are refused."""

from __future__ import annotations

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.errors import ConfigError

KEYS = {
    "data.response_key": ("sft", "kto"),
    "data.chosen_key": ("dpo", "reward_model", "kto"),
    "data.rejected_key": ("dpo", "reward_model", "kto"),
    "data.label_key": ("kto",),
    "data.answer_key": ("ppo", "grpo"),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("algorithm", ["ppo", "sft", "dpo", "kto", "reward_model"])
def test_a_column_that_the_rows_do_not_have_is_said_to_be_without_effect(key: str, algorithm: str) -> None:
    report = load_config(None, [f"algorithm.name={algorithm}", f"{key}=column"]).report
    verdicts = {line.key: line.verdict for line in report}
    assert (verdicts.get(key) == "without effect") is (algorithm not in KEYS[key])


@pytest.mark.parametrize("weights", ["1", "1,2,3"])
def test_a_mixture_needs_one_weight_per_name(weights: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["data.train_files=gsm8k,arithmetic", f"data.mixture_weights={weights}"])
    assert {"data.mixture_weights", "data.train_files", "2"} <= facts(caught.value)
