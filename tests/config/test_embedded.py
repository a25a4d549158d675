"""The shipped settings files are valid runs."""

from __future__ import annotations

import pytest

from rl_compat.cli.common import read_settings
from rl_compat.config.embedded import embedded_runs
from rl_compat.config.load import load_config


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


def test_a_shipped_run_can_be_named_and_changed() -> None:
    config = read_settings(["gsm8k-cpu", "trainer.num_steps=3"]).config
    assert config.trainer.num_steps == 3
    assert config.trainer.batch_size == 8


def test_settings_alone_start_from_the_defaults() -> None:
    assert read_settings(["trainer.num_steps=3"]).config.trainer.batch_size == 32
