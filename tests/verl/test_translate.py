"""verl's command lines: what becomes of each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.facts import facts
from fakes.verl_settings import judge_config, load_config

from rl_compat.config.load import LoadedConfig
from rl_compat.config.report import COLUMNS, KeyVerdict, render_report, warnings_of
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.errors import ConfigError
from rl_compat.verl.keys.table import DEFAULTS_THAT_DIFFER, KEYS
from rl_compat.verl.translate import find_rule, parse_literal

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

P40_COMMAND = (Path(__file__).parent / "p40_command.txt").read_text(encoding="utf-8").split()

QUICKSTART_COMMAND = (Path(__file__).parent / "quickstart_command.txt").read_text(encoding="utf-8").split()


def load(*arguments: str) -> LoadedConfig:
    return load_config(None, arguments)


def verdict_of(key: str, *arguments: str) -> KeyVerdict:
    return next(line for line in load(*arguments).report if line.key == key)


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_the_command_for_a_p40_is_understood() -> None:
    loaded = load(*P40_COMMAND)

    assert {k: v for k, v in values_of(loaded.config).items() if v != settings()[k].default} == {
        "model.path": "model",
        "model.critic_path": "model",
        "data.train_files": ("data/train.parquet",),
        "data.val_files": ("data/test.parquet",),
        "data.max_prompt_length": 256,
        "rollout.max_num_seqs": 1,
        "rollout.max_num_batched_tokens": 512,
        "rollout.gpu_memory_utilization": 0.3,
        "trainer.batch_size": 1,
        "trainer.mini_batch_size": 1,
        "trainer.num_epochs": 2,
        "trainer.validate_every": 10,
        "trainer.validate_before": False,
        "trainer.loggers": ("console",),
        "plan.offload_idle_models": True,
        "plan.micro_batch_size": 1,
    }
    assert loaded.sources["trainer.batch_size"] == "verl"


def test_the_command_for_a_p40_has_a_verdict_on_every_key() -> None:
    """Two keys that verl never had become offload with a warning; the inert KL coefficient is warned about."""
    report = load(*P40_COMMAND).report

    assert {line.key for line in report if line.verdict != "not given"} == {a.split("=")[0] for a in P40_COMMAND}
    assert {line.key for line in report if line.warn} == {
        "actor_rollout_ref.fsdp_config.cpu_offload",
        "actor_rollout_ref.fsdp_config.offload_params",
        "algorithm.kl_ctrl.kl_coef",
    }
    assert all(line.reason for line in report if line.verdict in ("translated", "without effect"))


def test_the_quickstart_is_understood() -> None:
    config = load(*QUICKSTART_COMMAND).config

    assert (config.trainer.batch_size, config.trainer.mini_batch_size, config.trainer.num_epochs) == (256, 64, 15)
    assert config.plan.micro_batch_size == 4
    assert config.rollout.engine == "auto"
    assert config.algorithm.kl_in_reward == "none"
    assert config.model.path == config.model.critic_path == "Qwen/Qwen2.5-0.5B-Instruct"


def test_disabled_logprobs_were_never_a_key_and_change_nothing() -> None:
    line = verdict_of(f"{R}.disable_logprobs", f"+{R}.disable_logprobs=true")

    assert line.verdict == "without effect"
    assert line.warn


def test_every_refused_key_is_named_at_once() -> None:
    message = refusal("algorithm.adv_estimator=sarsa", f"{R}.ignore_eos=true")

    assert {"algorithm.adv_estimator=sarsa", f"{R}.ignore_eos=true"} <= facts(message)


@pytest.mark.parametrize(
    ("argument", "close"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batchsize=1", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("+actor_rollout_ref.rollot.n=2", "actor_rollout_ref.rollout.n"),
        ("algorithm.adv_estimater=gae", "algorithm.adv_estimator"),
        ("trainer.total_epoch=3", "trainer.total_epochs"),
        ("~critic.model.paht", "critic.model.path"),
    ],
)
def test_an_unknown_key_of_verl_gets_the_nearest(argument: str, close: str) -> None:
    """A-UX-05."""
    with pytest.raises(ConfigError) as caught:
        load(argument)

    assert argument in facts(caught.value.message)
    assert facts(caught.value.hint) == {close}


@pytest.mark.parametrize(
    "argument",
    [
        "data.train_batch_size=many",
        f"{A}.optim.lr=fast",
        f"{A}.optim.lr_warmup_steps=few",
        "trainer.nnodes=one",
        "trainer.logger=[[a]",
    ],
)
def test_a_value_of_the_wrong_kind_names_the_argument(argument: str) -> None:
    assert argument in facts(refusal(argument))


def test_a_native_key_wins_over_one_of_verls() -> None:
    loaded = load("trainer.batch_size=4", "data.train_batch_size=8")

    assert loaded.config.trainer.batch_size == 4
    line = next(line for line in loaded.report if line.key == "data.train_batch_size")
    assert (line.verdict, line.warn) == ("without effect", True)
    assert facts(line.reason) == {"trainer.batch_size"}


def test_keys_of_a_critic_have_no_effect_under_grpo() -> None:
    loaded = load("algorithm.adv_estimator=grpo", f"{R}.n=4", "critic.optim.lr=1e-4", "critic.ppo_epochs=3")

    assert loaded.config.optimizer.critic_lr == RunConfig().optimizer.critic_lr
    assert loaded.config.algorithm.num_epochs == 1
    assert verdict_of(
        "critic.optim.lr", "algorithm.adv_estimator=grpo", f"{R}.n=4", "critic.optim.lr=1e-4"
    ).verdict == ("without effect")


def test_defaults_of_verl_that_differ_are_listed_with_ours() -> None:
    line = verdict_of("data.max_response_length", "data.train_batch_size=8")

    assert (line.value, line.verdict, facts(line.reason)) == ("512", "not given", {"256"})
    assert all(value != str(settings()[native].default) for value, native in DEFAULTS_THAT_DIFFER.values())


def test_a_judged_command_has_the_values_of_what_is_honoured_and_a_verdict_on_the_rest() -> None:
    loaded = judge_config(None, ["+data.train_batch_size=8", f"{R}.ignore_eos=true", "trainer.nnode=1"])

    assert loaded.config.trainer.batch_size == 8
    assert [(line.key, line.verdict, facts(line.hint)) for line in loaded.report[:3]] == [
        ("data.train_batch_size", "honoured", set()),
        (f"{R}.ignore_eos", "refused", set()),
        ("trainer.nnode", "refused", {"trainer.nnodes"}),
    ]


def test_a_judged_command_names_the_key_whose_setting_validation_refuses() -> None:
    loaded = judge_config(None, ["data.train_batch_size=8", f"{A}.ppo_mini_batch_size=3"])

    line = next(line for line in loaded.report if line.verdict == "refused")
    assert (line.key, line.native_key) == (f"{A}.ppo_mini_batch_size", "trainer.mini_batch_size")
    assert {"trainer.mini_batch_size", "3", "trainer.batch_size", "8"} <= facts(line.reason)


def test_the_report_has_a_row_per_key() -> None:
    report = load("data.train_batch_size=8", "algorithm.kl_ctrl.kl_coef=0.1").report
    rows = render_report(report)

    assert rows[0] == ("data.train_batch_size", "8", "honoured", "trainer.batch_size", "prompts")
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert [sentence.split("`")[1] for sentence in warnings_of(report)] == ["algorithm.kl_ctrl.kl_coef=0.1"]


def test_a_pattern_is_less_than_an_exact_key() -> None:
    assert find_rule("algorithm.filter_groups.enable") is KEYS["algorithm.filter_groups.enable"]
    assert find_rule("algorithm.filter_groups.metrics") is KEYS["algorithm.filter_groups.*"]
    assert find_rule("algorithm.filter_group.metric") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("True", True),
        ("1e-6", 1e-6),
        ("10", 10),
        ("'10'", "10"),
        ("['a', \"b\", 3]", ["a", "b", 3]),
        ("{a: 1, b: {c: null}}", {"a": 1, "b": {"c": None}}),
        ("bare text", "bare text"),
        ("TRUE", True),
        ("console,wandb", ["console", "wandb"]),
        ("'a,b'", "a,b"),
        (r"a\,b\=c", "a,b=c"),
        ("", ""),
    ],
)
def test_a_literal_is_read_as_hydra_reads_it(text: str, value: Any) -> None:
    assert parse_literal(text) == value
