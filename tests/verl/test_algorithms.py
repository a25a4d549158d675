"""verl's names of algorithms, losses, KL terms, corrections and rewards, as settings of ours."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.facts import facts
from fakes.verl_settings import judge_config, load_config

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import settings, values_of
from rl_compat.verl.keys.policy import ESTIMATORS, LOSSES
from rl_compat.verl.keys.rules import KL_NAMES

A, R, C = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
GROUPS = ["algorithm.adv_estimator=grpo", f"{R}.n=4"]
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"


def changed(*arguments: str) -> dict[str, Any]:
    """The native settings that the arguments moved away from their defaults."""
    values = values_of(load_config(None, arguments).config)
    return {key: value for key, value in values.items() if value != settings()[key].default}


def verdict(key: str, *arguments: str) -> KeyVerdict:
    return next(line for line in judge_config(None, arguments).report if line.key == key)


@pytest.mark.parametrize(("name", "native"), ESTIMATORS.items())
def test_every_estimator_is_an_algorithm(name: str, native: str) -> None:
    config = load_config(None, [f"algorithm.adv_estimator={name}", f"{R}.n=4"]).config

    assert len(ESTIMATORS) == 14
    assert config.algorithm.name == native
    assert native in ALGORITHMS
    assert config.algorithm.policy_loss in ("auto", "ppo_clip")


def test_gpg_keeps_the_clipped_loss_until_its_own_is_asked_for() -> None:
    assert changed("algorithm.adv_estimator=gpg", f"{R}.n=4")["algorithm.policy_loss"] == "ppo_clip"
    both = changed("algorithm.adv_estimator=gpg", f"{A}.policy_loss.loss_mode=gpg", f"{R}.n=4")
    assert both["algorithm.policy_loss"] == "gpg"


@pytest.mark.parametrize(("name", "native"), LOSSES.items())
def test_every_policy_loss_has_its_name_here(name: str, native: str) -> None:
    arguments = [f"{A}.policy_loss.loss_mode={name}", f"{A}.policy_loss.dro_beta=0.2"]

    assert len(LOSSES) == 11
    assert load_config(None, arguments).config.algorithm.policy_loss == native


def test_the_twelfth_loss_is_the_bypass_of_the_old_policy() -> None:
    assert changed(f"{A}.policy_loss.loss_mode=bypass_mode") == {
        "off_policy.bypass": True,
        "algorithm.policy_loss": "ppo_clip",
    }


@pytest.mark.parametrize(
    ("key", "value", "loss", "native"),
    [
        ("policy_loss.clip_cov_ratio", 0.01, "clip_cov", "clip_cov.fraction"),
        ("policy_loss.clip_cov_lb", 0.5, "clip_cov", "clip_cov.low"),
        ("policy_loss.clip_cov_ub", 9.0, "clip_cov", "clip_cov.high"),
        ("policy_loss.kl_cov_ratio", 0.01, "kl_cov", "kl_cov.fraction"),
        ("policy_loss.ppo_kl_coef", 0.5, "kl_cov", "kl_cov.coef"),
        ("tau_pos", 2.0, "sapo", "sapo.tau_positive"),
        ("tau_neg", 2.0, "sapo", "sapo.tau_negative"),
        ("clip_ratio_c", 5.0, "dppo_tv", "clip_dual"),
    ],
)
def test_a_number_belongs_to_its_loss(key: str, value: float, loss: str, native: str) -> None:
    given = f"{A}.{key}={value}"

    assert changed(f"{A}.policy_loss.loss_mode={loss}", given)[f"algorithm.{native}"] == value
    alone = verdict(f"{A}.{key}", f"{A}.policy_loss.loss_mode=gpg", given)
    assert alone.verdict == "without effect"
    assert loss in facts(alone.reason)


@pytest.mark.parametrize("loss", ["sapo", "geo_mean"])
def test_a_loss_with_an_average_of_its_own_ignores_the_aggregation_as_in_verl(loss: str) -> None:
    mode = f"{A}.policy_loss.loss_mode={loss}"

    assert verdict(f"{A}.loss_agg_mode", mode, f"{A}.loss_agg_mode=token-mean").verdict == "without effect"
    assert verdict(f"{A}.loss_agg_mode", mode, f"{A}.loss_agg_mode=seq-mean-token-mean").verdict == "honoured"


def test_gspo_takes_the_aggregation_that_is_given() -> None:
    mode = f"{A}.policy_loss.loss_mode=gspo"

    assert changed(mode, f"{A}.loss_agg_mode=token-mean")["algorithm.loss_aggregation"] == "token-mean"
    assert "algorithm.loss_aggregation" not in changed(mode)


def test_a_bound_below_zero_as_cispo_is_given_is_none() -> None:
    cispo = changed(f"{A}.policy_loss.loss_mode=cispo", f"{A}.clip_ratio_low=10", f"{A}.clip_ratio_high=0.2")

    assert cispo["algorithm.clip_low"] == 1.0
    assert verdict(f"{A}.clip_ratio_low", f"{A}.policy_loss.loss_mode=geo_mean", f"{A}.clip_ratio_low=10").verdict == (
        "refused"
    )


@pytest.mark.parametrize(("name", "native"), KL_NAMES.items())
@pytest.mark.parametrize("plus", ["", "+"])
def test_every_kl_estimate_has_its_name_here(name: str, native: str, plus: str) -> None:
    """In the reward, which has no gradient, a `+` adds nothing."""
    loss = changed(f"{A}.use_kl_loss=True", f"{A}.kl_loss_type={name}{plus}")
    reward = changed("algorithm.use_kl_in_reward=True", f"algorithm.kl_penalty={name}{plus}")

    assert loss == {"algorithm.kl_loss": native + plus}
    assert reward == {"algorithm.kl_in_reward": native}


def test_dapo_is_four_keys_of_verls() -> None:
    assert changed(
        *GROUPS,
        f"{A}.clip_ratio_high=0.28",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=seq_reward",
        "algorithm.filter_groups.max_num_gen_batches=5",
        "reward.reward_manager.name=dapo",
        f"+{OVERLONG}.enable=True",
        f"+{OVERLONG}.len=64",
        f"+{OVERLONG}.penalty_factor=0.5",
        f"+{OVERLONG}.log=False",
        "+reward.reward_kwargs.max_resp_len=256",
    ) == {
        "algorithm.name": "grpo",
        "algorithm.group_size": 4,
        "algorithm.clip_high": 0.28,
        "algorithm.dynamic_sampling": True,
        "algorithm.max_sampling_rounds": 5,
        "reward.overlong_buffer": 64,
        "reward.overlong_penalty": 0.5,
    }


def test_the_older_spellings_of_dapo_mean_the_same() -> None:
    old = "reward_model.overlong_buffer"

    assert (
        changed("reward_model.reward_manager=dapo", f"{old}.enable=True", f"{old}.len=64")["reward.overlong_buffer"]
        == 64
    )
    old = "reward_model.reward_kwargs.overlong_buffer_cfg"
    assert changed("reward_model.reward_manager=dapo", f"+{old}.enable=True", f"+{old}.len=32") == {
        "reward.overlong_buffer": 32
    }


@pytest.mark.parametrize(
    ("arguments", "key", "named"),
    [
        ([f"{OVERLONG}.enable=True", f"{OVERLONG}.len=64"], f"{OVERLONG}.len", "dapo"),
        ([f"{OVERLONG}.len=64"], f"{OVERLONG}.len", f"{OVERLONG}.enable"),
        (["algorithm.filter_groups.metric=acc"], "algorithm.filter_groups.metric", "filter_groups.enable"),
        ([f"{C}.rollout_is_threshold=3"], f"{C}.rollout_is_threshold", "rollout_is"),
        ([f"{C}.loss_type=reinforce"], f"{C}.loss_type", "bypass_mode"),
        (
            [f"{C}.bypass_mode=True", f"{C}.rollout_is=token"],
            f"{C}.rollout_is",
            "bypass_mode",
        ),
        (
            [f"{C}.bypass_mode=True", f"{A}.policy_loss.loss_mode=gspo"],
            f"{A}.policy_loss.loss_mode",
            "loss_type",
        ),
        ([*GROUPS, "algorithm.lam=0.9"], "algorithm.lam", "algorithm.name=grpo"),
    ],
)
def test_what_another_key_makes_idle_is_said(arguments: list[str], key: str, named: str) -> None:
    line = verdict(key, *arguments)

    assert line.verdict == "without effect"
    assert named in facts(line.reason)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rollout_is=token"], {"importance": "token", "truncate": 2.0}),
        (["rollout_is=token", "rollout_is_threshold=5.0"], {"importance": "token", "truncate": 5.0}),
        (["rollout_is=sequence", "rollout_is_threshold=0.5_5.0"], {"importance": "sequence", "band": (0.5, 5.0)}),
        (["rollout_is=token", "rollout_is_threshold=0.5_2"], {"importance": "token", "band": (0.5, 2.0)}),
        (["rollout_is=token", "rollout_is_threshold='2.0'"], {"importance": "token", "truncate": 2.0}),
        (
            ["rollout_is=token", "rollout_is_batch_normalize=True"],
            {"importance": "token", "truncate": 2.0, "normalize": True},
        ),
        (["rollout_rs=token_k1", "rollout_rs_threshold=0.8_1.25"], {"reject": ("token_k1:0.8_1.25",)}),
        (["rollout_rs=token_k1", "rollout_rs_threshold=2"], {"reject": ("token_k1:2",)}),
        (
            ["rollout_rs='token_k1,seq_max_k3'", "rollout_rs_threshold='0.6_1.6,0.01'"],
            {"reject": ("token_k1:0.6_1.6", "seq_max_k3:0.01")},
        ),
        (
            ["rollout_rs=[token_k2,token_k3]", "rollout_rs_threshold=0.02"],
            {"reject": ("token_k2:0.02", "token_k3:0.02")},
        ),
        (["rollout_rs=token", "rollout_rs_threshold=2"], {"reject": ("token_k1:0.5_2",)}),
        (
            ["rollout_rs=geometric", "rollout_rs_threshold=1.25", "rollout_rs_threshold_lower=0.5"],
            {"reject": ("seq_mean_k1:0.8_2",)},
        ),
        (["rollout_rs=sequence"], {"reject": ("seq_sum_k1:0.5_2",)}),
        (["rollout_is=null", "rollout_rs=null", "bypass_mode=False"], {}),
    ],
)
def test_corrections_become_the_off_policy_settings(arguments: list[str], expected: dict[str, Any]) -> None:
    """Names until 0.7.0 bounded the ratio itself, where k1 is the ratio turned over."""
    found = changed(*(f"{C}.{argument}" for argument in arguments))

    assert found == {f"off_policy.{key}": value for key, value in expected.items()}


def test_a_bypass_with_its_plain_loss_keeps_its_weights() -> None:
    for spelling in ("loss_type=reinforce", "use_policy_gradient=True"):
        assert changed(f"{C}.bypass_mode=True", f"{C}.{spelling}", f"{C}.rollout_is=token") == {
            "off_policy.bypass": True,
            "off_policy.importance": "token",
            "off_policy.truncate": 2.0,
            "algorithm.policy_loss": "reinforce",
        }


def test_gdpo_has_its_parts() -> None:
    found = changed(
        "algorithm.adv_estimator=gdpo",
        f"{R}.n=4",
        "+algorithm.gdpo_reward_keys=['format','correct']",
        "+algorithm.gdpo_reward_weights=[0.5,1]",
    )

    assert found["algorithm.gdpo.parts"] == ("format", "correct")
    assert found["algorithm.gdpo.weights"] == (0.5, 1.0)


@pytest.mark.parametrize(("section", "path"), [("reward.reward_model", "model_path"), ("reward_model", "model.path")])
def test_a_reward_model_scores_alone(section: str, path: str) -> None:
    model, switch = f"{section}.{path}=folder", f"{section}.enable=True"

    assert changed(switch, model) == {"reward.model": "folder", "reward.functions": ()}
    assert changed(model) == {}
    assert verdict(f"{section}.enable", switch).verdict == "refused"
    both = verdict(f"{section}.enable", switch, model, "custom_reward_function.path=a.py")
    assert both.verdict == "refused"


def test_the_mini_batch_of_verls_default_is_said_where_ours_is_another() -> None:
    line = verdict(f"{A}.ppo_mini_batch_size", "data.train_batch_size=1024")

    assert (line.verdict, line.value, facts(line.reason)) == ("not given", "256", {"1024"})
