"""A run that was stopped goes on as if it had not been."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.processes import reward_processes
from fakes.runs import GRPO_LORA, PPO, copy_at_step, flip_a_byte, records, settings, steps, train
from safetensors.torch import load_file

from rl_compat.cli.app import main
from rl_compat.errors import CheckpointError, ConfigError, DamagedCheckpointError, DataError
from rl_compat.tracking.timeline import read_spans
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.run_folder import RunFolder

STEPS = {"num_steps": 6}


def weights(run: Path, role: str, step: int = 6) -> dict[str, Any]:
    return load_file(run / "checkpoints" / f"step_{step}" / role / "weights.safetensors")


def assert_same_weights(run: Path, other: Path, role: str, step: int = 6) -> None:
    mine, others = weights(run, role, step), weights(other, role, step)
    assert mine.keys() == others.keys()
    assert all(mine[name].equal(others[name]) for name in mine)


class Signals:
    """A reporter that sends this process a signal when a phase of a step begins."""

    def __init__(self, number: int, *, phase: str, step: int, times: int = 1) -> None:
        self.lines: list[str] = []
        self._number, self._phase, self._step, self._times = number, phase, step, times
        self._now = 0

    def say(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        if name == "step":
            self._now = done + 1
        elif name == self._phase and self._now == self._step:
            while self._times:
                self._times -= 1
                os.kill(os.getpid(), self._number)


def test_kill_9_in_step_4_and_the_same_command_again_give_the_uninterrupted_run(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path, on_one_core: list[str]
) -> None:
    """A-CKPT-02"""
    run = tmp_path / "run"
    killed_by_its_reward = {"reward.function_arguments.signal": "9", "reward.function_arguments.at_call": "5"}
    arguments = settings(llama_folder, run, PPO, killed_by_its_reward, **STEPS)
    command = [sys.executable, "-m", "rl_compat", "train", *on_one_core, *arguments]
    with (tmp_path / "shown").open("w") as shown:
        code = subprocess.run(command, stdout=shown, stderr=shown, timeout=240, check=False).returncode
    assert code == -signal.SIGKILL, (tmp_path / "shown").read_text()
    assert (find_newest(run / "checkpoints").step, max(steps(run))) == (3, 3)

    train(arguments)

    assert steps(run) == steps(whole_ppo_run)
    assert_same_weights(run, whole_ppo_run, "actor")
    assert_same_weights(run, whole_ppo_run, "critic")


def test_a_validation_that_a_killed_process_did_not_reach_is_made_up_for(llama_folder: Path, tmp_path: Path) -> None:
    """Between the checkpoint of a step and its validation; later steps have the same groups."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    changes = GRPO_LORA | {"model.lora_dropout": 0.0}
    often = {"validate_every": 1, "validate_before": False, "num_steps": 3, "keep_checkpoints": 3}
    train(settings(llama_folder, whole, changes, **often))
    copy_at_step(whole, run, 2)
    kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[:3]
    assert ['"training/global_step"' in line for line in kept] == [True, False, True]
    (run / "metrics.jsonl").write_text("".join(kept))

    train(settings(llama_folder, run, changes, **often))

    assert [record["step"] for record in records(run)] == [record["step"] for record in records(whole)]
    assert [record.get("val-aux/response_length/mean") for record in records(run)] == [
        record.get("val-aux/response_length/mean") for record in records(whole)
    ]
    assert (run / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()


def test_the_compared_run_learns_and_moves_its_controllers(whole_ppo_run: Path) -> None:
    """What the tests here compare is not a row of zeros."""
    of_step = steps(whole_ppo_run)
    assert list(of_step) == [1, 2, 3, 4, 5, 6]
    assert [of_step[n]["training/epoch"] for n in of_step] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert len({of_step[n]["actor/reward_kl_penalty_coeff"] for n in of_step}) > 3
    assert len({of_step[n]["actor/lr"] for n in of_step}) == 6
    assert all(of_step[n]["actor/grad_norm"] > 0 and of_step[n]["critic/grad_norm"] > 0 for n in of_step)
    assert of_step[6]["actor/reward_kl_penalty"] > 0


@pytest.mark.parametrize(
    ("number", "phase", "saved"),
    [(signal.SIGINT, "gen", 3), (signal.SIGTERM, "update_actor", 4), (signal.SIGTERM, "saving step 4", 4)],
)
def test_a_signal_saves_the_newest_step_and_the_run_goes_on_from_there(
    number: int, phase: str, saved: int, whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    """A-UX-02, A-CKPT-02"""
    run = tmp_path / "run"
    reporter = Signals(number, phase=phase, step=4)
    arguments = settings(llama_folder, run, PPO, **STEPS, save_every=4)

    outcome = train(arguments, reporter=reporter)

    assert outcome.interrupted is not None
    assert outcome.interrupted.exit_code == 128 + number
    assert (outcome.step, outcome.checkpoint) == (saved, run / "checkpoints" / f"step_{saved}")
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step_{saved}"]
    train(arguments)
    assert steps(run) == steps(whole_ppo_run)
    assert_same_weights(run, whole_ppo_run, "actor")
    assert_same_weights(run, whole_ppo_run, "critic")


def test_a_second_signal_in_an_update_saves_no_half_made_step(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    reporter = Signals(signal.SIGINT, phase="update_actor", step=4, times=2)

    outcome = train(settings(llama_folder, run, PPO, **STEPS, save_every=2), reporter=reporter)

    assert (outcome.step, find_newest(run / "checkpoints").step) == (2, 2)
    assert "step 4" in reporter.lines[-1]


def test_a_signal_while_models_load_ends_the_run_without_an_error(llama_folder: Path, tmp_path: Path) -> None:
    class Loading(Signals):
        def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
            if name == "loading the critic":
                os.kill(os.getpid(), self._number)

    outcome = train(
        settings(llama_folder, tmp_path / "run", PPO, **STEPS),
        reporter=Loading(signal.SIGTERM, phase="", step=0),
    )
    assert outcome.interrupted is not None
    assert (outcome.step, outcome.checkpoint) == (0, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_with_the_signals_code_and_one_line_on_how_to_resume(
    number: int, llama_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    """A-UX-02: the signal comes while the process of a custom reward works, for longer than a test may take."""
    signalled = {
        "reward.function_arguments.signal": int(number),
        "reward.function_arguments.at_call": "3",
        "data.val_files": "",
    }
    arguments = settings(llama_folder, tmp_path / "run", signalled, **STEPS)
    code = main(["train", *on_one_core, *arguments])

    shown = capfd.readouterr().err
    assert code == 128 + number
    assert {signal.Signals(number).name, "step 2"} <= set(re.findall(r"SIG\w+|step \d+", shown.splitlines()[-1]))
    assert "Traceback" not in shown
    assert not reward_processes()


def test_adapters_resume_with_the_same_base_names_and_numbers(llama_folder: Path, tmp_path: Path) -> None:
    """A-CKPT-02, A-CKPT-07: GRPO with LoRA, its dropout drawn from torch's generator; the KL is that to the base."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(settings(llama_folder, whole, GRPO_LORA, num_steps=4))
    train(settings(llama_folder, parts, GRPO_LORA, num_steps=2))
    train(settings(llama_folder, parts, GRPO_LORA, num_steps=4, keep_checkpoints=3))

    assert steps(parts) == steps(whole)
    assert steps(whole)[4]["actor/kl_loss"] > 0
    assert_same_weights(parts, whole, "actor", step=4)
    names = weights(parts, "actor", 2).keys()
    assert names == weights(parts, "actor", 4).keys()
    assert all("lora_" in name for name in names)


@pytest.mark.parametrize(("total", "warns"), [(6, False), (12, True)])
def test_a_schedule_goes_on_without_a_new_warm_up(
    total: int, warns: bool, whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    """A-CKPT-08: with another total the rate is that of the same step in the new schedule, and both totals are said."""
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 3)
    reporter = Signals(signal.SIGINT, phase="gen", step=5)
    train(settings(llama_folder, run, PPO, num_steps=total, keep_checkpoints=6), reporter=reporter)

    rates = [steps(run)[n]["actor/lr"] for n in (2, 3, 4)]
    expected = steps(whole_ppo_run)[4]["actor/lr"]
    said = [line for line in reporter.lines if {"24", "48"} <= set(re.findall(r"\d+", line))]
    assert bool(said) is warns
    if warns:
        assert expected < rates[2] < rates[0]
    else:
        assert rates[2] == expected


def test_samples_and_times_of_steps_done_again_are_not_kept_twice(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 5)
    train(settings(llama_folder, run, PPO, **STEPS, keep_checkpoints=6))
    assert (run / "samples.jsonl").read_text() == (whole_ppo_run / "samples.jsonl").read_text()
    assert [span.step for span in read_spans(run / "timeline.jsonl") if span.name == "step"] == [1, 2, 3, 4, 5, 6]


def test_a_finished_run_started_again_trains_nothing(whole_ppo_run: Path, llama_folder: Path, tmp_path: Path) -> None:
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 6)
    record = (run / "metrics.jsonl").read_bytes()
    outcome = train(settings(llama_folder, run, PPO, **STEPS, keep_checkpoints=6))
    assert (outcome.ending, outcome.step, outcome.curve) == ("nothing to do", 6, ())
    assert (run / "metrics.jsonl").read_bytes() == record


def test_an_incomplete_newest_checkpoint_is_passed_over_and_said(
    whole_ppo_run: Path,
    llama_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_one_core: list[str],
) -> None:
    """A-CKPT-01"""
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 6)
    (run / "checkpoints" / "step_6" / "critic" / "training.pt").unlink()
    assert main(["train", *on_one_core, *settings(llama_folder, run, PPO, **STEPS)]) == 0

    shown = capsys.readouterr().err
    assert "note: `step_6` is not complete: `critic/training.pt` is missing" in shown
    assert "resumed at step 5" in shown
    assert steps(run) == steps(whole_ppo_run)


@pytest.mark.parametrize("file", ["critic/weights.safetensors", "actor/training.pt"])
def test_a_checkpoint_that_turns_out_damaged_while_it_loads_is_replaced_by_the_one_before(
    file: str, whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 6)
    flip_a_byte(run / "checkpoints" / "step_6" / file)
    assert find_newest(run / "checkpoints").step == 6, "sizes do not show the damage"
    reporter = Signals(0, phase="", step=0)

    outcome = train(settings(llama_folder, run, PPO, **STEPS, keep_checkpoints=6), reporter=reporter)

    assert (outcome.step, len(outcome.curve)) == (6, 1)
    assert len([line for line in reporter.lines if Path(file).name in line and "`step_5`" in line]) == 1
    assert [record["step"] for record in records(run)] == [record["step"] for record in records(whole_ppo_run)]
    assert steps(run) == steps(whole_ppo_run)
    assert (run / "samples.jsonl").read_text() == (whole_ppo_run / "samples.jsonl").read_text()
    assert_same_weights(run, whole_ppo_run, "actor")
    assert_same_weights(run, whole_ppo_run, "critic")


def test_files_of_an_earlier_save_do_not_pass_for_those_of_a_later_one(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    """CKPTD-04"""
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 6)
    earlier, later = (run / "checkpoints" / name / "critic" for name in ("step_5", "step_6"))
    sums = (later / "sums.json").read_bytes()
    shutil.copytree(earlier, later, dirs_exist_ok=True)
    found = find_newest(run / "checkpoints")
    assert found.step == 5
    assert "`critic/sums.json`" in found.skipped[0]

    (later / "sums.json").write_bytes(sums)
    (later / "worker.json").write_bytes((whole_ppo_run / "checkpoints/step_6/critic/worker.json").read_bytes())
    reporter = Signals(0, phase="", step=0)
    train(settings(llama_folder, run, PPO, **STEPS, keep_checkpoints=6), reporter=reporter)
    assert any("does not match its checksum" in line and "`step_5`" in line for line in reporter.lines)
    assert_same_weights(run, whole_ppo_run, "critic")


def test_a_damaged_checkpoint_neither_stays_newest_nor_displaces_another(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    """The run stops before it reaches the damaged step again."""
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 6)
    shutil.rmtree(run / "checkpoints" / "step_5")
    flip_a_byte(run / "checkpoints" / "step_6" / "actor" / "weights.safetensors")
    reporter = Signals(signal.SIGINT, phase="gen", step=6)
    stopped = train(settings(llama_folder, run, PPO, **STEPS, keep_checkpoints=1), reporter=reporter)
    assert (stopped.step, find_newest(run / "checkpoints").step) == (5, 5)
    assert (run / "checkpoints" / "step_6" / "actor" / "weights.safetensors").exists()


def test_a_named_checkpoint_with_a_damaged_file_is_an_error_that_names_both_and_the_one_before(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    other = copy_at_step(whole_ppo_run, tmp_path / "other", 6)
    damaged, before = (other / "checkpoints" / name for name in ("step_6", "step_5"))
    flip_a_byte(damaged / "actor" / "weights.safetensors")
    with pytest.raises(DamagedCheckpointError) as stop:
        train(settings(llama_folder, tmp_path / "run", PPO, **STEPS, resume=damaged))
    assert "weights.safetensors" in stop.value.message and str(damaged) in stop.value.message
    assert f"trainer.resume={before}" in str(stop.value.hint)
    assert find_newest(other / "checkpoints").path == damaged, "a folder of another run is not changed"


def test_a_damaged_only_checkpoint_is_an_error_and_the_record_stays(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 1)
    flip_a_byte(run / "checkpoints" / "step_1" / "actor" / "weights.safetensors")
    with pytest.raises(DamagedCheckpointError):
        train(settings(llama_folder, run, PPO, **STEPS))
    assert list(steps(run)) == [1]


def test_a_run_whose_every_checkpoint_is_incomplete_does_not_start_anew(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    run = copy_at_step(whole_ppo_run, tmp_path / "run", 2)
    for step in (1, 2):
        (run / "checkpoints" / f"step_{step}" / "actor" / "training.pt").unlink()
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError) as stop:
        train(settings(llama_folder, run, PPO, **STEPS))
    assert {"`step_2`", "`actor/training.pt`"} <= set(re.findall("`[^`]*`", stop.value.message))
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_folder_of_another_run_is_refused_with_both_values(
    whole_ppo_run: Path, llama_folder: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    before = (whole_ppo_run / "metrics.jsonl").read_bytes()
    other = {"algorithm.gamma": 0.5, "data.seed": 7}
    code = main(["train", *on_one_core, *settings(llama_folder, whole_ppo_run, PPO, other, **STEPS)])

    shown = capsys.readouterr().err
    assert code == 2
    assert "holds another run: `data.seed` was 1 and is 7, `algorithm.gamma` was 1.0 and is 0.5" in shown
    assert (whole_ppo_run / "metrics.jsonl").read_bytes() == before


def test_resume_never_protects_a_run(whole_ppo_run: Path, llama_folder: Path) -> None:
    with pytest.raises(ConfigError, match="already holds a run"):
        train(settings(llama_folder, whole_ppo_run, PPO, **STEPS, resume="never"))


def test_a_named_checkpoint_starts_a_run_in_a_new_folder_which_then_continues_itself(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    start = whole_ppo_run / "checkpoints" / "step_4"
    arguments = settings(llama_folder, tmp_path / "run", PPO, **STEPS, resume=start)
    stopped = train(arguments, reporter=Signals(signal.SIGINT, phase="gen", step=6))
    assert stopped.step == 5
    train(arguments)

    assert list(steps(tmp_path / "run")) == [5, 6]
    assert steps(tmp_path / "run")[6] == steps(whole_ppo_run)[6]


def test_going_back_behind_newer_checkpoints_is_refused(whole_ppo_run: Path, llama_folder: Path) -> None:
    start = whole_ppo_run / "checkpoints" / "step_4"
    with pytest.raises(ConfigError, match=r"holds step 6 and .* names step 4"):
        train(settings(llama_folder, whole_ppo_run, PPO, **STEPS, resume=start))


def test_other_data_under_the_same_name_is_noticed_before_models_load(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    start = whole_ppo_run / "checkpoints" / "step_4"
    other = {"data.max_train_samples": 24}
    with pytest.raises(DataError, match=r"\b16\b.*\b24\b"):
        train(settings(llama_folder, tmp_path / "run", PPO, other, **STEPS, resume=start))


def test_a_crash_between_settings_and_first_step_does_not_block_the_folder(
    whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.toml.writing").write_text("half")
    outcome = train(settings(llama_folder, tmp_path / "run", PPO, num_steps=1))
    assert outcome.step == 1
    assert steps(tmp_path / "run")[1].keys() == steps(whole_ppo_run)[1].keys()
    assert RunFolder(tmp_path / "run").settings.is_file()
    assert [record["step"] for record in records(tmp_path / "run")] == [0, 1, 1]
