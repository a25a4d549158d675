"""Asynchronous runs whose pools have processes of their own, and what remains when one of them ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from api.test_session_pools import processes
from fakes.processes import ended
from fakes.runs import cpu, settings, steps
from fakes.runs import train as train_here
from trainer.test_async import ASYNC, GRPO, numbers_of, rows_of

from rl_compat.config.load import load_config
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import WorkerError
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.reporter import SilentReporter
from rl_compat.trainer.training import Training

pytest.importorskip("ray")

POOLS = {"plan.device": "cpu", "pools.gen.roles": "rollout", "pools.gen.device": "cpu"}
DROPS = {"trainer.on_stale": "drop"}


class Strikes(SilentReporter):
    """A reporter that sends a signal to the process of a pool when a phase begins in step 2."""

    def __init__(self, number: int, *, phase: str) -> None:
        self.number, self.at_phase = number, phase
        self.pool: ResourcePool
        self.process = 0
        self._step = 0

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        del total
        self._step = done + 1 if name == "step" else self._step
        if self._step == 2 and name.startswith(self.at_phase) and not self.process:
            (self.process,) = processes(self.pool)
            os.kill(self.process, self.number)


def train(arguments: list[str], *, strikes: Strikes | None = None, pool: str = "gen") -> None:
    training = Training(load_config(None, arguments).config, cpu())
    if strikes is not None:
        strikes.pool = training.recipe.prepared.setup.pools[pool]
    try:
        training.run(strikes or SilentReporter())
    finally:
        training.close()


def add_up(run: Path) -> None:
    became, pending, drawn = numbers_of(run)
    assert sum(became.values()) + pending == drawn
    assert became["trained"] == 4 * find_newest(run / "checkpoints").step


@pytest.mark.slow
def test_the_end_of_the_rollout_ends_an_asynchronous_run_after_a_step_and_loses_nothing(
    llama_folder: Path, tmp_path: Path
) -> None:
    """One device continues the run of two."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    strikes = Strikes(signal.SIGKILL, phase="old_log_prob")
    with pytest.raises(WorkerError, match=r"^rank 0 ") as error:
        train(settings(llama_folder, run, GRPO, ASYNC, POOLS, num_steps=6, save_every=0), strikes=strikes)
    assert f"process {strikes.process}" in error.value.message
    assert ended(strikes.process)
    assert find_newest(run / "checkpoints").step == len(steps(run)) >= 1
    add_up(run)
    train_here(settings(llama_folder, run, GRPO, ASYNC, num_steps=6))
    train_here(settings(llama_folder, whole, GRPO, ASYNC, num_steps=6))
    assert rows_of(run) == rows_of(whole)
    add_up(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "pool", "phase", "part"),
    [
        (signal.SIGKILL, "main", "update_actor", {}),
        (signal.SIGKILL, "main", "old_log_prob", {"rollout.on_update": "abort"}),
        (signal.SIGSTOP, "main", "update_actor", {}),
        (signal.SIGSTOP, "gen", "gen", {"rollout.on_update": "wait"}),
        (signal.SIGKILL, "gen", "saving", DROPS),
        (signal.SIGKILL, "gen", "update_actor", {"trainer.batch_tokens": 80}),
    ],
)
def test_an_asynchronous_run_goes_on_after_the_end_of_a_process(
    number: int, pool: str, phase: str, part: dict[str, Any], llama_folder: Path, tmp_path: Path
) -> None:
    """The actor alone has the newest weights, so that its end costs the steps since the last checkpoint."""
    arguments = settings(llama_folder, tmp_path / "run", GRPO, ASYNC, POOLS, part, num_steps=5, save_every=1)
    strikes = Strikes(number, phase=phase)
    with pytest.raises(WorkerError, match=r"^rank 0 ") as error:
        train(arguments, strikes=strikes, pool=pool)
    assert f"process {strikes.process}" in error.value.message
    assert ended(strikes.process)
    assert find_newest(tmp_path / "run" / "checkpoints").step >= 1
    train(arguments)
    assert list(steps(tmp_path / "run")) == [1, 2, 3, 4, 5]
    became, pending, drawn = numbers_of(tmp_path / "run")
    assert sum(became.values()) + pending == drawn
    assert max(metrics["async/staleness/max"] for metrics in steps(tmp_path / "run").values()) <= 2


@pytest.mark.slow
def test_a_run_that_drops_learns_from_newer_responses_and_counts_the_others(llama_folder: Path, tmp_path: Path) -> None:
    """Several epochs of each batch make the actor slower than the rollout."""
    slow = {"algorithm.num_epochs": 6, "trainer.max_staleness": 4, "data.max_response_length": 4}
    ages, dropped = {}, {}
    for on_stale in ("wait", "drop"):
        run = tmp_path / on_stale
        train(settings(llama_folder, run, GRPO, ASYNC, POOLS, slow, {"trainer.on_stale": on_stale}, num_steps=12))
        of_step = steps(run)
        ages[on_stale] = sum(metrics["async/staleness/mean"] for metrics in of_step.values())
        dropped[on_stale] = sum(metrics.get("async/dropped/prompts", 0.0) for metrics in of_step.values())
        add_up(run)
        assert numbers_of(run)[0]["dropped"] == dropped[on_stale]
        assert max(metrics["async/staleness/max"] for metrics in of_step.values()) <= 4
    assert dropped["wait"] == 0 < dropped["drop"]
    assert ages["drop"] < ages["wait"]
