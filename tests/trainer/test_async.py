"""A run that generates while it learns: the same rows, within the bound, and nothing lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import PPO, cpu, records, settings, steps, train
from trainer.test_resume import Signals

from rl_compat.config.load import load_config
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.draws import Rows
from rl_compat.trainer.setup.online import Prepared
from rl_compat.trainer.training import Training
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.rollout import RolloutWorker

GRPO = {"algorithm.name": "grpo", "algorithm.group_size": 2, "trainer.batch_size": 4, "trainer.mini_batch_size": 2}
ASYNC = {"trainer.flow": "async", "trainer.max_staleness": 2, "data.val_files": ""}


@pytest.fixture(scope="module")
def whole_run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("async") / "run"
    train(settings(llama_folder, folder, GRPO, ASYNC, num_steps=6))
    return folder


def rows_of(run: Path) -> dict[int, list[str]]:
    """The prompts that each step learned from."""
    found: dict[int, list[str]] = {}
    for line in (run / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        found.setdefault(sample["step"], []).append(sample["prompt"])
    return found


@pytest.mark.parametrize("part", [PPO, GRPO], ids=["ppo", "grpo"])
def test_staleness_0_gives_the_numbers_of_a_run_that_takes_turns(
    part: dict[str, Any], llama_folder: Path, tmp_path: Path
) -> None:
    """ASYNC-04"""
    nothing_ahead = {"trainer.flow": "async", "trainer.max_staleness": 0}
    train(settings(llama_folder, tmp_path / "sync", part, num_steps=3))
    train(settings(llama_folder, tmp_path / "async", part, nothing_ahead, num_steps=3))
    assert steps(tmp_path / "async") == steps(tmp_path / "sync")


def test_steps_learn_within_the_bound_and_from_the_rows_of_a_run_that_takes_turns(
    whole_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    """ASYNC-04, and ASYNC-05: none is dropped, so that the rows are those of the data in its order."""
    of_step = steps(whole_run)
    assert list(of_step) == [1, 2, 3, 4, 5, 6]
    ages = [metrics["async/staleness/max"] for metrics in of_step.values()]
    assert ages[0] == 0 and 0 < max(ages) <= 2
    assert of_step[1]["async/ess"] == pytest.approx(1, abs=1e-6)
    assert 0 < min(metrics["async/ess"] for metrics in of_step.values()) < 1
    assert all(metrics["rollout_corr/rollout_is_max"] <= 2 for metrics in of_step.values())
    assert all(0 <= record["async/idle_share"] <= 1 for record in records(whole_run))
    train(settings(llama_folder, tmp_path / "sync", GRPO, {"data.val_files": ""}, num_steps=6))
    assert rows_of(whole_run) == rows_of(tmp_path / "sync")


def test_a_run_that_is_interrupted_draws_unfinished_rows_again_and_no_finished_ones(
    whole_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    """CKPTD-01"""
    arguments = settings(llama_folder, tmp_path / "run", GRPO, ASYNC, num_steps=6, save_every=0)
    outcome = train(arguments, reporter=Signals(signal.SIGINT, phase="update_actor", step=3))
    assert outcome.interrupted is not None and outcome.step == 3
    train(arguments)
    assert rows_of(tmp_path / "run") == rows_of(whole_run)
    assert max(metrics["async/staleness/max"] for metrics in steps(tmp_path / "run").values()) <= 2


def numbers_of(run: Path) -> tuple[dict[str, int], int, int]:
    """What became of the prompts of a run, how many are pending, and how many rows were read from the order."""
    newest = find_newest(run / "checkpoints").path
    assert newest is not None
    state = json.loads((newest / "trainer.json").read_text())
    order = state["order"]
    return state["recipe"]["prompts"], len(state["pending"]), order["epoch"] * order["num_rows"] + order["offset"]


def prompts_in_order(arguments: list[str], count: int) -> list[str]:
    training = Training(load_config(None, arguments).config, cpu())
    prepared = training.recipe.prepared
    assert isinstance(prepared, Prepared)
    rows = Rows(prepared.order).take(count)
    training.close()
    return [prepared.prompts[row].text for row in rows]


def test_steps_of_a_number_of_tokens_learn_from_each_prompt_once_also_after_an_interrupt(
    llama_folder: Path, tmp_path: Path
) -> None:
    """The prompts that step 3 leaves over come first after it."""
    budget = {"trainer.batch_tokens": 80, "trainer.num_sample_generations": 100}
    arguments = settings(llama_folder, tmp_path / "run", GRPO, ASYNC, budget, num_steps=7, save_every=0)
    outcome = train(arguments, reporter=Signals(signal.SIGINT, phase="update_actor", step=3))
    assert outcome.interrupted is not None and outcome.step == 3
    train(arguments)
    groups = [found[::2] for found in rows_of(tmp_path / "run").values()]
    of_step = steps(tmp_path / "run")
    assert [prompt for group in groups for prompt in group] == prompts_in_order(arguments, sum(map(len, groups)))
    assert len({len(group) for group in groups}) > 1, "some steps have fewer prompts than others"
    assert all(
        record["perf/total_num_tokens"] <= 80 or of_step[record["step"]]["async/staleness/max"] == 2
        for record in records(tmp_path / "run")
    )
    assert max(metrics["async/staleness/max"] for metrics in of_step.values()) <= 2
    became, pending, drawn = numbers_of(tmp_path / "run")
    assert became == {"trained": sum(map(len, groups)), "filtered": 0, "dropped": 0}
    assert became["trained"] + pending == drawn


def test_prompts_that_are_replaced_are_counted_once_whenever_the_run_ends(llama_folder: Path, tmp_path: Path) -> None:
    replaces = {"algorithm.dynamic_sampling": "true", "data.max_response_length": 2}
    arguments = settings(llama_folder, tmp_path / "run", GRPO, ASYNC, replaces, num_steps=4, save_every=0)
    train(arguments, reporter=Signals(signal.SIGINT, phase="update_actor", step=2))
    for _ in range(2):
        became, pending, drawn = numbers_of(tmp_path / "run")
        assert sum(became.values()) + pending == drawn
        train(arguments)
    assert became["trained"] == 16 and became["filtered"] > 0


@pytest.mark.parametrize(("worker", "method"), [(RolloutWorker, "generate"), (PolicyWorker, "update")])
def test_an_error_of_one_side_stops_the_other_and_loses_no_finished_step(
    worker: Any, method: str, whole_run: Path, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASYNC-06: an engine that fails ends the run with its error; its rows are drawn again."""
    original, calls = getattr(worker, method), 0

    def fails(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ZeroDivisionError(method)
        return original(*arguments, **named)

    fails.__dispatch__ = original.__dispatch__  # type: ignore[attr-defined]
    fails.__name__ = method
    arguments = settings(llama_folder, tmp_path / "run", GRPO, ASYNC, num_steps=6, save_every=0)
    with monkeypatch.context() as patch:
        patch.setattr(worker, method, fails)
        with pytest.raises(ZeroDivisionError, match=method):
            train(arguments)
    done = len(steps(tmp_path / "run"))
    assert find_newest(tmp_path / "run" / "checkpoints").step == done
    assert done == 3 if method == "update" else done <= 3
    train(arguments)
    assert rows_of(tmp_path / "run") == rows_of(whole_run)
