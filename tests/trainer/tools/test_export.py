"""`rlc eval` and `rlc export`: what a run has learned, measured and taken elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from fakes.models import save_random_model
from fakes.runs import GRPO_LORA, SMALL, records, settings, train
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_compat.cli.app import main
from rl_compat.data.builtin.arithmetic import rows

IDS = torch.tensor([[2, 7, 16, 8, 18, 1, 3]])


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(IDS).logits


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of GRPO with adapters on a model whose head is not tied."""
    folder = tmp_path_factory.mktemp("lora")
    model = save_random_model(folder / "model", tie_word_embeddings=False)
    train(settings(model, folder / "run", GRPO_LORA, num_steps=2))
    return folder / "run"


def test_an_exported_run_is_a_folder_with_the_trained_weights(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-CKPT-05: tied weights are one copy on disk and still tied after loading."""
    output = tmp_path / "out"
    assert main(["export", str(whole_ppo_run), str(output)]) == 0

    assert capsys.readouterr().out == f"step 6 written to {output}\n"
    trained = load_file(whole_ppo_run / "checkpoints" / "step_6" / "actor" / "weights.safetensors")
    with safe_open(output / "model.safetensors", framework="pt") as exported:
        assert set(exported.keys()) == set(trained)
        assert all(exported.get_tensor(name).equal(trained[name]) for name in trained)
    model = AutoModelForCausalLM.from_pretrained(output)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert not logits(output).equal(logits(llama_folder))
    assert AutoTokenizer.from_pretrained(output).get_vocab() == AutoTokenizer.from_pretrained(llama_folder).get_vocab()


def test_a_checkpoint_is_exported_by_its_own_name(
    whole_ppo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = whole_ppo_run / "checkpoints" / "step_3"
    assert main(["export", "--json", str(checkpoint), str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path / "out"), "step": 3}


def test_adapters_are_merged_into_what_is_exported(lora_run: Path, tmp_path: Path) -> None:
    """A-CKPT-05, after a LoRA merge: the same logits as the base with separate adapters."""
    assert main(["export", str(lora_run), str(tmp_path / "out")]) == 0

    base = load_file(lora_run.parent / "model" / "model.safetensors")
    trained = load_file(lora_run / "checkpoints" / "step_2" / "actor" / "weights.safetensors")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    b, a = (trained[f"{name}.lora_{part}.default.weight"] for part in "BA")
    scale = 16.0 / GRPO_LORA["model.lora_rank"]
    torch.testing.assert_close(exported[f"{name}.weight"], base[f"{name}.weight"] + scale * b @ a)
    assert not exported[f"{name}.weight"].equal(base[f"{name}.weight"])
    assert exported["lm_head.weight"].equal(base["lm_head.weight"])
    assert exported.keys() == base.keys()


def test_an_exported_model_answers_as_its_run_does(
    lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    main(["export", str(lora_run), str(tmp_path / "out")])
    capsys.readouterr()
    found = []
    same = [f"{key}={SMALL[key]}" for key in SMALL if key.startswith(("data.", "reward."))]
    for target, given in ((lora_run, []), (tmp_path / "out", same)):
        assert main(["eval", str(target), "--json", *on_one_core, *given]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert (found[0].pop("step"), found[1].pop("step")) == (2, None)
    assert found[0] == found[1]
    last = records(lora_run)[-1]
    assert found[0]["accuracies"][0]["mean"] == last["val-aux/rlc/arithmetic/compute_scores/mean@1"]


def test_a_run_is_evaluated_with_its_settings_and_what_is_changed_of_them(
    whole_ppo_run: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    assert main(["eval", str(whole_ppo_run), *on_one_core, "data.max_val_samples=5", "reward.functions=auto"]) == 0
    shown = capsys.readouterr()
    assert f"{whole_ppo_run} at step 6" in shown.out
    row = next(line.split() for line in shown.out.splitlines() if "accuracy" in line)
    assert (row[0], row[1], row[2], row[-1]) == ("rlc/arithmetic", "accuracy", "0.0", "5")


def test_a_run_is_evaluated_where_its_training_data_is_not(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows("train", limit=8)))
    train(settings(llama_folder, tmp_path / "run", {"data.train_files": data}, num_steps=1, validate_before="false"))
    data.unlink()
    assert main(["eval", str(tmp_path / "run"), "--json", *on_one_core]) == 0
    assert json.loads(capsys.readouterr().out)["accuracies"][0]["num_prompts"] == 8


@pytest.mark.parametrize(
    ("arguments", "code", "fact"),
    [
        (["export", "{model}", "{out}"], 2, "`{model}`"),
        (["export", "{run}", "{run}"], 2, "`{run}`"),
        (["export", "{run}/checkpoints/step_9", "{out}"], 2, "`{run}/checkpoints/step_9`"),
        (["eval", "{run}/checkpoints/step_9"], 2, "`{run}/checkpoints/step_9`"),
        (["eval", "{run}", "data.val_files="], 2, "`data.val_files`"),
        (["eval", "{model}", "data.max_val_sample=3"], 2, "`data.max_val_sample`"),
        (["eval", "{out}"], 2, "`{out}`"),
    ],
)
def test_what_cannot_be_evaluated_or_exported_is_said(
    arguments: list[str],
    code: int,
    fact: str,
    whole_ppo_run: Path,
    llama_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_one_core: list[str],
) -> None:
    places = {"run": whole_ppo_run, "model": llama_folder, "out": tmp_path / "out"}
    given = [argument.format(**places) for argument in arguments]
    assert main([*given, *(on_one_core if given[0] == "eval" else [])]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert fact.format(**places) in shown.err
    assert "Traceback" not in shown.err


def test_a_run_without_a_complete_checkpoint_says_so(
    whole_ppo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole_ppo_run, tmp_path / "run")
    for checkpoint in (run / "checkpoints").iterdir():
        (checkpoint / "manifest.json").unlink()
    assert main(["export", str(run), str(tmp_path / "out")]) == 1
    assert f"`{run}` has no complete checkpoint: `step_6` is not complete" in capsys.readouterr().err


def test_the_adapter_of_a_run_is_exported_alone(lora_run: Path, whole_ppo_run: Path, tmp_path: Path) -> None:
    assert main(["export", str(lora_run), str(tmp_path / "merged")]) == 0
    assert main(["export", "--adapter", str(lora_run), str(tmp_path / "adapter")]) == 0

    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"])
        found = PeftModel.from_pretrained(base, tmp_path / "adapter")(IDS).logits
    torch.testing.assert_close(found, logits(tmp_path / "merged"), atol=1e-5, rtol=1e-5)
    assert main(["export", "--adapter", str(whole_ppo_run), str(tmp_path / "none")]) == 2
