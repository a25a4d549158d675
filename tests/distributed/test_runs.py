"""Whole runs on several processes: the numbers of one process, also after a failure and when they are resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.runs import GRPO_LORA, PPO, cpu, settings, steps

from rl_compat.config.load import load_config
from rl_compat.trainer.reporter import Reporter, SilentReporter
from rl_compat.trainer.run import RunOutcome
from rl_compat.trainer.training import Training

pytest.importorskip("ray")

STEADY = {"optimizer.schedule": "constant"}
"the rate does not depend on the number of steps"


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(arguments: list[str], *, reporter: Reporter | None = None, **plan: Any) -> RunOutcome:
    """What `rlc train` does on processes of the CPU."""
    on = [f"plan.{key}={value}" for key, value in {"device": "cpu", **plan}.items()]
    training = Training(load_config(None, [*arguments, *on]).config, cpu())
    try:
        return training.run(reporter or SilentReporter())
    finally:
        training.close()


def samples(run: Path) -> list[dict[str, Any]]:
    """The samples of a run. A validation between two steps takes numbers of groups, which its end after it does not."""
    lines = map(json.loads, (run / "samples.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "group"} for line in lines]


def assert_same(run: Path, other: Path) -> None:
    mine, others = steps(run), steps(other)
    assert list(mine) == list(others)
    for step, metrics in mine.items():
        assert metrics == pytest.approx(others[step], rel=1e-4, abs=1e-5), step
    if (other / "samples.jsonl").exists():
        assert samples(run) == samples(other)


def test_two_processes_train_as_one_does_and_one_process_continues_their_run(
    llama_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """CKPTD-03; nothing of Ray is on the console."""
    one, two = tmp_path / "one", tmp_path / "two"
    train(settings(llama_folder, one, PPO, STEADY, num_steps=4))
    capfd.readouterr()
    outcome = train(settings(llama_folder, two, PPO, STEADY, num_steps=3), num_devices=2)
    assert (outcome.ending, outcome.step) == ("finished", 3)
    assert capfd.readouterr() == ("", "")
    train(settings(llama_folder, two, PPO, STEADY, num_steps=4))
    assert_same(two, one)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 4)])
def test_a_run_continues_on_more_processes(first: int, then: int, llama_folder: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    train(settings(llama_folder, one, GRPO_LORA, STEADY, num_steps=4))
    train(settings(llama_folder, other, GRPO_LORA, STEADY, num_steps=2), num_devices=first)
    train(settings(llama_folder, other, GRPO_LORA, STEADY, num_steps=4), num_devices=then)
    assert_same(other, one)
