"""The schedule and the version of each role follow the batches that it learns from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from fakes.runs import PPO, settings, steps, train

from rl_compat.errors import CheckpointError
from rl_compat.training.optimizers import learning_rate

WARM = {"algorithm.critic_warmup_steps": 2, "data.val_files": ""}
PER_BATCH = 4
"optimizer steps: two epochs of two mini-batches"


def rate(step: float, *, num_batches: int) -> float:
    return learning_rate(step, lr=1e-3, schedule="cosine", warmup_steps=2, total_steps=num_batches * PER_BATCH)


def versions(run: Path, step: int) -> dict[str, int]:
    folders = run / "checkpoints" / f"step_{step}"
    return {role: json.loads((folders / role / "worker.json").read_text())["version"] for role in ("actor", "critic")}


def test_the_schedule_of_the_actor_ends_with_the_run_also_after_a_warm_up_of_the_critic(
    llama_folder: Path, tmp_path: Path
) -> None:
    run, parts = tmp_path / "run", tmp_path / "parts"
    train(settings(llama_folder, run, PPO, WARM, num_steps=4, keep_checkpoints=4))
    last_of_batch = [rate((batch + 1) * PER_BATCH - 1, num_batches=4) for batch in range(4)]
    assert [steps(run)[step]["critic/lr"] for step in range(1, 5)] == pytest.approx(last_of_batch)
    of_actor = [rate((batch + 1) * PER_BATCH - 1, num_batches=2) for batch in range(2)]
    assert [steps(run)[step]["actor/lr"] for step in (3, 4)] == pytest.approx(of_actor)
    assert versions(run, 2) == {"actor": 0, "critic": 2}
    assert versions(run, 4) == {"actor": 2, "critic": 4}

    for num_steps in (3, 4):
        train([*settings(llama_folder, parts, PPO, WARM, keep_checkpoints=4), f"trainer.num_steps={num_steps}"])
    assert versions(parts, 4) == versions(run, 4)


def test_a_smaller_batch_of_dynamic_sampling_advances_the_schedule_by_as_much(
    llama_folder: Path, tmp_path: Path
) -> None:
    dynamic = {
        "algorithm.name": "grpo",
        "algorithm.group_size": 2,
        "algorithm.dynamic_sampling": "true",
        "algorithm.max_sampling_rounds": 1,
        "optimizer.schedule": "linear",
        "trainer.mini_batch_size": 1,
        "data.val_files": "",
    }
    run = tmp_path / "run"
    train(settings(llama_folder, run, dynamic, num_steps=3))
    of_step = steps(run)
    kept = [of_step[step]["training/filter_groups/kept_prompts"] for step in (1, 2, 3)]
    assert min(kept) < 8
    expected = [1e-3 * (1 - (step - 1 / max(1, num)) / 3) for step, num in zip((1, 2, 3), kept, strict=True)]
    assert [of_step[step]["actor/lr"] for step in (1, 2, 3)] == pytest.approx(expected)


def test_a_checkpoint_of_another_format_is_refused_with_both_numbers(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = settings(llama_folder, run, PPO, num_steps=1)
    train(arguments)
    state = run / "checkpoints" / "step_1" / "trainer.json"
    plain = json.loads(state.read_text())
    assert plain.pop("format") == 2
    state.write_text(json.dumps(plain))
    manifest = run / "checkpoints" / "step_1" / "manifest.json"
    listed = json.loads(manifest.read_text())
    listed["files"]["trainer.json"] = {
        "bytes": state.stat().st_size,
        "sha256": hashlib.sha256(state.read_bytes()).hexdigest(),
    }
    manifest.write_text(json.dumps(listed))
    with pytest.raises(CheckpointError) as stop:
        train([*arguments, "trainer.num_steps=2"])
    assert "format 1" in stop.value.message and "format 2" in stop.value.message
    assert "`rlc export`" in str(stop.value.hint)
