"""Derived seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rl_compat import seeds


@pytest.mark.parametrize("seed", [0, 1, 18_446_634, 2**63 - 1, 2**63, 2**64, 2**200, -3])
def test_every_seed_gives_one_that_torch_accepts(seed: int) -> None:
    derived = seeds.derive(seed, "update", 3)
    assert 0 <= derived < 2**63
    torch.Generator().manual_seed(derived)


def test_paths_and_seeds_do_not_collide() -> None:
    paths: list[tuple[int | str, ...]] = [(), ("a",), ("a", 1), ("a", 11), ("a", 1, 1), ("a1",), (1, "a"), ("1",), (1,)]
    found = {seeds.derive(seed, *path) for seed in (0, 1, 2**63, 2**64) for path in paths}
    found |= {seeds.derive(0, "update", step) for step in range(10_000)}
    assert len(found) == 4 * len(paths) + 10_000


def test_the_value_is_the_same_in_every_process() -> None:
    code = "from rl_compat import seeds; print(seeds.derive(20260101, 'rollout', 5))"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        ).stdout
        for salt in ("1", "2")
    }
    assert shown == {f"{seeds.derive(20260101, 'rollout', 5)}\n"}
