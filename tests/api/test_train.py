"""A whole run from Python: objects in place of names, callbacks, and the same run as the command line's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
import torch
from fakes.runs import cpu
from transformers import AutoModelForCausalLM

import rl_compat
from rl_compat.cli.app import main
from rl_compat.errors import ConfigError, DataError, RLCompatError
from rl_compat.trainer.callbacks import Callback

SUMS = [{"prompt": f"{a}+{b}=", "ground_truth": str(a + b), "data_source": "sums"} for a in range(4) for b in range(4)]


def options(folder: Path, **trainer: Any) -> dict[str, Any]:
    """Two steps of GRPO on the CPU, written to a folder."""
    return {
        "trainer": {"num_steps": 2, "batch_size": 4, "output_dir": str(folder), "loggers": ["jsonl"], **trainer},
        "data": {"train_files": SUMS, "max_response_length": 8},
        "algorithm": "grpo",
    }


def train(folder: Path, **changes: Any) -> rl_compat.TrainedRun:
    """On a machine that is known, so that it is not read again by each run."""
    pool = rl_compat.ResourcePool(gpus=[], hardware=cpu())
    return rl_compat.train("tiny", **({"reward": digits, "pool": pool} | options(folder) | changes))


def digits(solution_str: str, ground_truth: str) -> dict[str, float]:
    """The share of the answer's digits in the response."""
    found = sum(digit in solution_str for digit in ground_truth) / len(ground_truth)
    return {"score": found, "right": float(solution_str == ground_truth)}


class Recorder(Callback):
    def __init__(self, *, stop_after: int = 10**9) -> None:
        self.seen: list[tuple[str, int]] = []
        self.stop_after = stop_after

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        self.seen.append(("step", step))
        return step < self.stop_after

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.seen.append(("validation", step))

    def on_checkpoint(self, step: int, folder: Path) -> None:
        assert (folder / "actor").is_dir()
        self.seen.append(("checkpoint", step))


def test_a_python_function_scores_and_the_run_has_metrics_and_a_model(tmp_path: Path) -> None:
    run = train(tmp_path / "run", data=SUMS)

    assert [step["training/global_step"] for step in run.metrics] == [1.0, 2.0]
    assert {"actor/pg_loss", "reward/right", "reward/python:digits"} <= run.metrics[0].keys()
    assert run.validations == {}
    assert not run.interrupted
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["actor/pg_loss"] for row in logged] == [step["actor/pg_loss"] for step in run.metrics]


def test_the_saved_model_is_the_one_in_memory(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    saved = AutoModelForCausalLM.from_pretrained(run.save_pretrained(tmp_path / "saved"))

    sequences = run.actor.generate(["1+2="], max_new_tokens=3, temperature=1.0, seed=1).result()
    prompt, response = sequences.batch.prompt_ids[0], sequences.trajectories[0].response_ids
    with torch.no_grad():
        logits = saved(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
    logprobs = run.actor.compute_logprobs(sequences).result()[0, : len(response)]
    torch.testing.assert_close(logprobs, expected, rtol=1e-4, atol=1e-4)


def table() -> datasets.Dataset:
    return datasets.Dataset(datasets.table.InMemoryTable(pyarrow.Table.from_pylist(SUMS)), fingerprint="sums")


def rows() -> Iterator[Mapping[str, Any]]:
    return iter(SUMS)


@pytest.mark.parametrize(
    "make",
    [
        table,
        lambda: table().to_iterable_dataset(),
        lambda: rows,
    ],
    ids=["dataset", "iterable dataset", "function"],
)
def test_every_form_of_data_gives_the_same_run(tmp_path: Path, make: Callable[[], Any]) -> None:
    def losses(name: str, source: Any) -> list[float]:
        data = {"train_files": source, "shuffle": False, "max_response_length": 8}
        return [step["actor/pg_loss"] for step in train(tmp_path / name, data=data).metrics]

    assert losses("run", make()) == losses("rows", SUMS)


def test_callbacks_see_steps_validations_and_checkpoints_in_order(tmp_path: Path) -> None:
    recorder, steps = Recorder(), []
    run = train(
        tmp_path / "run", validation_data=SUMS[:4], callbacks=[recorder, lambda step, metrics: steps.append(step)]
    )

    assert recorder.seen == [("validation", 0), ("step", 1), ("step", 2), ("checkpoint", 2), ("validation", 2)]
    assert steps == [1, 2]
    assert sorted(run.validations) == [0, 2]


def test_a_callback_ends_the_run_and_the_same_call_resumes_it(tmp_path: Path) -> None:
    stopped = train(tmp_path / "run", callbacks=[Recorder(stop_after=1)])
    resumed = train(tmp_path / "run")
    whole = train(tmp_path / "whole")

    assert stopped.outcome.step == 1
    assert [step["training/global_step"] for step in resumed.metrics] == [2.0]
    assert resumed.metrics[0]["actor/pg_loss"] == whole.metrics[1]["actor/pg_loss"]


def test_a_callback_that_raises_leaves_its_step_in_a_checkpoint(tmp_path: Path) -> None:
    def fail(step: int, metrics: Mapping[str, float]) -> None:
        raise ValueError(step)

    with pytest.raises(ValueError, match=r"^1$"):
        train(tmp_path / "run", callbacks=[fail])
    assert (tmp_path / "run" / "checkpoints" / "step_1").is_dir()


def test_the_command_line_gives_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    (tmp_path / "reward.py").write_text(
        "def digits(solution_str, ground_truth):\n"
        "    found = sum(digit in solution_str for digit in ground_truth) / len(ground_truth)\n"
        "    return {'score': found, 'right': float(solution_str == ground_truth)}\n"
    )
    arguments = [
        "model.path=tiny",
        "algorithm.name=grpo",
        f"data.train_files={tmp_path / 'rows.jsonl'}",
        "data.val_files=[]",
        "data.max_response_length=8",
        f"reward.functions={tmp_path / 'reward.py'}:digits",
        "trainer.num_steps=2",
        "trainer.batch_size=4",
        "trainer.loggers=jsonl",
        "plan.device=cpu",
        f"trainer.output_dir={tmp_path / 'command'}",
    ]
    assert main(["train", *arguments]) == 0

    logged = [json.loads(line) for line in (tmp_path / "command" / "metrics.jsonl").read_text().splitlines()]
    run = train(tmp_path / "python", pool=rl_compat.ResourcePool(gpus=[]))
    assert [row["actor/pg_loss"] for row in logged] == [step["actor/pg_loss"] for step in run.metrics]


def test_a_run_with_objects_cannot_be_continued_without_them(tmp_path: Path) -> None:
    train(tmp_path / "run")

    assert main(["train", str(tmp_path / "run" / "run.toml"), "trainer.num_steps=3"]) == 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"trainr": {"num_steps": 1}}, ["trainr", "trainer"]),
        ({"trainer": {"num_stepz": 1}}, ["trainer.num_stepz", "trainer.num_steps"]),
        ({"trainer": {"num_steps": "many"}}, ["trainer.num_steps"]),
        ({"trainer": {"num_steps": 0}}, ["trainer.num_steps"]),
        ({"optimizer": 1e-6}, ["optimizer"]),
        ({"algorithm": "gpro"}, ["algorithm.name", "grpo"]),
        ({"reward": 3}, ["reward", "int"]),
        ({"settings": "gsm8k-gpu"}, ["gsm8k-gpu"]),
        ({"data": {"train_filez": SUMS}}, ["data.train_filez", "data.train_files"]),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        rl_compat.train("tiny", **({"data": SUMS} | given))
    text = f"{caught.value.message} {caught.value.hint}"
    assert [name for name in named if name not in text] == []
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "data", [3, datasets.DatasetDict(train=table()), (row for row in SUMS)], ids=["number", "splits", "generator"]
)
def test_data_that_cannot_be_read_twice_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(DataError):
        train(tmp_path / "run", data=data)


def test_a_function_that_needs_more_than_a_run_passes_is_refused(tmp_path: Path) -> None:
    def needs_more(solution_str: str, temperature: float) -> float:
        return temperature

    with pytest.raises(RLCompatError) as caught:
        train(tmp_path / "run", reward=needs_more)
    assert "temperature" in caught.value.message
