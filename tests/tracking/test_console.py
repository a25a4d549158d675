from __future__ import annotations

import io
import math

import pytest

from rl_compat.tracking.build import ConsoleTracker, format_line


def test_a_step_is_one_line_of_names_and_values():
    line = format_line(3, {"actor/pg_loss": -0.0123456789, "critic/rewards/mean": 0.25, "response_length/max": 256})

    assert line == "step:3 - actor/pg_loss:-0.012346 - critic/rewards/mean:0.25 - response_length/max:256"


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-6, 3.3e-12, 123456.78, 1e20, 7, -3.14159265, 99999.96])
def test_a_script_that_splits_the_line_reads_the_values_back(value):
    line = format_line(12, {"perf/throughput": value, "timing_s/gen": 1.5})

    fields = dict(field.rsplit(":", 1) for field in line.split(" - "))
    assert list(fields) == ["step", "perf/throughput", "timing_s/gen"]
    assert int(fields["step"]) == 12
    assert float(fields["perf/throughput"]) == pytest.approx(value, rel=1e-4)


def test_values_that_are_not_finite_are_printed_as_such():
    assert format_line(1, {"a": math.nan, "b": math.inf, "c": -math.inf}) == "step:1 - a:nan - b:inf - c:-inf"


def test_lines_go_to_stdout_and_nothing_else_does(capsys):
    tracker = ConsoleTracker()

    tracker.log(1, {"critic/score/mean": 0.5})
    tracker.log(2, {})
    tracker.close()

    assert capsys.readouterr() == ("step:1 - critic/score/mean:0.5\nstep:2\n", "")


def test_what_people_read_is_shown_and_the_rest_is_left_to_the_record():
    stream = io.StringIO()
    read = {"critic/score/mean": 0.5, "actor/pg_loss": 0.1, "val-core/gsm8k/acc/mean@1": 0.25, "reward/errors": 2.0}
    rest = {"critic/score/max": 1.0, "rollout_corr/kl": 0.1, "reward/timeouts": 0.0, "timing_s/adv": 0.1}

    ConsoleTracker(stream).log(1, read | rest)

    assert stream.getvalue() == format_line(1, read) + "\n"


def test_50_steps_are_less_than_50_kb():
    """The metrics of a step of PPO, each as long as a value gets."""
    names = ("actor/{}", "critic/{}", "training/{}", "rollout_corr/{}", "timing_s/{}", "memory_gb/{}/allocated")
    values = ("pg_loss", "ppo_kl", "lr", "grad_norm", "vf_loss", "entropy", "gen", "step", "update_actor", "score/mean")
    metrics = {name.format(value): -1.2345e-10 for name in names for value in values}
    stream = io.StringIO()
    for step in range(50):
        ConsoleTracker(stream).log(step, metrics)

    assert len(stream.getvalue()) < 50_000
