"""Runs on mixtures and on streamed files: the settings reach the batches, and resuming changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import cpu, settings, train

from rl_compat.config.load import load_config
from rl_compat.data.builtin import arithmetic
from rl_compat.errors import ConfigError, DataError
from rl_compat.trainer.online.prompt_data import streams
from rl_compat.trainer.reporter import SilentReporter
from rl_compat.trainer.setup.online import check_run


def _files(folder: Path) -> list[str]:
    rows = arithmetic.rows("train", limit=60)
    rows[7]["prompt"] = "1+1=" + "0" * 40
    paths = [folder / "a.jsonl", folder / "b.jsonl"]
    for path, part in zip(paths, (rows[:40], rows[40:]), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    return [str(path) for path in paths]


def _settings(model: Path, output: Path, names: list[str], **more: Any) -> list[str]:
    data = {
        "data.train_files": ",".join(names),
        "data.val_files": "arithmetic",
        "data.max_train_samples": "none",
        "data.mixture_weights": "1,3",
        "trainer.validate_before": "false",
        "trainer.validate_after": "false",
    }
    return settings(model, output, data, **more)


def _prompts(run: Path) -> list[list[str]]:
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    return [[line["prompt"] for line in lines if line["step"] == step] for step in sorted({x["step"] for x in lines})]


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_a_resumed_run_draws_the_prompts_of_an_uninterrupted_one(
    streaming: str, llama_folder: Path, tmp_path: Path
) -> None:
    """CKPTD-01, without rollouts in progress"""
    names = _files(tmp_path)
    options = {"num_sample_generations": 8}
    whole = [*_settings(llama_folder, tmp_path / "whole", names, num_steps=4, **options), f"data.streaming={streaming}"]
    train(whole)
    halves = _settings(llama_folder, tmp_path / "halves", names, **options)
    for steps in (2, 4):
        train([*halves, f"data.streaming={streaming}", f"trainer.num_steps={steps}"])
    prompts = _prompts(tmp_path / "whole")
    assert [len(step) for step in prompts] == [8] * 4
    assert _prompts(tmp_path / "halves") == prompts


def test_a_run_stops_where_its_rows_changed_and_starts_their_order_again_if_told(
    llama_folder: Path, tmp_path: Path
) -> None:
    names = _files(tmp_path)
    options = _settings(llama_folder, tmp_path / "run", names, num_sample_generations=8)
    train([*options, "trainer.num_steps=1"])
    first = Path(names[0])
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join([lines[0].replace("+", "+1"), *lines[1:]]))
    with pytest.raises(DataError, match=r"row 0\b"):
        train([*options, "trainer.num_steps=2"])
    first.write_text("".join([*lines, lines[1]]))
    with pytest.raises(DataError, match=r"39 \+ 20.* 40 \+ 20"):
        train([*options, "trainer.num_steps=2"])
    train([*options, "trainer.num_steps=2", "data.on_change=restart"])
    drawn = _prompts(tmp_path / "run")
    assert [len(step) for step in drawn] == [8, 8]
    train([*options, "trainer.num_steps=3", "data.on_change=restart"])
    assert len(_prompts(tmp_path / "run")) == 3 and _prompts(tmp_path / "run")[2] != drawn[1]


def test_what_streaming_leaves_out_is_said(llama_folder: Path, tmp_path: Path) -> None:
    class Recorder(SilentReporter):
        said: list[str] = []  # noqa: RUF012

        def say(self, text: str) -> None:
            self.said.append(text)

    options = ["data.streaming=true", "data.mixture_weights=3,1", "data.shuffle=false"]
    train([*_settings(llama_folder, tmp_path / "run", _files(tmp_path), num_steps=2), *options], reporter=Recorder())
    assert any("row 7 " in text and "tokens" in text and "16" in text for text in Recorder.said)


def test_forms_are_among_the_notes_before_a_model_loads(llama_folder: Path, tmp_path: Path) -> None:
    names = _files(tmp_path)
    config = load_config(None, [*_settings(llama_folder, tmp_path / "run", names), "data.streaming=true"]).config
    prepared = check_run(config, cpu())
    prepared.reward.close()
    said = next(note for note in prepared.notes if names[0] in note)
    assert "`reward_model.ground_truth`" in said and "`data_source`" in said
    assert prepared.total_steps == 60 // 8


def test_streaming_is_decided_by_the_memory_unless_it_is_set(tmp_path: Path) -> None:
    names = ",".join(_files(tmp_path))

    def decided(*arguments: str, memory_bytes: int = 1000) -> bool:
        data = load_config(None, [f"data.train_files={names}", *arguments]).config.data
        return streams(data, data.train_files, memory_bytes)

    assert decided() and not decided(memory_bytes=10**9)
    assert not decided("data.max_train_samples=5")
    assert decided("data.streaming=true", memory_bytes=10**9) and not decided("data.streaming=false")


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,0", "1,nan"])
def test_weights_that_do_not_fit_the_files_are_refused(weights: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`data.mixture_weights`"):
        load_config(None, [f"data.train_files={','.join(_files(tmp_path))}", f"data.mixture_weights={weights}"])
