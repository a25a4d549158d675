"""Every example runs as it stands, in a folder of its own, and its model learns."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from rl_compat.hardware import probe

EXAMPLES = Path(__file__).parents[1] / "examples"
probe_once = cache(probe.probe)


def column(text: str, word: str, *, of: str = "") -> list[float]:
    """The numbers after a word, of the lines that begin with `of`."""
    lines = [line for line in text.splitlines() if line.startswith(of)]
    return [float(found.group(1)) for line in lines if (found := re.search(rf"\b{word} (-?[0-9.]+)", line))]


def mean(values: Sequence[float]) -> float:
    assert values
    return sum(values) / len(values)


def rise(values: Sequence[float]) -> float:
    """The mean of the last four minus that of the first four."""
    assert len(values) >= 8
    return mean(values[-4:]) - mean(values[:4])


def best_is_better(text: str) -> bool:
    return column(text, "best")[0] > column(text, "all")[0] + 0.3


CHECKS: dict[str, Callable[[str], bool]] = {
    "best_of_n": best_is_better,
    "custom_reward": lambda text: rise(column(text, "reward")) > 0,
    "dpo": lambda text: rise(column(text, "loss")) < 0,
    "grpo": lambda text: rise(column(text, "reward")) > 0,
    "grpo_pool": lambda text: rise(column(text, "reward")) > 0,
    "mixed_pools": lambda text: (
        rise(column(text, "reward")) > 0 and text.count("computes in bf16") == 2 and text.count("computes in fp32") == 1
    ),
    "ppo": lambda text: rise(column(text, "reward")) > 0.2,
    "ppo_two_pools": lambda text: rise(column(text, "reward")) > 0,
    "replace_reward": lambda text: (
        len(column(text, "reward", of="short")) == len(column(text, "reward", of="correct")) == 6
        and column(text, "reward", of="correct")[0] != column(text, "reward", of="short")[-1]
    ),
    "reward_model_then_ppo": lambda text: (
        rise(column(text, "loss", of="judge")) < 0 and rise(column(text, "reward", of="ppo")) > 0
    ),
    "safe_rlhf_cost_pool": lambda text: (
        rise(column(text, "loss", of="cost model")) < 0 and column(text, "multiplier", of="ppo")[-1] < 1.0
    ),
    "sft_then_ppo": lambda text: (
        rise(column(text, "loss", of="sft")) < -0.1 and mean(column(text, "reward", of="ppo")) > 0.3
    ),
}
SLOW = ("grpo_pool", "mixed_pools", "replace_reward", "safe_rlhf_cost_pool")
"examples that start several processes or train three models"
RAY = ("grpo_pool", "mixed_pools", "ppo_two_pools", "safe_rlhf_cost_pool")


def test_every_example_has_a_check_and_fits_on_a_page() -> None:
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}

    assert files.keys() == CHECKS.keys()
    assert [name for name, path in files.items() if len(path.read_text().splitlines()) >= 60] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CHECKS]
)
def test_an_example_learns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported torch and transformers already, on a machine that is read once."""
    if name in RAY:
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(probe, "probe", probe_once)
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    shown = capsys.readouterr().out

    assert CHECKS[name](shown), shown
