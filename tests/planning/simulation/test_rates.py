"""Times of a simulation from a plan and from a run, and lengths of responses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, quantiles

import pytest
from fakes.machines import recorded

from rl_compat.config.toml_file import to_toml
from rl_compat.config.types import AlgorithmConfig, PlanConfig, RolloutConfig, RunConfig, TrainerConfig
from rl_compat.errors import UsageError
from rl_compat.planning.cluster import Cluster
from rl_compat.planning.run import run_plan, simulate_run
from rl_compat.planning.serialize import save_plan
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.planning.simulation.flow import Flow, simulate
from rl_compat.planning.simulation.rates import given_lengths, lognormal_lengths, measured_flow, recorded_lengths
from rl_compat.planning.speed.rates import network_link
from rl_compat.planning.workload import run_workload

GRPO = RunConfig(
    algorithm=AlgorithmConfig(name="grpo", group_size=4), trainer=TrainerConfig(batch_size=32, mini_batch_size=8)
)
LIKE = Flow(
    on_update="continue", batch_rows=64, num_slots=1, decode_seconds=2.0, sequence_seconds=0.5, prefill_seconds=1.0
)
STEP = {
    "timing_s/gen": 3.0,
    "timing_s/reward": 0.5,
    "timing_s/old_log_prob": 1.0,
    "timing_s/update_actor": 4.0,
    "timing_s/step": 9.625,
    "timing_s/handover": 0.125,
    "handover/seconds": 0.25,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two devices with 128 responses a step, whose first step was slow."""
    config = replace(GRPO, plan=PlanConfig(num_devices=2))
    workload = run_workload(config, {"actor": SMOLLM2_135M})
    save_plan(run_plan(config, workload, recorded("p40_two")), tmp_path / "plan.json")
    (tmp_path / "run.toml").write_text(to_toml(config))
    steps = [STEP | {"timing_s/gen": 90.0}, STEP, {"timing_s/testing": 7.0}, STEP | {"timing_s/gen": 4.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    samples = [{"step": 1, "num_tokens": length} for length in range(1, 101)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples) + '{"num_tok')
    return tmp_path


def test_measured_times_are_those_of_the_steps_after_the_first(run: Path) -> None:
    flow = measured_flow(run, [100], like=LIKE)
    assert "2 steps" in flow.source
    assert flow.row_seconds == pytest.approx(5.0 * 2 / 128), "of two devices"
    assert flow.step_seconds == 0.5, "what a step takes outside of its phases"
    assert (flow.reward_seconds, flow.handover_seconds, flow.batch_rows) == (0.5, 0.25, 64)


def test_measured_generation_takes_as_long_when_it_is_simulated(run: Path) -> None:
    lengths = [20, 100, 60]
    flow = measured_flow(run, lengths, like=LIKE)
    assert flow.sequence_seconds == pytest.approx(flow.decode_seconds * 0.25)
    again = replace(flow, generating=2, batch_rows=128, reward_seconds=0.0, row_seconds=0.0, step_seconds=0.0)
    found = simulate(replace(again, in_turn=True), lengths, num_steps=4)
    assert found.seconds / 4 == pytest.approx(3.5 - 0.25)


def test_a_folder_without_timed_steps_is_a_usage_error(run: Path) -> None:
    (run / "metrics.jsonl").write_text(json.dumps(STEP) + "\n")
    with pytest.raises(UsageError):
        measured_flow(run, [100], like=LIKE)
    with pytest.raises(UsageError, match=r"nowhere/samples\.jsonl"):
        recorded_lengths(run / "nowhere", longest=10)


def test_estimated_times_follow_the_plan() -> None:
    config = replace(GRPO, plan=PlanConfig(num_devices=2))
    workload = run_workload(config, {"actor": SMOLLM2_135M})
    cluster = Cluster(nodes=(recorded("p40_two"),), network=network_link(10))
    pool = run_plan(config, workload, cluster).pools["main"]
    learned = sum(seconds for phase, seconds in pool.phase_seconds.items() if phase != "rollout")

    longest = workload.max_response_length
    flow = simulate_run(config, workload, cluster, [longest]).synchronous.flow
    assert flow.row_seconds * 128 / 2 == pytest.approx(learned)
    assert flow.step_seconds == pytest.approx(sum(item.seconds or 0.0 for item in pool.transfers))
    half = simulate_run(config, workload, cluster, [longest // 2]).synchronous.flow
    tokens = workload.max_prompt_length + longest // 2
    assert half.row_seconds == pytest.approx(flow.row_seconds * tokens / workload.length)
    assert half.decode_seconds == flow.decode_seconds


def test_a_device_may_hold_the_sequences_of_all() -> None:
    config = replace(GRPO, plan=PlanConfig(num_devices=2))
    workload = run_workload(config, {"actor": SMOLLM2_135M})
    found = simulate_run(config, workload, recorded("p40_two"), [50])
    assert found.synchronous.flow.num_slots == 128
    assert found.best is not None
    assert (found.best.flow.generating, found.best.flow.learning) == (1, 1)


def test_an_unknown_processor_needs_a_measured_run(run: Path) -> None:
    config = replace(GRPO, plan=PlanConfig(device="cpu", num_devices=2))
    workload = run_workload(config, {"actor": SMOLLM2_135M})
    with pytest.raises(UsageError):
        simulate_run(config, workload, recorded("p40_two"), [50])
    found = simulate_run(config, workload, recorded("p40_two"), [50], measured=run)
    assert 3600 / found.synchronous.outcome.steps_per_hour == pytest.approx(9.5 - 0.25), "the step, as measured"


def test_a_lognormal_has_the_mean_and_the_percentile() -> None:
    lengths = lognormal_lengths(900, 4000, longest=100_000)
    assert fmean(lengths) == pytest.approx(900, rel=0.03)
    assert quantiles(lengths, n=100)[-1] == pytest.approx(4000, rel=0.05)
    assert max(lognormal_lengths(900, 4000, longest=2048)) == 2048


@pytest.mark.parametrize("text", ["900,900", "900,20000", "0,10"])
def test_a_mean_and_percentile_that_no_lognormal_has_are_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        given_lengths(text, longest=100_000)


def test_lengths_are_drawn_from_the_samples_of_a_run(run: Path) -> None:
    lengths = given_lengths(str(run), longest=80)
    assert set(lengths) == set(range(1, 81))
    assert lengths.count(80) / len(lengths) == pytest.approx(0.21, abs=0.02)
    (run / "samples.jsonl").write_text('{"num_tokens": 5}\n')
    with pytest.raises(UsageError):
        given_lengths(str(run), longest=80)


def test_lengths_that_are_not_given_end_at_the_longest_response() -> None:
    lengths = given_lengths(None, longest=3000)
    assert max(lengths) == 3000
    assert 0.005 < lengths.count(3000) / len(lengths) < 0.015


def test_a_simulation_of_engines_of_several_devices_is_refused() -> None:
    config = RunConfig(rollout=RolloutConfig(tensor_parallel=2), plan=PlanConfig(num_devices=2))
    with pytest.raises(UsageError, match="tensor_parallel` is 2"):
        simulate_run(config, run_workload(config, {"actor": SMOLLM2_135M}), recorded("p40_two"), [50])
