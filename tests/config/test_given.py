"""The shipped settings files are valid runs."""

from __future__ import annotations

import pytest
from fakes.facts import facts

from rl_compat.cli.common import read_settings
from rl_compat.config.given import embedded_runs
from rl_compat.config.load import load_config
from rl_compat.config.settings import replace


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k-cpu"])
def test_a_shipped_run_loads_and_is_ppo_on_gsm8k(name: str) -> None:
    config = load_config(embedded_runs()[name]).config
    assert (config.algorithm.name, config.data.train_files) == ("ppo", ("gsm8k",))
    assert config.trainer.output_dir == f"runs/{name}"


def test_the_shipped_sums_train_the_tiny_model() -> None:
    config = load_config(embedded_runs()["sums"]).config
    assert (config.model.path, config.data.train_files) == ("tiny", ("arithmetic",))


def test_nothing_asked_for_is_the_shipped_gsm8k_run() -> None:
    assert read_settings([]).config == load_config(embedded_runs()["gsm8k"]).config


@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("trainer.num_steps=5", {"trainer.num_steps": 5}),
        ("model.path=tiny", {"model.path": "tiny"}),
        ("optimizer.actor_lr=1e-6", {"optimizer.actor_lr": 1e-6}),
        ("trainer.batch_size=64", {"trainer.batch_size": 64}),
        ("data.train_files=gsm8k", {}),
        ("algorithm.name=ppo", {}),
    ],
)
def test_a_setting_changes_what_it_names_in_the_shipped_run_and_nothing_else(
    argument: str, changed: dict[str, object]
) -> None:
    loaded = read_settings([argument])

    assert loaded.config == replace(read_settings([]).config, changed)
    assert facts(loaded.notes[0]) == {"gsm8k", argument.partition("=")[0]}
    assert len(loaded.notes) == 1


def test_a_shipped_run_can_be_named_and_changed() -> None:
    config = read_settings(["gsm8k-cpu", "trainer.num_steps=3"]).config
    assert config.trainer.num_steps == 3
    assert config.trainer.batch_size == 8


@pytest.mark.parametrize("argument", ["data.train_batch_size=16", "algorithm.name=sft", "algorithm=dpo"])
def test_keys_of_verl_and_offline_data_start_from_the_defaults(argument: str) -> None:
    config = read_settings([argument]).config
    assert (config.trainer.num_steps, config.optimizer.critic_lr) == (None, 1e-5)
