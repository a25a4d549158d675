"""A run on two nodes of a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.cluster import two_nodes

from rl_compat.cli.app import main

pytest.importorskip("ray")
SMALL = ("trainer.num_steps=2", "trainer.batch_size=8", "trainer.mini_batch_size=4", "data.max_val_samples=8")
SAME = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "response_length/mean")


def trained(folder: Path, *settings: str) -> list[dict[str, Any]]:
    arguments = ["train", "sums", "plan.device=cpu", *SMALL, f"trainer.output_dir={folder}", *settings]
    assert main(arguments) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "actor/pg_loss" in row]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_give_the_numbers_of_one_process_and_say_how_busy_they_are(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone")
    with two_nodes(cores=2) as address:
        rows = trained(tmp_path / "nodes", "plan.num_nodes=2", f"plan.address={address}")
    plan = json.loads((tmp_path / "nodes" / "plan.json").read_text())
    assert plan["pools"]["main"]["nodes"] == [0, 1]
    assert len(rows) == len(alone) == 2
    for one, two in zip(alone, rows, strict=True):
        assert {name: two[name] for name in SAME} == pytest.approx({name: one[name] for name in SAME}, rel=1e-4)
        assert not any(name.startswith(("perf/balance", "perf/idle_share")) for name in one)
        assert 1.0 <= two["perf/balance/actor"] <= 2.0
        assert 0.0 <= two["perf/idle_share/main"] <= 1.0
        assert 0.0 <= two["perf/heartbeat_age/main"] < 20.0
