"""Whole runs on the CPU: a tiny model, sums, and a reward that random answers differ in."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_compat.config.load import load_config
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware
from rl_compat.trainer.reporter import Reporter, SilentReporter
from rl_compat.trainer.run import RunOutcome
from rl_compat.trainer.training import Training

RECORDINGS = Path(__file__).parents[1] / "recordings"
REWARD = f"{Path(__file__).with_name('digit_reward.py')}:compute_scores"
COST = f"{Path(__file__).with_name('length_cost.py')}:compute_scores"
SMALL = {
    "data.train_files": "arithmetic",
    "data.val_files": "arithmetic",
    "data.max_train_samples": 16,
    "data.max_val_samples": 8,
    "data.max_prompt_length": 16,
    "data.max_response_length": 8,
    "reward.functions": REWARD,
    "optimizer.actor_lr": 1e-3,
    "optimizer.critic_lr": 1e-3,
    "trainer.batch_size": 8,
    "trainer.mini_batch_size": 4,
    "trainer.save_every": 1,
    "trainer.loggers": "jsonl",
}
PPO = {
    "algorithm.gae_lambda": 0.95,
    "algorithm.kl_in_reward": "k1",
    "algorithm.kl_controller.type": "adaptive",
    "algorithm.kl_coef": 0.05,
    "algorithm.kl_controller.horizon": 50,
    "algorithm.entropy_coef": 0.01,
    "algorithm.num_epochs": 2,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_steps": 2,
}
GRPO_LORA = {
    "algorithm.name": "grpo",
    "algorithm.group_size": 4,
    "algorithm.kl_loss": "k3",
    "model.lora_rank": 4,
    "model.lora_dropout": 0.1,
    "trainer.batch_size": 4,
    "trainer.mini_batch_size": 2,
}


class Lines(SilentReporter):
    """A reporter that keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def settings(model: Path, output: Path, *parts: dict[str, Any], **trainer: Any) -> list[str]:
    """Arguments of `rlc train`; later parts win, and keywords are settings of the trainer."""
    values = {"model.path": model, "trainer.output_dir": output} | SMALL
    for part in (*parts, {f"trainer.{key}": value for key, value in trainer.items()}):
        values |= part
    return [f"{key}={value}" for key, value in values.items()]


def cpu() -> Hardware:
    """A machine with one core and no GPU."""
    laptop = load_recording(RECORDINGS / "laptop_no_gpu.json")
    return replace(laptop, host=replace(laptop.host, num_cores=1))


def train(arguments: list[str], *, reporter: Reporter | None = None) -> RunOutcome:
    """What `rlc train` does, with a reporter of the caller's."""
    training = Training(load_config(None, arguments).config, cpu())
    try:
        return training.run(reporter or SilentReporter())
    finally:
        training.close()


def records(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps(run: Path) -> dict[int, dict[str, Any]]:
    """The metrics of each training step, without those that measure time."""
    return {
        record["step"]: {key: value for key, value in record.items() if not key.startswith(("timing_s/", "perf/"))}
        for record in records(run)
        if "training/global_step" in record
    }


def copy_at_step(run: Path, to: Path, step: int) -> Path:
    """The folder of a run as it was when a process ended after the step had been saved."""
    shutil.copytree(run, to)
    for folder in (to / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step_")) > step:
            shutil.rmtree(folder)
    settings_file = to / "run.toml"
    settings_file.write_text(settings_file.read_text().replace(str(run), str(to)))
    return to


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
