"""The last line of every end says what happened, what is saved and what continues the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.runs import cpu, flip_a_byte, records, settings

from rl_compat.cli.app import main
from rl_compat.hardware.recording import save_recording


@pytest.fixture
def machine(tmp_path: Path) -> list[str]:
    save_recording(cpu(), tmp_path / "machine.json")
    return ["--hardware", str(tmp_path / "machine.json")]


def train(machine: list[str], *arguments: str) -> int:
    return main(["train", *machine, *arguments])


def test_a_run_of_two_steps_from_its_end_to_a_third_step(
    llama_folder: Path, tmp_path: Path, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished, nothing to do, continued by its folder, and begun again without its checkpoints."""
    run = tmp_path / "run"
    arguments = settings(llama_folder, run, num_steps=2)
    assert train(machine, *arguments) == 0
    shown = capsys.readouterr()
    assert "2 steps" in shown.err.splitlines()[-1]
    assert f"`rlc export {run}" in shown.err.splitlines()[-1]
    record = (run / "metrics.jsonl").read_bytes()

    assert train(machine, *arguments) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "nothing to do" in shown.err.splitlines()[-1]
    assert train(machine, str(run), "--json") == 0
    ended = json.loads(capsys.readouterr().out)
    assert (ended["ending"], ended["step"], ended["total_steps"]) == ("nothing to do", 2, 2)
    assert (run / "metrics.jsonl").read_bytes() == record

    assert train(machine, str(run), "trainer.num_steps=3", "trainer.loggers=jsonl") == 0
    assert [line["step"] for line in records(run) if "training/global_step" in line] == [1, 2, 3]

    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    former = (run / "metrics.jsonl").read_bytes()
    assert train(machine, str(run), "trainer.num_steps=1") == 0
    assert (run / "metrics.1.jsonl").read_bytes() == former
    assert "metrics.1.jsonl" in capsys.readouterr().err


def test_a_run_whose_checkpoints_are_all_damaged_stops_and_leaves_its_record(
    llama_folder: Path, tmp_path: Path, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = settings(llama_folder, run, num_steps=1)
    assert train(machine, *arguments) == 0
    record = (run / "metrics.jsonl").read_bytes()
    for checkpoint in (run / "checkpoints").iterdir():
        flip_a_byte(checkpoint / "actor" / "weights.safetensors")
    capsys.readouterr()

    assert train(machine, *arguments, "trainer.num_steps=2") == 1
    *_, error, hint, last = capsys.readouterr().err.splitlines()
    assert "`weights.safetensors`" in error
    assert f"`{run / 'checkpoints'}`" in hint and "`trainer.output_dir`" in hint
    assert str(run) not in last, "no command continues it"
    assert (run / "metrics.jsonl").read_bytes() == record


def test_no_command_is_said_to_continue_a_run_whose_data_changed(
    llama_folder: Path, tmp_path: Path, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = tmp_path / "run", tmp_path / "data.jsonl"
    rows = [json.dumps({"data_source": "rlc/arithmetic", "prompt": f"{a}+1=", "answer": str(a + 1)}) for a in range(8)]
    data.write_text("\n".join(rows))
    arguments = [*settings(llama_folder, run, num_steps=1), f"data.train_files={data}"]
    assert train(machine, *arguments) == 0
    data.write_text("\n".join([rows[1], *rows[1:]]))
    capsys.readouterr()

    assert train(machine, *arguments, "trainer.num_steps=2") == 2
    *_, hint, last = capsys.readouterr().err.splitlines()
    assert "`data.on_change=restart`" in hint
    assert str(run) not in last


def test_a_run_that_is_out_of_time_says_so_and_lists_only_files_that_exist(
    llama_folder: Path, tmp_path: Path, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(machine, *settings(llama_folder, run, num_steps=9, max_seconds=0.001, loggers="[]")) == 0
    shown = capsys.readouterr()
    assert "`trainer.max_seconds=0.001`" in shown.err.splitlines()[-1]
    assert f"`rlc train {run} --hardware" in shown.err.splitlines()[-1]
    listed = [line.split()[-1] for line in shown.out.splitlines() if str(run) in line]
    assert listed
    assert all(Path(path).exists() for path in listed)


def test_a_connection_that_is_lost_leaves_the_newest_step_and_nobody_to_read_the_output(
    llama_folder: Path, tmp_path: Path, machine: list[str]
) -> None:
    """SIGHUP twice, with both streams closed at the other end."""
    run = tmp_path / "run"
    arguments = settings(llama_folder, run, num_steps=500, save_every=0, loggers="console,jsonl")
    command = [sys.executable, "-m", "rl_compat", "train", *machine, *arguments]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also where the tests run under nohup
    )
    assert process.stdout is not None
    assert process.stderr is not None
    while b"step:2" not in process.stdout.readline():
        pass
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    time.sleep(0.01)
    process.send_signal(signal.SIGHUP)

    assert process.wait() == 128 + signal.SIGHUP
    (checkpoint,) = (run / "checkpoints").iterdir()
    last = max(line["step"] for line in records(run) if "training/global_step" in line)
    assert checkpoint.name == f"step_{last}"


@pytest.mark.parametrize(
    ("argument", "hint"),
    [("sum", "`sums`"), ("grpp", "`algorithm.name=grpo`"), ("chat.jsonl", "`data.train_files=chat.jsonl`")],
)
def test_an_argument_that_is_no_settings_file_names_what_was_meant(
    argument: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jsonl").write_text("{}\n")

    assert main(["train", argument]) == 2
    assert hint in capsys.readouterr().err


def test_a_run_that_does_not_exist_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "sums").mkdir(parents=True)
    (tmp_path / "runs" / "sums" / "run.toml").touch()

    assert main(["eval", "runs/sum"]) == 2
    shown = capsys.readouterr().err
    assert "`runs/sum`" in shown
    assert "`runs/sums`" in shown
