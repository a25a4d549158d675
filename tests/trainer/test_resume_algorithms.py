"""What an algorithm adds to a run survives the end of its process: A-CKPT-02 for those with more than PPO has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import COST, settings, steps, train
from safetensors.torch import load_file

from rl_compat.trainer.checkpoints import find_newest

GROUPS = {"data.val_files": "", "trainer.batch_size": 4, "trainer.mini_batch_size": 2}
RUNS: dict[str, dict[str, Any]] = {
    "remax": {"algorithm.name": "remax"},
    "dapo": {
        "algorithm.name": "dapo",
        "algorithm.group_size": 2,
        "algorithm.max_sampling_rounds": 3,
        "reward.function_arguments.at_least": 1,
    },
    "ppo_lagrangian": {
        "algorithm.name": "ppo_lagrangian",
        "algorithm.lagrangian.cost_limit": 0.5,
        "algorithm.lagrangian.lr": 0.05,
        "cost.functions": COST,
    },
}
NUM_STEPS = 4


def calls_of_reward(name: str, run: Path, num_steps: int) -> int:
    """How often the first steps of a run ask for rewards: once for each round, and once more for greedy responses."""
    of_step = steps(run)
    rounds = [int(of_step[step].get("training/num_gen_batches", 1)) for step in range(1, num_steps + 1)]
    return sum(rounds) + (num_steps if name == "remax" else 0)


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / f"step_{NUM_STEPS}"


def assert_same(run: Path, other: Path) -> None:
    """Metrics, weights and what the method carries are the same to the last bit."""
    assert steps(run) == steps(other)
    roles = sorted(path.parent.name for path in checkpoint(other).glob("*/weights.safetensors"))
    for role in roles:
        mine, others = (load_file(checkpoint(path) / role / "weights.safetensors") for path in (run, other))
        assert all(mine[name].equal(others[name]) for name in others)
    carried = [json.loads((checkpoint(path) / "trainer.json").read_text()) for path in (run, other)]
    for key in ("order", "recipe", "step"):
        assert carried[0][key] == carried[1][key]


@pytest.mark.parametrize("name", RUNS)
def test_kill_9_and_the_same_command_again_give_the_uninterrupted_run(
    name: str, llama_folder: Path, tmp_path: Path, on_one_core: list[str]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(settings(llama_folder, whole, GROUPS, RUNS[name], num_steps=NUM_STEPS))
    at_call = calls_of_reward(name, whole, 2) + 1
    when = {"signal": 9, "at_call": at_call, "once": tmp_path / "killed"}
    killed = {f"reward.function_arguments.{name}": value for name, value in when.items()}
    arguments = settings(llama_folder, run, GROUPS, RUNS[name], killed, num_steps=NUM_STEPS)
    command = [sys.executable, "-m", "rl_compat", "train", *on_one_core, *arguments]
    with (tmp_path / "shown").open("w") as shown:
        code = subprocess.run(command, stdout=shown, stderr=shown, timeout=240, check=False).returncode
    assert code == -signal.SIGKILL, (tmp_path / "shown").read_text()
    assert find_newest(run / "checkpoints").step == 2

    train(arguments)

    assert_same(run, whole)


def test_the_compared_runs_do_what_they_are_there_for(llama_folder: Path, tmp_path: Path) -> None:
    """Prompts are replaced and rows left over, the multiplier changes, and a greedy response is scored."""
    found = {}
    for name, own in RUNS.items():
        train(settings(llama_folder, tmp_path / name, GROUPS, own, num_steps=NUM_STEPS, keep_checkpoints=NUM_STEPS))
        found[name] = steps(tmp_path / name)
    assert "critic/greedy_score/mean" in found["remax"][1]

    dapo = found["dapo"]
    assert max(step["training/num_gen_batches"] for step in dapo.values()) > 1
    states = (tmp_path / "dapo" / "checkpoints").glob("*/trainer.json")
    assert any(len(json.loads(state.read_text())["recipe"]["left_over"]) > 0 for state in states)
    assert all(step["training/zero_spread_groups"] == 0 for step in dapo.values())

    prices = [step["cost/multiplier"] for step in found["ppo_lagrangian"].values()]
    assert len(set(prices)) == NUM_STEPS
    assert all(step["cost_critic/grad_norm"] > 0 for step in found["ppo_lagrangian"].values())
