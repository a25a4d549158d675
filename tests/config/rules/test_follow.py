"""A value that nobody gave gives way to one that somebody gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from fakes.facts import facts

from rl_compat.config.given import embedded_runs
from rl_compat.config.load import LoadedConfig, load_config, load_values
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import alternatives, choices_of, violations
from rl_compat.errors import ConfigError

CANNOT_BOTH_HOLD = {
    "algorithm.critic_warmup_steps",
    "data.mixture_weights",
    "plan.max_tokens_per_micro_batch",
    "plan.num_shards",
    "plan.quantization",
    "plan.tensor_parallel",
    "reward.overlong_buffer",
    "reward.weights",
    "rollout.max_model_len",
    "rollout.tensor_parallel",
    "trainer.flow",
}
"settings with values that no value of another setting can follow: a hundred tokens of a response of at most four"


def values_of_type(key: str) -> Iterator[Any]:
    """Values of every kind that a setting allows."""
    setting = settings()[key]
    tried: list[Any] = []
    for hint in alternatives(setting.hint):
        if get_origin(hint) is Literal:
            tried += get_args(hint)
        elif get_origin(hint) is tuple:
            tried += [choices_of(hint)[:2], ("a.py:f", "b.py:g"), (0.5, 0.9)]
        else:
            tried += [True, False, 1, 3, 16, 100, 4096, 0.3, 2.0]
    fitting = [value for value in tried if value != () and not violations(value, setting.annotation)]
    return iter([] if key == "off_policy.reject" else fitting)


def loaded(run: str, *arguments: str) -> LoadedConfig:
    return load_config(embedded_runs()[run], arguments)


@pytest.mark.parametrize("run", embedded_runs())
def test_one_setting_over_a_shipped_run_is_refused_only_where_both_cannot_hold(run: str) -> None:
    for key in settings():
        for value in values_of_type(key):
            problems, config, report = judged(run, key, value)
            if (key, value) == ("algorithm.name", "ppo_lagrangian") or (problems and key in CANNOT_BOTH_HOLD):
                assert (problems & set(settings())) - {key}, f"{key}={value} without the other setting"
                continue
            assert not problems, f"{key}={value}"
            assert values_of(config)[key] == value
            assert {line.key for line in report} <= {key}, "there is no warning about another setting"


def judged(run: str, key: str, value: Any) -> tuple[set[str], RunConfig, tuple[KeyVerdict, ...]]:
    """The facts of the refusal, or the configuration and its report."""
    try:
        read = load_values(embedded_runs()[run], {key: value})
    except ConfigError as error:
        return facts(error.message), RunConfig(), ()
    return set(), read.config, read.report


def test_both_settings_and_where_they_come_from_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("sums", "reward.overlong_buffer=100")
    assert {"reward.overlong_buffer=100", "100", "data.max_response_length", "4", "sums"} <= facts(caught.value)


@pytest.mark.parametrize(
    ("run", "argument", "followed"),
    [
        ("sums", "trainer.batch_size=16", {"trainer.mini_batch_size": 16}),
        ("sums", "trainer.batch_size=48", {"trainer.mini_batch_size": 24}),
        ("sums", "trainer.batch_size=64", {}),
        ("sums", "trainer.batch_size=127", {"trainer.mini_batch_size": 127}),
        ("sums", "trainer.mini_batch_size=48", {"trainer.batch_size": 144}),
        ("sums", "trainer.mini_batch_size=256", {"trainer.batch_size": 256}),
        ("sums", "trainer.mini_batch_size=16", {}),
        ("sums", "algorithm.name=grpo", {"algorithm.group_size": 8}),
        ("gsm8k", "algorithm.name=grpo", {"algorithm.group_size": 8}),
        ("sums", "algorithm.dynamic_sampling=true", {"algorithm.group_size": 8}),
        ("sums", "algorithm.group_size=4", {}),
        (
            "sums",
            "algorithm.name=dapo",
            {
                "algorithm.group_size": 8,
                "algorithm.clip_high": 0.28,
                "algorithm.dynamic_sampling": True,
                "algorithm.loss_aggregation": "token-mean",
                "reward.overlong_buffer": 0,
            },
        ),
        (
            "sums",
            "algorithm.name=gdpo",
            {
                "algorithm.group_size": 8,
                "algorithm.kl_in_reward": "none",
                "algorithm.kl_loss": "k3",
                "algorithm.kl_loss_coef": 0.01,
            },
        ),
        ("gsm8k", "reward.functions=a.py:f", {"reward.weights": ()}),
        ("gsm8k", "reward.functions=a.py:f,b.py:g", {"reward.weights": ()}),
        (
            "gsm8k",
            "data.train_files=a.jsonl",
            {"data.val_files": (), "reward.functions": ("auto",), "reward.weights": ()},
        ),
        ("sft-gsm8k", "trainer.num_steps=5", {"optimizer.warmup_steps": 0}),
        ("sft-gsm8k", "trainer.num_steps=15", {"optimizer.warmup_steps": 1}),
        ("sft-gsm8k", "trainer.num_steps=50", {}),
        ("sft-gsm8k", "algorithm.name=reward_model", {"optimizer.actor_lr": 1e-5}),
    ],
)
def test_what_follows_a_setting_of_a_shipped_run(run: str, argument: str, followed: dict[str, Any]) -> None:
    before, after = loaded(run), loaded(run, argument)

    key = argument.partition("=")[0]
    old, new = values_of(before.config), values_of(after.config)
    changed = {name: value for name, value in new.items() if value != old[name] and name != key}
    assert changed == {name: value for name, value in followed.items() if value != old[name]}
    assert {name for note in after.notes[1:] for name in facts(note) & set(settings())} <= {key, *changed}


def test_the_batch_follows_a_mini_batch_that_is_given_alone() -> None:
    assert load_config(None, ["trainer.mini_batch_size=64"]).config.trainer.batch_size == 64
    assert load_config(None, ["trainer.mini_batch_size=8"]).config.trainer.batch_size == 32


def test_what_is_given_in_a_file_of_the_user_does_not_give_way(tmp_path: Any) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[trainer]\nbatch_size = 128\nmini_batch_size = 32\n", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_config(path, ["trainer.batch_size=16"])
    assert {"trainer.batch_size=16", "trainer.mini_batch_size", str(path), "3"} <= facts(caught.value.message)


@pytest.mark.parametrize(
    ("given", "importance"),
    [
        ("off_policy.reject=token_k1:0.8_1.25", "token"),
        ("off_policy.importance=sequence", "sequence"),
        ("off_policy.importance=none", "none"),
        ("off_policy.bypass=true", "none"),
        ("trainer.max_staleness=0", "none"),
    ],
)
def test_the_ratio_of_stale_responses_is_applied_unless_another_setting_does(given: str, importance: str) -> None:
    assert loaded("sums", "trainer.flow=async", given).config.off_policy.importance == importance
