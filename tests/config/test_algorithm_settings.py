"""What the settings of algorithms refuse together, what a name sets, and what has no effect under it."""

from __future__ import annotations

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.errors import ConfigError

GROUPS = "algorithm.group_size=4"
CONSTRAINED = ["algorithm.name=ppo_lagrangian", "cost.functions=a.py:f"]
TOKEN = "off_policy.importance=token"


def error_of(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(None, arguments)
    return caught.value


def without_effect(*arguments: str) -> dict[str, str]:
    """Keys that change nothing, with the reason."""
    report = load_config(None, arguments).report
    return {line.key: line.reason for line in report if line.verdict == "without effect"}


@pytest.mark.parametrize(
    "name",
    [
        "grpo",
        "dr_grpo",
        "dapo",
        "rloo",
        "reinforce_plus_plus_baseline",
        "opo",
        "grpo_passk",
        "gpg",
        "gdpo",
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
    ],
)
def test_groups_of_one_are_refused_where_responses_are_compared(name: str) -> None:
    """A-ALG-01"""
    error = error_of(f"algorithm.name={name}", "algorithm.group_size=1")

    assert {f"algorithm.name={name}", "algorithm.group_size", "1"} <= facts(error)
    assert load_config(None, [f"algorithm.name={name}"]).config.algorithm.group_size == 8
    assert load_config(None, [f"algorithm.name={name}", "algorithm.group_size=2"]).config.algorithm.group_size == 2


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus", "remax"])
def test_groups_of_one_are_fine_where_nothing_is_compared(name: str) -> None:
    assert load_config(None, [f"algorithm.name={name}"]).config.algorithm.group_size == 1


def test_dynamic_sampling_needs_groups_under_any_name() -> None:
    error = error_of("algorithm.dynamic_sampling=true", "algorithm.group_size=1")

    assert {"algorithm.dynamic_sampling", "algorithm.group_size", "1"} <= facts(error)
    assert load_config(None, ["algorithm.dynamic_sampling=true"]).config.algorithm.group_size == 8


def test_dapo_sets_what_the_paper_does_and_a_given_setting_stays() -> None:
    loaded = load_config(None, ["algorithm.name=dapo", GROUPS, "data.max_response_length=500"])
    assert loaded.config.algorithm.clip_high == 0.28
    assert loaded.config.algorithm.dynamic_sampling
    assert loaded.config.reward.overlong_buffer == 100, "a fifth of the longest response"
    assert {key for key, source in loaded.sources.items() if source == "algorithm"} == {
        "algorithm.clip_high",
        "algorithm.dynamic_sampling",
        "algorithm.loss_aggregation",
        "reward.overlong_buffer",
    }

    given = load_config(None, ["algorithm.name=dapo", GROUPS, "algorithm.clip_high=0.3", "reward.overlong_buffer=0"])
    assert given.config.algorithm.clip_high == 0.3
    assert given.config.reward.overlong_buffer == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([TOKEN, "off_policy.truncate=2", "off_policy.band=0.5,2"], ["off_policy.truncate", "2.0", "off_policy.band"]),
        ([TOKEN, "off_policy.band=2,0.5"], ["off_policy.band", "2.0", "0.5"]),
        (["off_policy.reject=token_k4:2"], ["off_policy.reject", "token_k4"]),
        (["off_policy.reject=token_k1:2,token_k1:3"], ["off_policy.reject", "token_k1"]),
        (["off_policy.bypass=true", TOKEN], ["off_policy.bypass", TOKEN]),
        (
            ["off_policy.bypass=true", "off_policy.vtrace.enabled=true"],
            ["off_policy.bypass"],
        ),
        (["off_policy.vtrace.enabled=true", TOKEN], ["off_policy.vtrace.enabled", TOKEN]),
        (["algorithm.name=gdpo", GROUPS, "algorithm.kl_in_reward=k1"], ["algorithm.name=gdpo", "algorithm.kl_loss=k1"]),
        (["algorithm.name=gdpo", GROUPS, "algorithm.gdpo.weights=1,2"], ["algorithm.gdpo.weights", "2", "0"]),
        (["algorithm.name=ppo_lagrangian"], ["cost.functions"]),
        ([*CONSTRAINED, "cost.weights=1,2"], ["cost.weights", "2", "cost.functions", "1"]),
        (
            [*CONSTRAINED, "algorithm.lagrangian.init=9"],
            ["9.0", "algorithm.lagrangian.max"],
        ),
        (
            ["algorithm.policy_loss=clip_cov", "algorithm.clip_cov.low=6"],
            ["algorithm.clip_cov.low", "6.0", "algorithm.clip_cov.high", "5.0"],
        ),
        (["algorithm.critic_warmup_steps=5", "trainer.num_steps=5"], ["algorithm.critic_warmup_steps", "5"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(arguments: list[str], named: list[str]) -> None:
    assert set(named) <= facts(error_of(*arguments))


@pytest.mark.parametrize("loss", ["reinforce", "gpg", "dro"])
def test_a_loss_without_a_ratio_takes_weights_under_bypass(loss: str) -> None:
    arguments = ["off_policy.bypass=true", "off_policy.importance=token", f"algorithm.policy_loss={loss}"]
    assert load_config(None, arguments).config.off_policy.bypass


@pytest.mark.parametrize(
    ("arguments", "key", "named"),
    [
        (["algorithm.name=rloo", GROUPS], "algorithm.gamma=0.9", "algorithm.name=rloo"),
        (["algorithm.name=remax"], "algorithm.normalize_by_std=false", "algorithm.name=remax"),
        (["algorithm.name=remax"], "model.critic_path=tiny", "algorithm.name=remax"),
        (["algorithm.name=gpg", GROUPS], "algorithm.clip_low=0.1", "ppo_clip"),
        ([], "algorithm.dro.beta=0.5", "dro"),
        (["algorithm.policy_loss=sapo"], "algorithm.clip_dual=none", "ppo_clip"),
        ([], "algorithm.max_sampling_rounds=3", "algorithm.dynamic_sampling"),
        ([], "algorithm.lagrangian.cost_limit=3", "algorithm.name=ppo"),
        ([], "cost.functions=a.py:f", "ppo_lagrangian"),
        ([], "off_policy.truncate=2", "off_policy.importance"),
        ([], "off_policy.vtrace.rho=2", "off_policy.vtrace.enabled"),
        (["algorithm.name=rloo", GROUPS], "off_policy.vtrace.enabled=true", "algorithm.name=rloo"),
        ([], "algorithm.gdpo.parts=a", "algorithm.name=ppo"),
    ],
)
def test_a_setting_that_changes_nothing_is_said(arguments: list[str], key: str, named: str) -> None:
    assert named in facts(without_effect(*arguments, key)[key.partition("=")[0]])


@pytest.mark.parametrize(
    "arguments",
    [
        ["algorithm.name=reinforce_plus_plus", "algorithm.gamma=0.9"],
        [
            "algorithm.name=ppo_lagrangian",
            "cost.functions=a.py:f",
            "algorithm.lagrangian.cost_limit=3",
            "algorithm.gae_lambda=0.9",
        ],
        ["algorithm.policy_loss=dppo_tv", "algorithm.clip_dual=2"],
        ["algorithm.name=dapo", GROUPS, "algorithm.max_sampling_rounds=3"],
        ["off_policy.importance=sequence", "off_policy.truncate=2", "off_policy.normalize=true"],
        ["off_policy.vtrace.enabled=true", "off_policy.vtrace.c=2"],
        ["algorithm.name=gdpo", GROUPS, "algorithm.gdpo.parts=a,b", "algorithm.gdpo.weights=1,2"],
    ],
)
def test_a_setting_that_is_read_is_not_said(arguments: list[str]) -> None:
    assert without_effect(*arguments) == {}


@pytest.mark.parametrize("kind", ["k1+", "abs+", "k2+", "k3+"])
def test_estimators_of_the_kl_with_another_gradient_are_settings(kind: str) -> None:
    assert load_config(None, [f"algorithm.kl_loss={kind}"]).config.algorithm.kl_loss == kind
