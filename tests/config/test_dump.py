"""A configuration survives being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_compat.config.load import load_config
from rl_compat.config.settings import replace
from rl_compat.config.toml_file import to_toml
from rl_compat.config.types import RunConfig

CHANGED = {
    "model.critic_path": 'folder with "quotes", commas and \\ signs',
    "model.chat_template": "zeile\numbruch \x7f ünïcode",
    "data.train_files": ("a, b.parquet", "c's.parquet"),
    "data.val_files": (),
    "reward.functions": ("gsm8k", "own.py:score"),
    "reward.weights": (1.0, 1e-12),
    "reward.function_arguments": {"bonus": "0.5", "odd name": "x = y"},
    "algorithm.clip_dual": None,
    "algorithm.clip_value": None,
    "optimizer.actor_lr": 3e-07,
    "optimizer.betas": (0.9, 0.95),
    "trainer.num_steps": 12,
    "trainer.max_seconds": 1e9,
    "plan.gradient_checkpointing": True,
    "plan.offload_optimizer": False,
    "plan.micro_batch_size": 4,
    "plan.max_tokens_per_micro_batch": 4096,
}


@pytest.mark.parametrize("config", [RunConfig(), replace(RunConfig(), CHANGED)], ids=["defaults", "changed"])
def test_what_is_written_reads_back_the_same(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(config), encoding="utf-8")

    assert load_config(path).config == config


def test_a_setting_stands_under_its_sentence() -> None:
    assert "# prompts per step\nbatch_size = 32\n" in to_toml(RunConfig())


def test_a_written_configuration_changes_nothing_and_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(RunConfig()), encoding="utf-8")

    assert load_config(path).report == ()
