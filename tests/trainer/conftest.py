"""One uninterrupted run that several tests compare with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.runs import PPO, cpu, settings, train

from rl_compat.hardware.recording import save_recording


@pytest.fixture(scope="session", autouse=True)
def threads() -> Iterator[None]:
    """Runs set torch's threads; the number of before comes back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def whole_ppo_run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of PPO with critic, reference, adaptive KL and a cosine schedule, over three epochs of the data."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(settings(llama_folder, folder, PPO, num_steps=6, keep_checkpoints=6, loggers="jsonl,tensorboard"))
    return folder


@pytest.fixture(scope="session")
def on_one_core(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a command that runs on one core, as `train` here does: the number of threads shows in last digits."""
    recording = tmp_path_factory.mktemp("hardware") / "one_core.json"
    save_recording(cpu(), recording)
    return ["--hardware", str(recording)]
