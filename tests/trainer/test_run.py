"""What a run leaves behind, and the ways in which it can go wrong."""

from __future__ import annotations

import errno
import json
import math
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch
from fakes.runs import PPO, Lines, settings, steps, train
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl_compat.cli.app import main
from rl_compat.config.load import load_config
from rl_compat.errors import WRITE_FAILURES, ConfigError, ModelError, NotFiniteError, RewardError, RLCompatError
from rl_compat.planning.memory.budget import checkpoint_bytes
from rl_compat.planning.serialize import load_plan
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.workload import run_workload
from rl_compat.tracking.timeline import read_spans
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.run_folder import RunFolder

QUICK = {"data.val_files": ""}
HALF = {"plan.compute_dtype": "fp16", "plan.rollout_dtype": "fp32"}


def test_the_settings_of_a_run_read_back_as_they_were(whole_ppo_run: Path, llama_folder: Path) -> None:
    given = settings(llama_folder, whole_ppo_run, PPO, num_steps=6, keep_checkpoints=6, loggers="jsonl,tensorboard")
    assert load_config(whole_ppo_run / "run.toml").config == load_config(None, given).config


def test_the_plan_of_a_run_has_its_roles_and_reasons(whole_ppo_run: Path) -> None:
    plan = load_plan(whole_ppo_run / "plan.json")
    assert set(plan.roles) == {"actor", "critic", "reference"}
    pool = plan.pool_of("actor")
    assert pool.devices == ("cpu",)
    assert all(choice.reason for choice in pool.choices.values())


def test_metrics_are_one_object_per_line_with_the_names_that_scripts_read(whole_ppo_run: Path) -> None:
    lines = [json.loads(line) for line in (whole_ppo_run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert {"actor/pg_loss", "critic/vf_loss", "critic/score/mean", "response_length/mean"} < lines[1].keys()
    assert {"timing_s/gen", "timing_s/step", "timing_s/update_actor", "perf/throughput"} < lines[1].keys()
    assert lines[1]["training/rollout_logprobs_diff_max"] < 1e-4
    assert lines[1]["timing_s/step"] >= lines[1]["timing_s/gen"] + lines[1]["timing_s/update_actor"]
    measured = "val-aux/rlc/arithmetic/compute_scores/mean@1"
    assert measured in lines[0]
    assert measured in lines[-1]


def test_samples_show_prompt_response_and_reward(whole_ppo_run: Path) -> None:
    samples = [json.loads(line) for line in (whole_ppo_run / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [step for step in range(1, 7) for _ in range(4)]
    groups = [sample["group"] for sample in samples]
    assert groups == sorted(set(groups))
    assert [sample["policy_versions"] for sample in samples] == [[sample["step"] - 1] for sample in samples]
    first = samples[0]
    assert re.search(r"\d+\+\d+=", first["prompt"])
    assert sum(map(int, re.findall(r"\d+", first["prompt"])[:2])) == int(first["ground_truth"])
    assert first["reward"] == pytest.approx(
        sum(c.isdigit() for c in first["response"]) / 8 + len(first["response"]) / 100
    )
    assert first["num_tokens"] <= 8


def test_the_timeline_has_the_phases_and_calls_of_every_step(whole_ppo_run: Path) -> None:
    spans = list(read_spans(whole_ppo_run / "timeline.jsonl"))
    whole = {span.step: span for span in spans if span.name == "step"}
    assert list(whole) == [1, 2, 3, 4, 5, 6]
    for step, outer in whole.items():
        inside = [span for span in spans if outer.start <= span.start and span.end <= outer.end]
        names = [span.name for span in inside]
        assert {"gen", "update_actor", "CriticWorker.update", "PolicyWorker.update"} < set(names)
        (generated,) = [span for span in inside if span.name == "RolloutWorker.generate"]
        assert (generated.lane, generated.version) == ("main/0", step - 1)


def test_tensorboard_has_every_step(whole_ppo_run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole_ppo_run / "tensorboard")).Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("critic/score/mean")]
    expected = [(step, pytest.approx(record["critic/score/mean"])) for step, record in steps(whole_ppo_run).items()]
    assert scalars == expected


def test_a_checkpoint_is_as_large_as_was_planned_before_loading(whole_ppo_run: Path, llama_folder: Path) -> None:
    config = load_config(whole_ppo_run / "run.toml").config
    workload = run_workload(config, {"actor": ModelShape.from_folder(llama_folder)})
    planned = checkpoint_bytes(workload, load_plan(whole_ppo_run / "plan.json"))
    files = (whole_ppo_run / "checkpoints" / "step_6").rglob("*")
    assert planned == pytest.approx(sum(path.stat().st_size for path in files if path.is_file()), rel=0.25)


def test_lines_of_the_console_are_those_of_verl(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", num_steps=2, loggers="console,jsonl")
    assert main(["train", *on_one_core, *arguments]) == 0

    shown = capsys.readouterr().out.splitlines()
    lines = [line for line in shown if line.startswith("step:")]
    assert [line.split(" - ")[0] for line in lines] == ["step:0", "step:1", "step:2", "step:2"]
    fields = dict(field.rsplit(":", 1) for field in lines[1].split(" - "))
    assert float(fields["critic/score/mean"]) == pytest.approx(
        steps(tmp_path / "run")[1]["critic/score/mean"], rel=1e-4
    )
    assert "mean reward by step" in shown
    assert f"checkpoint  {tmp_path / 'run' / 'checkpoints' / 'step_2'}" in shown


def test_the_outcome_as_json_is_alone_on_stdout(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", QUICK, num_steps=1)
    assert main(["train", "--json", *on_one_core, *arguments]) == 0

    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["step"], outcome["interrupted"], len(outcome["rewards"])) == (1, False, 1)
    assert outcome["checkpoint"] == str(tmp_path / "run" / "checkpoints" / "step_1")


def test_validation_between_steps_has_a_line_of_its_own(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings(llama_folder, run, num_steps=3, validate_every=2, validate_before="false", save_every=0))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], "timing_s/testing" in line) for line in lines] == [
        (1, False),
        (2, False),
        (2, True),
        (3, False),
        (3, True),
    ]
    assert find_newest(run / "checkpoints").step == 3


def test_no_held_out_data_is_no_validation(llama_folder: Path, tmp_path: Path) -> None:
    outcome = train(settings(llama_folder, tmp_path / "run", QUICK, num_steps=1, validate_every=1))
    assert (outcome.step, outcome.before, outcome.after) == (1, None, None)


def test_a_time_limit_ends_the_run_after_a_step_with_a_checkpoint(llama_folder: Path, tmp_path: Path) -> None:
    outcome = train(settings(llama_folder, tmp_path / "run", QUICK, num_steps=50, save_every=0, max_seconds=1))
    assert 1 <= outcome.step < 50
    assert find_newest(tmp_path / "run" / "checkpoints").step == outcome.step


def test_only_the_critic_learns_while_it_warms_up(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings(llama_folder, run, QUICK, {"algorithm.critic_warmup_steps": 1}, num_steps=2))
    assert ["actor/pg_loss" in steps(run)[n] for n in (1, 2)] == [False, True]
    assert all("critic/vf_loss" in steps(run)[n] for n in (1, 2))


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_one_to_resume_from(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_one_core: list[str]
) -> None:
    """A-CKPT-03"""
    run = tmp_path / "run"
    arguments = settings(llama_folder, run, QUICK, num_steps=2)
    train(settings(llama_folder, run, QUICK, num_steps=1))
    capsys.readouterr()
    with files_no_larger_than(40_000):
        code = main(["train", *on_one_core, *arguments])

    shown = capsys.readouterr().err
    assert code == 1
    assert f"`{run / 'checkpoints' / 'step_2'}`" in shown
    assert WRITE_FAILURES[errno.EFBIG][0] in shown
    assert f"`rlc train {run}" in shown.splitlines()[-1]
    assert "Traceback" not in shown
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_1"]
    assert train(arguments).step == 2
    assert list(steps(run)) == [1, 2]


def test_metrics_that_cannot_be_written_end_the_run_with_the_folder_named(llama_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(settings(llama_folder, run, QUICK, num_steps=1))
    largest = max(path.stat().st_size for path in run.iterdir() if path.is_file())
    for limit, what in ((100, "the settings of the run"), (largest + 1000, r"step \d")):
        with files_no_larger_than(limit), pytest.raises(RLCompatError) as stop:
            train(settings(llama_folder, run, QUICK, num_steps=12, save_every=0))
        assert re.match(what, stop.value.message)
        assert f"`{run}`: {WRITE_FAILURES[errno.EFBIG][0]}" in stop.value.message
        assert find_newest(run / "checkpoints").step == 1


def test_a_failing_reward_stops_the_run_and_keeps_the_steps_before_it(llama_folder: Path, tmp_path: Path) -> None:
    fails_in_step_3 = {"reward.function_arguments.none_at": "3"}
    arguments = settings(llama_folder, tmp_path / "run", QUICK, fails_in_step_3, num_steps=4, save_every=0)
    with pytest.raises(RewardError, match="compute_scores"):
        train(arguments)
    assert find_newest(tmp_path / "run" / "checkpoints").step == 2
    assert train(arguments).step == 4


def test_a_step_without_any_reward_is_skipped_and_said(llama_folder: Path, tmp_path: Path) -> None:
    """A-ALG-13: every response of step 2 is left out."""
    run, listener = tmp_path / "run", Lines()
    nothing_in_step_2 = {"reward.function_arguments.none_at": "2", "reward.on_error": "skip"}
    outcome = train(settings(llama_folder, run, PPO, QUICK, nothing_in_step_2, num_steps=3), reporter=listener)

    of_step = steps(run)
    assert (of_step[2]["actor/skipped_steps"], of_step[2]["critic/skipped_steps"]) == (4.0, 4.0)
    assert of_step[2]["reward/unscored"] == 8
    assert (of_step[1]["actor/skipped_steps"], of_step[3]["actor/skipped_steps"]) == (0.0, 0.0)
    assert [math.isnan(reward) for reward in outcome.curve] == [False, True, False]
    assert all(value is not None for record in of_step.values() for value in record.values())
    assert all(any(f"`{role}`" in line for line in listener.lines) for role in ("actor", "critic"))
    before, after = (load_file(run / "checkpoints" / f"step_{n}" / "actor" / "weights.safetensors") for n in (2, 3))
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert any(not tensor.equal(before[name]) for name, tensor in after.items())


def test_fp16_that_overflows_stops_with_advice_before_a_weight_changes(llama_folder: Path, tmp_path: Path) -> None:
    """A-ALG-14: the activations of digits pass 65504, in the log-probabilities before the first update."""
    folder = overflowing(llama_folder, tmp_path / "model", on_special_tokens_too=False)
    grouped = {"algorithm.name": "grpo", "algorithm.group_size": 2}

    with pytest.raises(NotFiniteError, match="`fp16`") as stop:
        train(settings(folder, tmp_path / "run", QUICK, HALF, grouped, num_steps=6))

    assert "plan.compute_dtype=fp32" in str(stop.value.hint)
    assert steps(tmp_path / "run") == {}
    assert find_newest(tmp_path / "run" / "checkpoints").path is None


def test_a_model_that_fp16_cannot_hold_is_refused_before_the_first_step(llama_folder: Path, tmp_path: Path) -> None:
    """A-ALG-14"""
    folder = overflowing(llama_folder, tmp_path / "model", on_special_tokens_too=True)
    with pytest.raises(ModelError) as stop:
        train(settings(folder, tmp_path / "run", QUICK, HALF))
    assert "plan.compute_dtype=fp32" in str(stop.value.hint)


def overflowing(model_folder: Path, to: Path, *, on_special_tokens_too: bool) -> Path:
    """A copy whose last MLP gives more than fp16 holds: for all tokens, or for all but `<|end|><|user|>`."""
    folder = shutil.copytree(model_folder, to)
    model = AutoModelForCausalLM.from_pretrained(folder)
    projection = model.model.layers[1].mlp.down_proj
    inputs: list[torch.Tensor] = []
    projection.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0][0]))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight *= 100
        model(torch.tensor([[1, 2]]))
        row = torch.randn(inputs[0].shape[1], generator=torch.Generator().manual_seed(0))
        if not on_special_tokens_too:
            row -= inputs[0].T @ torch.linalg.lstsq(inputs[0].T, row[:, None]).solution[:, 0]
        projection.weight[0] = 3e3 * row / row.abs().max()
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("installed", [False, True])
def test_wandb_without_the_package_or_without_a_key_warns_once_and_training_goes_on(
    installed: bool,
    llama_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_one_core: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-UX-01"""
    if installed:
        pytest.importorskip("wandb")
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = settings(llama_folder, tmp_path / "run", QUICK, num_steps=1, loggers="jsonl,wandb")
    assert main(["train", *on_one_core, *arguments]) == 0

    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len([line for line in warnings if "W&B" in line]) == 1
    assert list(steps(tmp_path / "run")) == [1]


def test_an_emulated_p40_trains_with_its_own_choices(
    llama_folder: Path, tmp_path: Path, on_one_core: list[str]
) -> None:
    run = tmp_path / "run"
    assert (
        main(["train", *on_one_core, "--as", "Tesla P40", *settings(llama_folder, run, PPO, QUICK, num_steps=1)]) == 0
    )
    plan = load_plan(run / "plan.json")
    pool = plan.pool_of("actor")
    assert (pool.emulated, pool.profile) == ("Tesla P40", "pascal")
    assert plan.roles["actor"].compute_dtype == "fp32"
    assert list(steps(run)) == [1]


def test_two_processes_do_not_train_in_one_folder(llama_folder: Path, tmp_path: Path) -> None:
    arguments = settings(llama_folder, tmp_path / "run", PPO, QUICK, num_steps=1)
    with closing(RunFolder(tmp_path / "run").lock()), pytest.raises(ConfigError, match="run"):
        train(arguments)
    assert not (tmp_path / "run" / "run.toml").exists()
    assert train(arguments).step == 1
