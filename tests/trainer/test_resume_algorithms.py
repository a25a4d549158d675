"""What an algorithm adds to a run survives the end of its process.

A-CKPT-02 for those with more than PPO has, and CKPTD-02: prompts that dynamic sampling has left over are trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import COST, copy_at_step, settings, steps, train
from safetensors.torch import load_file

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


Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def whole(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The uninterrupted run of each algorithm, with all of its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")

    def trained(name: str) -> Path:
        arguments = settings(llama_folder, folder / name, GROUPS, RUNS[name], num_steps=NUM_STEPS)
        train([*arguments, f"trainer.keep_checkpoints={NUM_STEPS}"])
        return folder / name

    return cache(trained)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_whose_process_ended_after_a_save_gives_the_uninterrupted_run(
    name: str, whole: Whole, llama_folder: Path, tmp_path: Path
) -> None:
    run = copy_at_step(whole(name), tmp_path / "run", 2)

    train(settings(llama_folder, run, GROUPS, RUNS[name], num_steps=NUM_STEPS, keep_checkpoints=NUM_STEPS))

    assert_same(run, whole(name))


def test_the_compared_runs_do_what_they_are_there_for(whole: Whole) -> None:
    """Prompts are replaced and rows left over, the multiplier changes, and a greedy response is scored."""
    found = {name: steps(whole(name)) for name in RUNS}
    assert "critic/greedy_score/mean" in found["remax"][1]

    dapo = found["dapo"]
    assert max(step["training/num_gen_batches"] for step in dapo.values()) > 1
    states = (whole("dapo") / "checkpoints").glob("*/trainer.json")
    assert any(len(json.loads(state.read_text())["pending"]) > 0 for state in states)
    assert all(step["training/zero_spread_groups"] == 0 for step in dapo.values())

    prices = [step["cost/multiplier"] for step in found["ppo_lagrangian"].values()]
    assert len(set(prices)) == NUM_STEPS
    assert all(step["cost_critic/grad_norm"] > 0 for step in found["ppo_lagrangian"].values())
