"""The pure parts of the comparison with TRL: options, results and ratios."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_trl")


@pytest.fixture
def results(bench: ModuleType) -> ModuleType:
    return importlib.import_module("bench_trl_report")


def options(*extra: str) -> list[str]:
    return ["--algorithm", "ppo", "--trl-python", sys.executable, *extra]


def side(steps: list[float], **work: int) -> dict:
    return {
        "versions": {"torch": "2.13.0"},
        "step_seconds": steps,
        "rollout_seconds": [s / 2 for s in steps],
        "work": {"prompt_tokens": 7, "response_tokens": 5} | work,
        "peak_rss_bytes": int(sum(steps)),
    }


def test_the_ratio_is_the_peers_median_over_ours_and_above_one_when_we_are_faster(results: ModuleType) -> None:
    rounds = [
        {"rl_compat": side([9.0, 1.0, 1.0, 3.0]), "trl": side([9.0, 2.0, 2.0, 8.0])},
        {"rl_compat": side([9.0, 2.0, 2.0, 2.0]), "trl": side([9.0, 3.0, 3.0, 3.0])},
        {"rl_compat": side([9.0, 1.0, 1.0, 1.0]), "trl": side([9.0, 3.0, 3.0, 3.0])},
    ]

    found = results.ratio(rounds, "step_seconds")

    assert found == {"median": 2.0, "lowest": 1.5, "highest": 3.0}


def test_first_steps_of_every_round_are_no_part_of_the_times(results: ModuleType) -> None:
    rounds = [{"rl_compat": side([100.0, 1.0, 2.0, 3.0]), "trl": side([100.0, 4.0, 5.0, 6.0])}] * 2

    found = results.summary(rounds)

    assert found["sides"]["rl_compat"]["step_seconds"] == {"median": 2.0, "low": 1.25, "high": 2.75}
    assert found["sides"]["trl"]["step_seconds"]["median"] == 5.0
    assert found["sides"]["trl"]["peak_rss_bytes"] == 115


def test_one_timed_step_is_its_own_spread(results: ModuleType) -> None:
    assert results.Spread.of([3.0]) == results.Spread(median=3.0, low=3.0, high=3.0)


def test_a_sides_result_is_found_among_what_its_libraries_print(bench: ModuleType) -> None:
    mark = bench.RESULT_MARK
    output = f"{{'loss': 0.1}}\n{mark}{json.dumps({'step_seconds': [1.0]})}\nbye\n"

    assert bench.parse_result(output) == {"step_seconds": [1.0]}
    with pytest.raises(ValueError, match="no line starts with"):
        bench.parse_result("nothing")


def test_sides_that_generated_different_numbers_of_tokens_are_told_apart(results: ModuleType) -> None:
    same = {"rl_compat": side([1.0])["work"], "trl": side([1.0], score_forwards=3)["work"]}
    other = {"rl_compat": side([1.0])["work"], "trl": side([1.0], response_tokens=4)["work"]}

    assert results.different_work(same) == []
    assert results.different_work(other) == ["response_tokens is 5 in rl_compat and 4 in trl"]


def test_the_group_and_the_kl_coefficient_follow_the_algorithm(bench: ModuleType) -> None:
    ppo = bench.parse(options())
    grpo = bench.parse(options("--algorithm", "grpo"))

    assert (ppo.group, ppo.kl_coef) == (1, 0.05)
    assert (grpo.group, grpo.kl_coef) == (4, 0.0)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--steps", "1"], "the first is dropped"),
        (["--prompts", "3", "--mini-batches", "2"], "not divisible"),
        (["--kl-coef", "0"], "always runs a reference"),
        (["--algorithm", "grpo", "--group", "1"], "at least 2 for GRPO"),
        (["--model", "medium"], "neither tiny nor small nor a folder"),
        (["--trl-python", "nowhere/python"], "is not a file"),
        (["--new-tokens", "0"], "at least 1"),
    ],
)
def test_options_that_cannot_be_measured_are_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], extra: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        bench.parse(options(*extra))

    assert exit_info.value.code == 2
    assert said in capsys.readouterr().err


def test_a_workload_reads_back_as_it_was_written_and_knows_its_sizes(bench: ModuleType, tmp_path: Path) -> None:
    workload = bench.Workload(
        algorithm="grpo",
        model="folder",
        prompts=[["a", "b"], ["c", "d"]],
        group=4,
        new_tokens=8,
        epochs=1,
        mini_batches=2,
        kl_coef=0.0,
        threads=2,
    )
    workload.save(tmp_path / "workload.json")

    assert bench.Workload.load(tmp_path / "workload.json") == workload
    assert (workload.responses_per_step, workload.mini_batch_responses) == (8, 4)
