"""Whole runs on offline data: their outputs, and the exact resume of a stopped one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import load_settings
from fakes.runs import records, steps, train
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from rl_compat.cli.app import main
from rl_compat.config.load import load_config
from rl_compat.errors import ConfigError, DataError, ModelError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.scalar import check_scoring_family
from rl_compat.models.tokenizer import load_tokenizer
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.planning.serialize import load_plan
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.workload import run_workload
from rl_compat.rewards.types import ScoreRequest
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.reporter import SilentReporter
from rl_compat.trajectory import Prompt
from rl_compat.workers.reward_model import RewardModelWorker

BASE: dict[str, Any] = {
    "data.train_files": "arithmetic",
    "data.val_files": "arithmetic",
    "data.max_train_samples": 24,
    "data.max_val_samples": 12,
    "data.max_prompt_length": 16,
    "data.max_response_length": 8,
    "optimizer.actor_lr": 1e-3,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_steps": 2,
    "trainer.batch_size": 8,
    "trainer.mini_batch_size": 4,
    "trainer.num_steps": 5,
    "trainer.save_every": 1,
    "trainer.keep_checkpoints": 5,
    "trainer.loggers": "jsonl",
}
KINDS: dict[str, dict[str, Any]] = {
    "sft": {"algorithm.sft.packing": "true"},
    "dpo": {},
    "kto": {"algorithm.kto.undesirable_weight": 1.5},
    "reward_model": {"algorithm.reward_model.margin": 0.5},
    "dpo-lora": {"model.lora_rank": 4, "model.lora_dropout": 0.1},
}


def settings(model: Path, output: Path, kind: str, *parts: dict[str, Any], **trainer: Any) -> list[str]:
    values = {"model.path": model, "trainer.output_dir": output, "algorithm.name": kind.split("-")[0]} | BASE
    for part in (KINDS[kind], *parts, {f"trainer.{key}": value for key, value in trainer.items()}):
        values |= part
    return [f"{key}={value}" for key, value in values.items()]


@pytest.fixture(scope="session")
def runs(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Five steps of each kind, over two epochs of the data."""
    folder = tmp_path_factory.mktemp("offline")
    for kind in KINDS:
        train(settings(llama_folder, folder / kind, kind))
    return {kind: folder / kind for kind in KINDS}


def weights(run: Path, step: int = 5) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step_{step}" / "actor" / "weights.safetensors")


def assert_same(run: Path, other: Path) -> None:
    assert steps(run) == steps(other)
    mine, others = weights(run), weights(other)
    assert mine.keys() == others.keys()
    assert all(mine[name].equal(others[name]) for name in mine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_metrics_under_the_usual_names(kind: str, runs: dict[str, Path]) -> None:
    lines = records(runs[kind])
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 5]
    assert {"train/loss", "train/lr", "train/grad_norm", "perf/throughput", "timing_s/step"} < lines[1].keys()
    assert all(step["train/grad_norm"] > 0 for step in steps(runs[kind]).values())
    assert "eval/loss" in lines[0] and "eval/loss" in lines[-1]
    of_pairs = {"rewards/chosen", "rewards/rejected", "rewards/margins"}
    assert (of_pairs < lines[1].keys()) == (kind != "sft")
    assert ("rewards/accuracies" in lines[1]) == ("eval/rewards/accuracies/low95" in lines[0])
    assert ("rewards/accuracies" in lines[1]) == (kind.startswith("dpo") or kind == "reward_model")
    assert ("eval/perplexity" in lines[0]) == (kind == "sft")
    assert ("train/kl" in lines[1]) == (kind == "kto")


def test_a_run_begins_at_its_reference(runs: dict[str, Path]) -> None:
    first = {kind: records(runs[kind])[0] for kind in ("dpo", "kto", "dpo-lora")}
    assert first["dpo"]["eval/loss"] == pytest.approx(0.6931, abs=1e-4)
    assert first["kto"]["eval/loss"] == pytest.approx(1.25 / 2, abs=1e-4)
    assert all(abs(line["eval/rewards/margins"]) < 1e-4 for line in first.values())


@pytest.mark.parametrize("kind", KINDS)
def test_samples_show_what_is_learned(kind: str, runs: dict[str, Path]) -> None:
    samples = [json.loads(line) for line in (runs[kind] / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [step for step in range(1, 6) for _ in range(4)]
    first = samples[0]
    if kind == "reward_model":
        assert first["chosen"].startswith("<|user|>") and first["chosen"].endswith("<|end|>")
        return
    assert first["prompt"].startswith("<|user|>") and first["prompt"].endswith("<|assistant|>")
    assert all(first[side].endswith("<|end|>") for side in ("response", "chosen", "rejected") if side in first)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_has_one_model_and_the_phases_of_the_method(kind: str, runs: dict[str, Path]) -> None:
    plan = load_plan(runs[kind] / "plan.json")
    assert set(plan.roles) == {"actor"}
    phases = [budget.phase for budget in plan.pool_of("actor").budgets]
    reference = ["reference"] if kind in ("dpo", "kto", "dpo-lora") else []
    assert phases == [*reference, "evaluation", "actor_update"]
    assert not {"rollout_engine", "cuda_graphs"} & plan.pool_of("actor").choices.keys()


@pytest.mark.parametrize("kind", ["sft", "reward_model"])
def test_a_checkpoint_is_as_large_as_was_planned(kind: str, runs: dict[str, Path], llama_folder: Path) -> None:
    config = load_config(runs[kind] / "run.toml").config
    workload = run_workload(config, {"actor": ModelShape.from_folder(llama_folder)})
    planned = checkpoint_bytes(workload, load_plan(runs[kind] / "plan.json"))
    files = (runs[kind] / "checkpoints" / "step_5").rglob("*")
    assert planned == pytest.approx(sum(path.stat().st_size for path in files if path.is_file()), rel=0.25)


class KillsAt(SilentReporter):
    """Sends this process a signal when the update of a step begins."""

    def __init__(self, number: int, step: int) -> None:
        self._number, self._step, self._now = number, step, 0

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        if name == "step":
            self._now = done + 1
        elif name == "update_actor" and self._now == self._step:
            os.kill(os.getpid(), self._number)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    kind: str, runs: dict[str, Path], llama_folder: Path, tmp_path: Path
) -> None:
    """A-CKPT-02"""
    run = tmp_path / "run"
    outcome = train(settings(llama_folder, run, kind, save_every=0), reporter=KillsAt(signal.SIGTERM, 3))
    assert (outcome.step, outcome.interrupted is not None) == (3, True)
    train(settings(llama_folder, run, kind))
    assert_same(run, runs[kind])


@pytest.mark.slow
def test_kill_9_and_the_same_command_again_give_the_uninterrupted_run(
    runs: dict[str, Path], llama_folder: Path, tmp_path: Path
) -> None:
    """A-CKPT-02: all weights of a preference run; the reference comes from the file that was written first."""
    run, arguments = tmp_path / "run", settings(llama_folder, tmp_path / "run", "dpo")
    code = (
        "import sys, signal; sys.path.insert(0, sys.argv[1])\n"
        "from fakes.runs import train\n"
        "from trainer.offline.test_training import KillsAt\n"
        "train(sys.argv[2:], reporter=KillsAt(signal.SIGKILL, 4))\n"
    )
    tests = str(Path(__file__).parents[2])
    killed = subprocess.run(
        [sys.executable, "-c", code, tests, *arguments], capture_output=True, timeout=240, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert find_newest(run / "checkpoints").step == 3

    assert (run / "reference.safetensors").is_file()
    train(arguments)
    assert_same(run, runs["dpo"])


def test_going_back_from_a_damaged_checkpoint_measures_the_reference_of_the_steps_done_again(
    runs: dict[str, Path], llama_folder: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(runs["dpo"], tmp_path / "run")
    (run / "reference.safetensors").unlink()
    for step in (1, 3, 4):
        shutil.rmtree(run / "checkpoints" / f"step_{step}")
    damaged = run / "checkpoints" / "step_5" / "actor" / "weights.safetensors"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    outcome = train(settings(llama_folder, run, "dpo"))
    assert len(outcome.curve) == 3
    assert_same(run, runs["dpo"])


@pytest.mark.parametrize("damage", ["removed", "of another run", "no file of its kind"])
def test_a_reference_file_that_is_no_use_is_made_again(
    damage: str, runs: dict[str, Path], llama_folder: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(runs["dpo"], tmp_path / "run")
    for step in (4, 5):
        shutil.rmtree(run / "checkpoints" / f"step_{step}")
    file = run / "reference.safetensors"
    if damage == "removed":
        file.unlink()
    elif damage == "of another run":
        shutil.copy(runs["kto"] / "reference.safetensors", file)
    else:
        file.write_bytes(b"\x00" * 9)
    train(settings(llama_folder, run, "dpo"))
    assert_same(run, runs["dpo"])


def test_only_rows_that_come_need_a_reference(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings(llama_folder, run, "dpo", num_steps=1))
    known = load_file(run / "reference.safetensors")["training"].isfinite().all(dim=1)
    assert int(known.sum()) == 8
    train(settings(llama_folder, run, "dpo", num_steps=2))
    known = load_file(run / "reference.safetensors")["training"].isfinite().all(dim=1)
    assert int(known.sum()) == 16


def test_eval_of_a_run_repeats_its_last_validation(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    for kind, run in runs.items():
        assert main(["eval", "--json", *on_one_core, str(run)]) == 0
        found = json.loads(capsys.readouterr().out)
        last = {key: value for key, value in records(run)[-1].items() if key.startswith("eval/")}
        assert {key: found[key] for key in last} == pytest.approx(last, rel=1e-4, abs=1e-6), kind
        assert (found["step"], found["num_rows"]) == (5, 24 if kind == "kto" else 12)


def test_eval_as_a_table_says_what_was_measured(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    assert main(["eval", *on_one_core, str(runs["dpo"]), "data.max_val_samples=4"]) == 0
    shown = capsys.readouterr().out
    assert "at step 5, 4 rows" in shown
    assert all(word in shown for word in ("loss", "margin", "accuracy", "95 % interval"))


def test_the_prompts_of_an_imitation_can_be_answered(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    assert main(["eval", "--json", *on_one_core, str(runs["sft"]), "algorithm.name=ppo"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracies"][0]["num_prompts"] == 12


def test_an_exported_reward_model_scores_as_it_did_in_training(
    runs: dict[str, Path], llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "reward"
    assert main(["export", str(runs["reward_model"]), str(output)]) == 0
    capsys.readouterr()

    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert (type(model).__name__, model.config.num_labels) == ("LlamaForSequenceClassification", 1)
    trained = weights(runs["reward_model"])
    assert model.score.weight.equal(trained["head.weight"])
    assert model.score.weight.abs().max() > 0
    chat = ChatEncoder(load_tokenizer(output))
    ids = chat.encode_conversation("1+2=", "3")[1]
    expected = float(model(torch.tensor([ids])).logits[0, 0].detach())
    role = load_plan(runs["reward_model"] / "plan.json").roles["actor"]
    reward = RewardModelWorker(load_settings(output, role=role))
    prompt = Prompt(token_ids=(2,), text="", messages="1+2=")
    (outcome,) = reward.outcomes(requests=[ScoreRequest(response_text="3", prompt=prompt)])
    assert outcome.reward == pytest.approx(expected, abs=1e-5)


def test_reinforcement_learning_goes_on_from_an_exported_imitation_with_a_trained_reward_model(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    for kind in ("sft", "reward_model"):
        assert main(["export", str(runs[kind]), str(tmp_path / kind)]) == 0
    arguments = settings(tmp_path / "sft", tmp_path / "run", "sft", {"algorithm.name": "grpo"}, num_steps=1)
    more = ["algorithm.group_size=2", f"reward.model={tmp_path / 'reward_model'}", "reward.functions=[]"]
    assert main(["train", *on_one_core, *arguments, *more]) == 0
    assert steps(tmp_path / "run")[1]["actor/grad_norm"] > 0
    capsys.readouterr()


def test_a_batch_larger_than_the_data_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\b24 rows\b.*\b32\b"):
        train(settings(llama_folder, tmp_path / "run", "sft", batch_size=32, mini_batch_size=32))


def test_data_without_pairs_is_refused_for_preferences(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`gsm8k`"):
        train(settings(llama_folder, tmp_path / "run", "dpo", {"data.train_files": "gsm8k"}))


def test_files_mix_by_weight(llama_folder: Path, tmp_path: Path) -> None:
    files = []
    for name, answer in (("a", "1"), ("b", "2")):
        files.append(tmp_path / f"{name}.jsonl")
        rows = [json.dumps({"prompt": f"{n}+1=", "response": answer}) for n in range(20)]
        files[-1].write_text("\n".join(rows))
    mixed = {"data.train_files": ",".join(map(str, files)), "data.mixture_weights": "3,1", "data.val_files": ""}
    train(settings(llama_folder, tmp_path / "run", "sft", mixed, num_steps=2, num_sample_generations=8))
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert sorted(sample["response"] for sample in samples) == ["1<|end|>"] * 12 + ["2<|end|>"] * 4


def test_a_family_without_a_sequence_classifier_is_refused(tmp_path: Path, llama_folder: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}))
    with pytest.raises(ModelError) as error:
        check_scoring_family(folder)
    assert f"`{folder}`" in error.value.message
    check_scoring_family(llama_folder)


def test_a_folder_of_another_kind_of_run_is_refused(runs: dict[str, Path], llama_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"`algorithm.name` was dpo and is kto"):
        train(settings(llama_folder, runs["dpo"], "kto"))


def test_the_outcome_as_json_has_the_curve_of_the_method(
    runs: dict[str, Path],
    llama_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_one_core: list[str],
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", "dpo")
    assert main(["train", "--json", *on_one_core, *arguments]) == 0
    outcome = json.loads(capsys.readouterr().out)
    margins = [step["rewards/margins"] for step in steps(runs["dpo"]).values()]
    assert (outcome["step"], outcome["margins"]) == (5, margins)
    assert_same(tmp_path / "run", runs["dpo"])
