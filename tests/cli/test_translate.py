"""`rlc translate`: what it shows, and that it means what `rlc train` would do."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path

import pytest
from fakes.verl_settings import load_config

from rl_compat.cli.app import main
from rl_compat.verl import read_words

COMMANDS = {
    "p40": Path(__file__).parents[1] / "verl" / "p40_command.txt",
    "quickstart": Path(__file__).parents[1] / "verl" / "quickstart_command.txt",
}
A, R, C = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
RUNS = {
    "ppo with a KL": ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl+", "algorithm.lam=0.95"],
    "grpo": ["algorithm.adv_estimator=grpo", f"{R}.n=5", f"{A}.use_kl_loss=True", f"{A}.kl_loss_type=k3+"],
    "a larger batch than mini-batch": ["data.train_batch_size=64", f"{A}.ppo_mini_batch_size=32"],
    "the default batch and another mini-batch": ["data.train_batch_size=32", f"{A}.ppo_mini_batch_size=16"],
    "dapo": [
        "algorithm.adv_estimator=grpo",
        f"{R}.n=8",
        f"{A}.clip_ratio_high=0.28",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.max_num_gen_batches=10",
        "reward.reward_manager.name=dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward.reward_kwargs.overlong_buffer_cfg.len=64",
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
        "+reward.reward_kwargs.max_resp_len=256",
    ],
    "dr_grpo": [
        "algorithm.adv_estimator=grpo",
        f"{R}.n=4",
        "algorithm.norm_adv_by_std_in_grpo=False",
        f"{A}.loss_agg_mode=seq-mean-token-sum-norm",
    ],
    "correction": [
        f"{C}.rollout_is=sequence",
        f"{C}.rollout_is_threshold=0.5_5.0",
        f"{C}.rollout_rs='token_k1,seq_max_k3'",
        f"{C}.rollout_rs_threshold='0.6_1.6,0.01'",
    ],
    "ours and verl's": ["data.train_batch_size=8", "trainer.max_seconds=60", "algorithm.name=grpo", f"{R}.n=2"],
    "ours alone": ["algorithm.name=dapo", "algorithm.group_size=4", "trainer.loggers=[console]"],
    "a text with quotes": ["trainer.experiment_name='a \"b\" c'", "data.train_files=[\"a b.parquet\",'c.parquet']"],
}


def translated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["translate", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("name", [*RUNS, *COMMANDS])
def test_the_settings_are_those_that_training_with_the_arguments_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = RUNS[name] if name in RUNS else COMMANDS[name].read_text(encoding="utf-8").split()
    path = tmp_path / "new" / "run.toml"

    code, out, _ = translated(capsys, "--output", str(path), *arguments)

    assert (code, out) == (0, "")
    assert load_config(path).config == load_config(None, arguments).config


def test_only_what_differs_is_written_and_its_keys_stand_over_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = translated(capsys, "data.train_batch_size=8", f"{A}.clip_ratio_c=3.0", "trainer.nnodes=1")

    assert tomllib.loads(out) == {"trainer": {"batch_size": 8}}
    assert out.splitlines() == ["[trainer]", "# data.train_batch_size=8: prompts", "batch_size = 8"]


def test_the_table_has_the_worst_first_and_the_summary_last(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = translated(
        capsys,
        "data.train_batch_size=8",
        f"{R}.ignore_eos=True",
        f"{A}.use_torch_compile=False",
        f"{A}.fsdp_config.param_offload=True",
    )

    rows = [line.split()[0] for line in err.splitlines() if line.startswith("  ") and "." in line.split()[0]]
    assert code == 1
    translated_key = f"{A}.fsdp_config.param_offload"
    assert rows[:4] == [f"{R}.ignore_eos", f"{A}.use_torch_compile", translated_key, "data.train_batch_size"]
    assert [int(number) for number in re.findall(r"\d+", err.splitlines()[-1])] == [4, 1, 1, 1, 1]
    assert out.splitlines()[-1].startswith(f"# {R}.ignore_eos=True: ")


def test_an_unknown_key_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """A-UX-05."""
    code, out, _ = translated(capsys, "--json", "data.train_batchsize=8", "trainer.total_epochs=2")

    line = json.loads(out)["keys"][0]
    assert code == 1
    assert (line["key"], line["verdict"]) == ("data.train_batchsize", "refused")
    assert "`data.train_batch_size`" in line["hint"]


def test_settings_that_do_not_go_together_are_refused_under_the_key_that_was_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = translated(capsys, "--json", "data.train_batch_size=8", f"{A}.ppo_mini_batch_size=3")

    line = next(line for line in json.loads(out)["keys"] if line["verdict"] == "refused")
    assert code == 1
    assert line["key"] == f"{A}.ppo_mini_batch_size"


def test_json_has_the_settings_and_a_verdict_on_each_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = translated(capsys, "--json", "data.train_batch_size=8", f"{R}.name=vllm")

    shown = json.loads(out)
    assert code == 0
    assert tomllib.loads(shown["toml"]) == {"trainer": {"batch_size": 8}}
    assert shown["keys"][0] == {
        "key": "data.train_batch_size",
        "value": "8",
        "verdict": "honoured",
        "becomes": ["trainer.batch_size"],
        "why": "prompts",
        "hint": None,
    }
    assert [int(number) for number in re.findall(r"\d+", err)] == [2, 1, 1]


def test_a_script_takes_the_arguments_after_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=8 $@\n", encoding="utf-8")

    code, out, err = translated(capsys, str(script), "trainer.total_epochs=2", "data.seed=3")

    assert code == 0
    assert tomllib.loads(out) == {"trainer": {"batch_size": 8, "num_epochs": 2}, "data": {"seed": 3}}
    assert err.startswith("note: ")
    assert "`verl.trainer.main_ppo`" in err.splitlines()[0]
    assert "`run.sh`" in err.splitlines()[0]


def test_a_file_of_data_is_refused_with_its_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "chat.jsonl"
    data.write_text('{"prompt": "a"}\n', encoding="utf-8")

    code, out, err = translated(capsys, str(data))

    assert (code, out) == (2, "")
    assert f"`data.train_files={data}`" in err


def test_a_script_without_a_suffix_and_one_on_stdin_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!/bin/sh\npython3 -m verl.trainer.main_ppo data.train_batch_size=8\n"
    (tmp_path / "launch").write_text(text, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    expected = {"trainer": {"batch_size": 8}}
    assert tomllib.loads(translated(capsys, str(tmp_path / "launch"))[1]) == expected
    assert tomllib.loads(translated(capsys, "-")[1]) == expected


def test_a_whole_command_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["python3", "-m", "verl.trainer.main_ppo", "--config-name=ppo_trainer", "data.train_batch_size=8"]

    assert tomllib.loads(translated(capsys, *words)[1]) == {"trainer": {"batch_size": 8}}
    assert [argument.key for argument in read_words(words).arguments] == ["--config-name", "data.train_batch_size"]


@pytest.mark.parametrize(
    ("words", "literal"),
    [
        ([], "script|args"),
        (["run_missing.sh"], "`run_missing.sh`"),
        ([""], "``"),
        (["/dev"], "`/dev` is a folder"),
        (["torchrun", "-m", "verl.trainer.fsdp_sft_trainer", "data.train_batch_size=8"], "`algorithm.name=sft`"),
        (["python3", "scripts/model_merger.py", "merge"], "`scripts/model_merger.py`"),
        (["--output", "/dev/null/x.toml", "data.train_batch_size=8"], "/dev/null/x.toml"),
    ],
)
def test_what_cannot_be_read_or_written_is_a_usage_error(
    words: list[str], literal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = translated(capsys, *words)

    assert code == 2
    assert literal in err.lower()
    assert "Traceback" not in err


def test_training_takes_a_script_and_refuses_it_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m verl.trainer.main_ppo data.train_batch_size=8 {R}.ignore_eos=True\n")

    code = main(["train", str(script)])

    shown = capsys.readouterr()
    assert code == 2
    assert f"`{R}.ignore_eos=True`" in shown.err
