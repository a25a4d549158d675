from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError, DataError, RewardError
from rl_compat.rewards.score import EarlyOutcomes, Scorer, ScoreRequest, build_scorer
from rl_compat.trajectory import Prompt

Build = Callable[..., Scorer]

SOURCE = """import time

def one(solution_str): return 1.0
def info(solution_str): return {"score": 0.5, "acc": 0, "length": len(solution_str)}
def mixed(solution_str, data_source): return 1.0 if data_source == "a" else {"score": 0.0, "acc": 0}
def keyless(solution_str): return {"acc": 1}
def none_for_b(solution_str): return None if solution_str == "b" else 1.0
def nan(solution_str): return float("nan")
def text(solution_str): return "1.0"
def short(solution_strs): return [1.0]
short.batched = True
def hang(solution_str):
    if "hang" in solution_str:
        time.sleep(60)
    return 1.0
def scaled(solution_str, scale): return float(scale)
def counts(solution_strs): return [float(len(solution_strs))] * len(solution_strs)
counts.batched = True
calls = []
def times(solution_str):
    calls.append(solution_str)
    return len(calls)
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


@pytest.fixture
def build() -> Iterator[Build]:
    built: list[Scorer] = []

    def build_one(
        *functions: str,
        data_sources: tuple[str, ...] = ("openai/gsm8k",),
        max_length: int | None = None,
        **settings: Any,
    ) -> Scorer:
        config = RewardConfig(functions=functions, **settings)
        built.append(build_scorer(config, data_sources=data_sources, max_response_length=max_length))
        return built[-1]

    yield build_one
    for scorer in built:
        scorer.close()


def _requests(*texts: str, source: str = "openai/gsm8k", truth: str = "42") -> list[ScoreRequest]:
    return [
        ScoreRequest(
            response_text=text,
            prompt=Prompt(token_ids=(1,), text="p", data_source=source, ground_truth=truth, row=10 + i),
        )
        for i, text in enumerate(texts)
    ]


def test_rewards_are_the_weighted_sum_of_the_functions(build: Build) -> None:
    scores = build("gsm8k", "gsm8k_format", weights=(1.0, 0.2)).score(_requests("#### 42", "it is 42", "#### 41", "no"))
    assert scores.rewards == pytest.approx((1.2, 1.0, 0.2, 0.0))
    assert scores.components == {"gsm8k": (1.0, 1.0, 0.0, 0.0), "gsm8k_format": (1.0, 0.0, 1.0, 0.0)}
    assert scores.correct == (True, True, False, False)
    assert scores.extras["answer"] == ("42", "42", "41", None)
    assert scores.metrics == {
        "reward/timeouts": 0.0,
        "reward/errors": 0.0,
        "reward/unscored": 0.0,
        "reward/gsm8k": 0.5,
        "reward/gsm8k_format": 0.5,
        "reward/no_answer_fraction": 0.25,
    }


def test_auto_follows_the_data_source_of_each_row(build: Build) -> None:
    scorer = build("auto", data_sources=("openai/gsm8k", "rlc/arithmetic"))
    requests = _requests("it is 42") + _requests("it is 42", "42", source="rlc/arithmetic")
    assert scorer.score(requests).rewards == (1.0, 0.0, 1.0)


def test_a_source_may_have_a_function_of_its_own(build: Build, mine: str) -> None:
    sources = {"mine/*": f"{mine}:scaled", "texts": "exact_match"}
    found = ("openai/gsm8k", "mine/a", "texts")
    scorer = build("auto", sources=sources, data_sources=found, function_arguments={"scale": "3"})
    requests = _requests("42") + _requests("x", source="mine/a") + _requests("x", source="texts", truth="X")
    scores = scorer.score(requests)
    assert scores.rewards == (1.0, 3.0, 1.0)
    assert scores.components == {"auto": (1.0, 3.0, 1.0)}
    assert scores.correct == (True, None, True)


def test_the_function_of_a_source_is_named_where_it_fails(build: Build, mine: str) -> None:
    scorer = build("auto", sources={"b": f"{mine}:nan"}, data_sources=("b",))
    with pytest.raises(RewardError) as error:
        scorer.score(_requests("x", source="b"))
    assert "`nan`" in error.value.message
    assert re.search(r"\b10\b", error.value.message)


def test_sources_without_auto_are_refused(build: Build) -> None:
    with pytest.raises(ConfigError) as error:
        build("gsm8k", sources={"a": "gsm8k"})
    assert "`reward.sources`" in error.value.message
    assert "`auto`" in error.value.message


def test_numbers_that_functions_name_are_in_the_metrics_and_can_be_parts(build: Build, mine: str) -> None:
    scores = build("gsm8k", f"{mine}:info", weights=(1.0, 0.5)).score(_requests("#### 42", "no"))
    assert (scores.metrics["reward/length"], scores.metrics["reward/acc"]) == (4.5, 0.0)
    assert scores.parts() == {"gsm8k": (1.0, 0.0), "info": (0.5, 0.5)}
    assert scores.parts(["length", "gsm8k"]) == {"length": (7.0, 2.0), "gsm8k": (1.0, 0.0)}
    assert scores.weights == {"gsm8k": 1.0, "info": 0.5}
    with pytest.raises(RewardError) as error:
        scores.parts(["lenght"])
    assert "`lenght`" in error.value.message
    assert "`length`" in str(error.value.hint)


def test_a_row_that_is_left_out_is_none_in_every_part(build: Build, mine: str) -> None:
    scorer = build("gsm8k", f"{mine}:none_for_b", on_error="skip")
    assert scorer.score(_requests("42", "b")).parts() == {"gsm8k": (1.0, None), "none_for_b": (1.0, None)}


def test_the_length_in_tokens_reaches_a_function_that_takes_it(build: Build, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("def f(response_length): return response_length\n")
    requests = [replace(request, response_ids=(5, 6, 7)) for request in _requests("x")]
    assert build(f"{tmp_path / 'long.py'}:f").score(requests).rewards == (3.0,)


@pytest.mark.parametrize("num_processes", [1, 3])
def test_responses_are_dealt_out_among_processes_and_come_back_in_order(
    build: Build, tmp_path: Path, num_processes: int
) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "def f(solution_str):\n"
        "    time.sleep(0.05)\n"
        "    return {'score': float(solution_str), 'pid': os.getpid()}\n"
    )
    scorer = build(f"{tmp_path / 'slow.py'}:f", num_processes=num_processes)
    scores = scorer.score(_requests(*map(str, range(7))))
    assert scores.rewards == tuple(map(float, range(7)))
    assert len(set(scores.extras["pid"])) == num_processes


def test_a_batched_function_sees_all_responses_in_one_process(build: Build, tmp_path: Path) -> None:
    (tmp_path / "all.py").write_text(
        "def compute_scores(solution_strs): return [len(solution_strs)] * len(solution_strs)\n"
    )
    assert (
        build(f"{tmp_path / 'all.py'}:compute_scores", num_processes=3).score(_requests(*"abcd")).rewards == (4.0,) * 4
    )


def test_an_unknown_data_source_is_refused_before_the_run_and_in_it(build: Build) -> None:
    """A-DATA-04"""
    with pytest.raises(DataError) as error:
        build("auto", data_sources=("openai/gsm8k", "/data/gsm8k"))
    assert "`/data/gsm8k`" in error.value.message
    scorer = build("auto", data_sources=())
    with pytest.raises(DataError) as error:
        scorer.score(_requests("x", source="elsewhere"))
    assert "`elsewhere`" in error.value.message
    assert re.search(r"\b10\b", error.value.message)


@pytest.mark.parametrize(
    ("functions", "settings", "literals"),
    [
        (("gsm8k_strct",), {}, ["`gsm8k_strct`"]),
        (("nothing.py:f",), {}, ["`nothing.py`"]),
        ((), {}, ["`reward.functions`"]),
        (("gsm8k",), {"weights": (1.0, 2.0)}, ["`reward.weights`", "2", "`reward.functions`", "1"]),
        (("gsm8k", "gsm8k"), {}, ["`gsm8k`"]),
        (("gsm8k",), {"function_arguments": {"x": "1"}}, ["`reward.functions`", "`x`"]),
    ],
)
def test_what_cannot_work_is_refused_when_built(
    build: Build, functions: tuple[str, ...], settings: dict[str, Any], literals: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        build(*functions, **settings)
    assert all(literal in error.value.message for literal in literals)


def test_extra_arguments_reach_the_function_and_never_replace_ours(build: Build, mine: str) -> None:
    assert build(f"{mine}:scaled", function_arguments={"scale": "3"}).score(_requests("x")).rewards == (3.0,)
    with pytest.raises(ConfigError) as error:
        build(f"{mine}:one", function_arguments={"solution_str": "3"})
    assert "`reward.function_arguments.solution_str`" in error.value.message


def test_numbers_and_dicts_may_mix_and_missing_extras_are_blank(build: Build, mine: str) -> None:
    """A-REW-12"""
    requests = _requests("x", source="a") + _requests("x", source="b")
    scores = build(f"{mine}:mixed").score(requests)
    assert scores.rewards == (1.0, 0.0)
    assert scores.extras == {"acc": (None, 0)}
    assert scores.correct == (None, False)


@pytest.mark.parametrize("on_error", ["stop", "zero", "skip"])
@pytest.mark.parametrize(
    ("function", "literals"),
    [
        ("keyless", ["`acc`", "10", "`score`"]),
        ("text", ["`'1.0'`", "10"]),
        ("short", ["1", "4"]),
    ],
)
def test_misuse_stops_the_run_whatever_the_policy(
    build: Build, mine: str, function: str, literals: list[str], on_error: str
) -> None:
    """A-REW-08, A-REW-12"""
    with pytest.raises(RewardError) as error:
        build(f"{mine}:{function}", on_error=on_error).score(_requests(*"abcd"))
    assert f"`{function}`" in error.value.message
    assert all(literal in error.value.message for literal in literals)


def test_none_stops_the_run_by_default_naming_function_and_row(build: Build, mine: str) -> None:
    """A-REW-07"""
    with pytest.raises(RewardError) as error:
        build(f"{mine}:none_for_b").score(_requests("a", "b", "c"))
    assert "`none_for_b`" in error.value.message
    assert "`None`" in error.value.message
    assert "row 11" in error.value.message
    assert "reward.on_error=skip" in str(error.value.hint)


def test_none_is_left_out_or_scored_zero_only_when_asked_and_is_said(build: Build, mine: str) -> None:
    """A-REW-07"""
    requests = _requests("a", "b", "c")
    skipped = build(f"{mine}:none_for_b", on_error="skip").score(requests)
    assert skipped.rewards == (1.0, None, 1.0)
    assert (skipped.metrics["reward/unscored"], skipped.metrics["reward/none_for_b"]) == (1.0, 1.0)
    assert "`none_for_b`" in skipped.notes[0]
    zero = build(f"{mine}:none_for_b", on_error="zero").score(requests)
    assert zero.rewards == (1.0, 0.0, 1.0)
    assert (zero.metrics["reward/errors"], zero.metrics["reward/unscored"]) == (1.0, 0.0)


def test_nan_is_an_error(build: Build, mine: str) -> None:
    with pytest.raises(RewardError) as error:
        build(f"{mine}:nan").score(_requests("a"))
    assert "`nan`" in error.value.message
    assert re.search(r"\b10\b", error.value.message)


def test_a_hanging_function_costs_its_own_row_only(build: Build, mine: str) -> None:
    """A-REW-10"""
    scorer = build(f"{mine}:hang", "gsm8k_format", on_error="zero", timeout_seconds=1.0)
    scores = scorer.score(_requests("a", "hang", "b", "c"))
    assert scores.rewards == (1.0, 0.0, 1.0, 1.0)
    assert scores.metrics["reward/timeouts"] == 1.0
    assert scores.metrics["reward/errors"] == 0.0


def test_a_hanging_function_stops_the_run_at_its_first_row(build: Build, mine: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "slow.py").write_text(
        f"import time\ndef f(solution_str):\n    open({str(log)!r}, 'a').write('x')\n    time.sleep(600)\n"
    )
    scorer = build(f"{tmp_path / 'slow.py'}:f", f"{mine}:one", timeout_seconds=1.0)
    with pytest.raises(RewardError) as error:
        scorer.score(_requests(*["a"] * 1319))
    assert "`f`" in error.value.message and "row 10" in error.value.message and "1 s" in error.value.message
    assert "`reward.timeout_seconds`" in str(error.value.hint)
    assert log.read_text() == "x"


def test_a_python_function_is_not_called_again_after_a_failure_that_stops_the_run() -> None:
    called: list[str] = []

    def fails(solution_str: str) -> float:
        called.append(solution_str)
        raise ValueError(solution_str)

    config = RewardConfig(functions=("python:fails",))
    scorer = build_scorer(config, data_sources=(), callables={"python:fails": fails})
    with pytest.raises(RewardError):
        scorer.score(_requests("a", "b", "c"))
    assert called == ["a"]


def test_scoring_from_another_thread_gives_the_same(build: Build) -> None:
    """A-REW-09"""
    scorer = build("gsm8k")
    requests = _requests("#### 42", "#### 41")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(scorer.score, requests).result() == scorer.score(requests)


def test_a_strict_rule_that_finds_nothing_is_said_once_with_the_way_out(build: Build) -> None:
    """A-REW-13"""
    scorer = build("gsm8k_strict")
    requests = _requests(*["The answer is 42."] * 8)
    first, second = scorer.score(requests), scorer.score(requests)
    assert first.rewards == (0.0,) * 8
    assert first.metrics["reward/no_answer_fraction"] == 1.0
    assert len(first.notes) == 1
    for literal in ("`gsm8k_strict`", "`#### <number>`", "8", "`reward.functions=gsm8k`"):
        assert literal in first.notes[0]
    assert second.notes == ()
    assert build("gsm8k").score(requests).rewards == (1.0,) * 8


def test_functions_of_one_name_in_two_files_are_told_apart(build: Build, mine: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def one(solution_str): return 2.0\n")
    specs = (f"{mine}:one", f"{tmp_path / 'other.py'}:one")
    scores = build(*specs).score(_requests("x"))
    assert scores.components == {specs[0]: (1.0,), specs[1]: (2.0,)}
    assert scores.rewards == (3.0,)


def test_extras_of_one_name_are_told_apart_by_their_function(build: Build, mine: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def two(solution_str): return {'score': 1, 'length': -1}\n")
    scores = build(f"{mine}:info", f"{tmp_path / 'other.py'}:two").score(_requests("xyz"))
    assert scores.extras == {"acc": (0,), "length": (3,), "two.length": (-1,)}


EARLY = {
    "built-in": ("gsm8k", "gsm8k_format"),
    "that use correctness": ("gsm8k", "cosine_length"),
    "of a file, alone and all at once": ("gsm8k", "{mine}:info", "{mine}:counts"),
}


def wait_for(early: EarlyOutcomes, requests: list[ScoreRequest], places: list[int]) -> None:
    """Let responses that have ended wait to be scored."""
    early.waiting.extend((place, partial(requests.__getitem__, place)) for place in places)


@pytest.mark.parametrize("functions", EARLY.values(), ids=EARLY)
def test_what_is_scored_early_gets_the_scores_of_all_at_once(
    functions: tuple[str, ...], build: Build, mine: str
) -> None:
    names = [name.format(mine=mine) for name in functions]
    scorer = build(*names, max_length=64)
    requests = [replace(r, response_ids=(1, 2)) for r in _requests("#### 42", "it is 42", "#### 41", "no", "#### 4")]
    early = EarlyOutcomes()
    wait_for(early, requests, [3, 0])
    scorer.score_early(early)
    wait_for(early, requests, [4])
    scorer.score_early(early)
    assert set(early.by_place) == {0, 3, 4}
    assert scorer.score(requests, early) == build(*names, max_length=64).score(requests)


def test_a_function_is_not_called_twice_for_a_response(build: Build, mine: str) -> None:
    scorer, requests = build(f"{mine}:times"), _requests("a", "b", "c")
    early = EarlyOutcomes()
    wait_for(early, requests, [1])
    scorer.score_early(early)
    assert scorer.score(requests, early).rewards == (2.0, 1.0, 3.0)


def test_a_failure_that_ends_the_run_is_raised_by_the_scores_of_all(build: Build, mine: str) -> None:
    scorer, requests = build(f"{mine}:none_for_b"), _requests("a", "b", "c")
    early = EarlyOutcomes()
    wait_for(early, requests, [1, 2])
    scorer.score_early(early)
    assert early.is_over and not early.by_place
    with pytest.raises(RewardError, match="row 11"):
        scorer.score(requests, early)


def test_new_functions_score_what_others_have_scored_early(build: Build, mine: str) -> None:
    requests, early = _requests("a", "b"), EarlyOutcomes()
    wait_for(early, requests, [0, 1])
    build(f"{mine}:one").score_early(early)
    assert build(f"{mine}:scaled", function_arguments={"scale": "3"}).score(requests, early).rewards == (3.0, 3.0)
