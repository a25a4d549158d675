"""What `rlc train` refuses: one fact and one hint, exit code 2, and no weights are loaded.

The model's weights pass every check that reads no weights but cannot be loaded, so loading them would be another error.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from fakes.models import character_tokenizer
from fakes.processes import reward_processes
from fakes.runs import RECORDINGS, REWARD, settings
from safetensors.torch import save_file

from rl_compat.cli.app import main

Fails = Callable[..., str]


@pytest.fixture(scope="module")
def hollow(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose weights are a whole safetensors file of another model."""
    folder = shutil.copytree(llama_folder, tmp_path_factory.mktemp("hollow") / "model")
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def fails(hollow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Run `rlc train`, expect exit code 2 with a fact and mostly a hint, and return them as one line."""

    def run(*arguments: str, recording: str = "laptop_no_gpu") -> str:
        given = [*settings(hollow, tmp_path / "run"), *arguments]
        code = main(["train", "--hardware", str(RECORDINGS / f"{recording}.json"), *given])
        shown = capsys.readouterr()
        lines = [line for line in shown.err.splitlines() if line.startswith(("error: ", "hint: "))]
        assert (code, shown.out) == (2, "")
        assert [line.split(":")[0] for line in lines] in (["error"], ["error", "hint"])
        assert "Traceback" not in shown.err
        return " | ".join(lines)

    return run


def write_parquet(path: Path, rows: list[dict], columns: tuple[str, ...] | None = None) -> str:
    schema = None if columns is None else pyarrow.schema([(column, pyarrow.string()) for column in columns])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return str(path)


def test_the_weights_of_these_tests_cannot_be_loaded(fails: Fails, hollow: Path) -> None:
    assert f"`{hollow}`" in fails()


@pytest.mark.parametrize(
    ("argument", "literals", "hint"),
    [
        ("optimizer.actor_lrr=1", ["`optimizer.actor_lrr`"], "`optimizer.actor_lr`"),
        ("trainer.batch_size=many", ["`trainer.batch_size`", "`many`"], ""),
        ("data.train_files=nowhere/rows.parquet", ["nowhere/rows.parquet"], "hint: "),
        ("data.train_files=gsm9k", ["`gsm9k`"], "`gsm8k`"),
        ("data.val_files=nowhere/rows.jsonl", ["nowhere/rows.jsonl"], "hint: "),
        ("data.max_prompt_length=3", ["16"], "`data.max_prompt_length="),
        ("trainer.mini_batch_size=3", ["3", "`trainer.batch_size`", "8"], "2 or 4"),
        ("trainer.batch_size=32", ["16", "32"], "`trainer.batch_size=16`"),
        ("model.path=smolm2-135m", ["`smolm2-135m`"], "`smollm2-135m`"),
        ("model.path=./nowhere", ["`./nowhere`"], "hint: "),
        ("model.tokenizer=./nowhere", ["`./nowhere`"], "hint: "),
        ("model.chat_template=nowhere.jinja", ["`model.chat_template`", "`nowhere.jinja`"], "`plain`"),
        ("reward.functions=nowhere.py:score", ["`nowhere.py`"], "hint: "),
        (f"reward.functions={REWARD}s", ["`compute_scoress`"], "`compute_scores`"),
        ("reward.functions=gsm7k", ["`gsm7k`"], "`gsm8k`"),
        ("plan.device=cuda", ["0"], "`plan.device=cpu`"),
        ("plan.num_devices=2", ["2", "0"], "`plan.device=cpu plan.num_devices=1`"),
        ("plan.attention=flash_attention_2", ["CUDA"], "`plan.attention=sdpa`"),
    ],
)
def test_a_setting_that_cannot_be_met_is_named_with_a_way_out(
    argument: str, literals: list[str], hint: str, fails: Fails
) -> None:
    """A-UX-05, A-ALG-01, A-ALG-10, A-DATA-05, A-DATA-11"""
    error, _, remedy = fails(argument).partition(" | ")
    assert all(literal in error for literal in literals), error
    assert hint in remedy


@pytest.mark.parametrize(
    ("recording", "argument", "fact"),
    [
        ("p40", "plan.compute_dtype=bf16", "`plan.compute_dtype=bf16` "),
        ("t4", "plan.compute_dtype=bf16", "`plan.compute_dtype=bf16` "),
        ("p40", "plan.attention=flash_attention_2", "6.1"),
        ("v100", "plan.attention=flash_attention_2", "7.0"),
        ("p40", "plan.num_devices=2", "2"),
        ("p40_cu128_wheel", "trainer.seed=1", "6.1"),
        ("rtx3060_cpu_torch", "trainer.seed=1", "CPU"),
    ],
)
def test_what_the_card_lacks_is_refused(recording: str, argument: str, fact: str, fails: Fails) -> None:
    """A-ENV-01, A-ENV-10"""
    assert fact in fails(argument, recording=recording)


def test_an_emulated_card_refuses_what_the_real_one_would(fails: Fails) -> None:
    shown = fails("--as", "Tesla P40", "plan.compute_dtype=bf16")
    assert "`plan.compute_dtype=bf16`" in shown
    assert "8.0" in shown


def test_a_parquet_without_the_prompt_column_lists_the_columns(fails: Fails, tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "rows.parquet", [{"prompts": "1+1=", "data_source": "rlc/arithmetic"}])
    shown = fails(f"data.train_files={file}")
    for literal in ("`prompt`", "`prompts`", "`data_source`", "`data.prompt_key=prompts`"):
        assert literal in shown


def test_questions_and_answers_without_a_reward_are_told_before_a_model_loads(fails: Fails, tmp_path: Path) -> None:
    """A-DATA-03"""
    file = write_parquet(tmp_path / "raw.parquet", [{"question": "1+1?", "answer": "2"}] * 8)
    shown = fails(f"data.train_files={file}", "reward.functions=auto")
    assert "`reward.functions=" in shown or "reward.functions=gsm8k" in shown


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_empty_dataset_is_named(suffix: str, fails: Fails, tmp_path: Path) -> None:
    """A-DATA-11"""
    file = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        write_parquet(file, [], columns=("prompt",))
    else:
        file.touch()
    assert f"`{file}`" in fails(f"data.train_files={file}")


def test_a_data_source_without_a_reward_is_named_with_its_row(fails: Fails, tmp_path: Path) -> None:
    """A-DATA-04"""
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "1+1=", "data_source": source, "ground_truth": "2"} for source in ("rlc/arithmetic", "/data/x")]
    file.write_text("\n".join(map(json.dumps, rows)))
    shown = fails(
        f"data.train_files={file}", "reward.functions=auto", "trainer.batch_size=2", "trainer.mini_batch_size=2"
    )
    assert "`/data/x`" in shown
    assert "`rlc/arithmetic`" in shown


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (["config.json"], "config.json"),
        (["tokenizer.json", "tokenizer_config.json"], "`tokenizer.json`"),
        (["model.safetensors"], "model.safetensors"),
    ],
)
def test_a_model_folder_that_lacks_a_part_is_named(
    missing: list[str], named: str, fails: Fails, hollow: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(hollow, tmp_path / "model")
    for name in missing:
        (folder / name).unlink()
    shown = fails(f"model.path={folder}")
    assert f"`{folder}`" in shown
    assert named in shown


def test_half_a_weights_file_is_named(fails: Fails, llama_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama_folder, tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    shown = fails(f"model.path={folder}")
    assert f"`{weights}`" in shown
    assert str(weights.stat().st_size) in shown


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(fails: Fails, hollow: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(hollow, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 12}))
    assert "12" in fails(f"model.path={folder}").split()


def test_a_critic_with_fewer_ids_than_the_actor_is_refused(fails: Fails, hollow: Path, tmp_path: Path) -> None:
    critic = shutil.copytree(hollow, tmp_path / "critic")
    config = json.loads((critic / "config.json").read_text())
    (critic / "config.json").write_text(json.dumps(config | {"vocab_size": 12}))
    assert "12" in fails(f"model.critic_path={critic}").split()


def test_too_small_a_disk_is_refused_with_both_sizes(fails: Fails) -> None:
    """A-CKPT-03"""
    shown = fails("trainer.keep_checkpoints=1000000000", "trainer.num_steps=1000000000", "trainer.save_every=1")
    assert "1000000000" in shown
    assert shown.count(" TiB") >= 1
    assert "iB" in shown.rpartition(" TiB")[2] or shown.count(" TiB") > 1


def test_an_output_folder_that_cannot_be_made_is_named(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'}" in fails(f"trainer.output_dir={tmp_path / 'file' / 'run'}")
    assert f"`{tmp_path / 'file'}`" in fails(f"trainer.output_dir={tmp_path / 'file'}")


def test_a_folder_that_is_no_run_is_not_written_to(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    assert f"`{tmp_path / 'run'}`" in fails()


@pytest.fixture
def dry_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """What `rlc train --dry-run` says on stderr when it finds nothing wrong."""

    def run(model: Path, *arguments: str) -> str:
        given = [*settings(model, tmp_path / "run"), *arguments]
        code = main(["train", "--dry-run", "--hardware", str(RECORDINGS / "laptop_no_gpu.json"), *given])
        shown = capsys.readouterr()
        assert (code, shown.out) == (0, "")
        assert not (tmp_path / "run").exists()
        return shown.err

    return run


def test_a_dry_run_says_what_would_run_and_loads_and_writes_nothing(dry_run: Callable[..., str], hollow: Path) -> None:
    said = dry_run(hollow)
    assert "ppo" in said
    assert "i5-1135G7" in said
    assert "`cpu`" in said


def test_a_missing_chat_template_or_pad_token_is_replaced_and_said(
    dry_run: Callable[..., str], hollow: Path, tmp_path: Path
) -> None:
    """A-DATA-08"""
    folder = shutil.copytree(hollow, tmp_path / "model")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    character_tokenizer(chat_template=None, pad_token=None).save_pretrained(folder)
    said = dry_run(folder, "data.max_prompt_length=32")
    assert "`model.chat_template=plain`" in said
    assert "`<|end|>`" in said


def test_raw_gsm8k_is_converted_and_that_is_said(dry_run: Callable[..., str], hollow: Path, tmp_path: Path) -> None:
    """A-DATA-03"""
    file = write_parquet(tmp_path / "raw.parquet", [{"question": "1+1?", "answer": "so\n#### 2"}] * 8)
    said = dry_run(hollow, f"data.train_files={file}", "reward.functions=gsm8k", "data.max_prompt_length=256")
    assert "GSM8K" in said


def test_a_reward_process_does_not_outlive_a_dry_run(dry_run: Callable[..., str], hollow: Path) -> None:
    before = reward_processes()
    dry_run(hollow)
    assert reward_processes() == before


def test_what_a_reward_model_or_adapters_lack_is_known_before_anything_loads(fails: Fails, llama_folder: Path) -> None:
    said = fails(f"reward.model={llama_folder}", "reward.functions=[]", "--dry-run")
    assert f"`{llama_folder}`" in said and " 2 " in said
    assert "`nosuch`" in fails("model.lora_rank=4", "model.lora_targets=[nosuch]", "--dry-run")
