"""Settings of the reuse of responses fit together."""

from __future__ import annotations

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.errors import ConfigError


def test_draws_last_no_longer_than_the_uses() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["samples.reuse=2", "samples.replay.draws=1.5"])

    assert {"samples.replay.draws", "samples.reuse=2"} <= facts(caught.value)
    assert load_config(None, ["samples.reuse=2", "samples.replay.draws=1"]).config.samples.replay.draws == 1


def test_the_error_of_a_critic_needs_a_critic() -> None:
    given = ["samples.reuse=2", "samples.replay.priority=td_error"]
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["algorithm.name=grpo", *given])

    assert {"samples.replay.priority=td_error", "algorithm.name=grpo"} <= facts(caught.value)
    assert load_config(None, ["algorithm.name=ppo", *given]).config.samples.replay.priority == "td_error"


@pytest.mark.parametrize(
    ("given", "without_effect"),
    [
        (["samples.replay.capacity=5"], "samples.replay.capacity"),
        (["samples.reuse=2", "samples.replay.alpha=1"], "samples.replay.alpha"),
        (["samples.keep_gib=5"], "samples.keep_gib"),
        (["samples.keep=true", "trainer.num_sample_generations=9"], "trainer.num_sample_generations"),
        (["algorithm.name=sft", "samples.reuse=2"], "samples.reuse"),
    ],
)
def test_a_setting_that_nothing_reads_is_reported(given: list[str], without_effect: str) -> None:
    report = load_config(None, given).report

    assert [line.key for line in report if line.verdict == "without effect"] == [without_effect]
