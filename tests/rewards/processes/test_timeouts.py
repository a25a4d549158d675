from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from fakes.processes import reward_processes

from rl_compat.errors import ConfigError
from rl_compat.rewards.processes import timeouts
from rl_compat.rewards.processes.custom import Call, failed
from rl_compat.rewards.processes.timeouts import FunctionProcesses, TimedFunction
from rl_compat.rewards.processes.worker import CallLimit
from rl_compat.rewards.types import RewardOutcome

SOURCE = """
import asyncio, os, pathlib, signal, subprocess, sys, time

def score(solution_str, ground_truth):
    if solution_str == "hang":
        time.sleep(60)
    if solution_str == "busy":
        while True:
            pass
    if solution_str == "exit":
        os._exit(7)
    if solution_str == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        time.sleep(60)
    if solution_str == "detached":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        pathlib.Path(ground_truth).write_text(str(child.pid))
        time.sleep(60)
    if solution_str == "fork" and os.fork() == 0:
        return 5.0
    if solution_str == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    if solution_str == "chatter":
        while True:
            print("x" * 10_000, flush=True)
    if solution_str == "raise":
        raise ValueError("bad text")
    if solution_str == "print":
        print("a line of the user")
    return float(solution_str == ground_truth)

def counted(solution_str, ground_truth):
    with open(ground_truth, "a") as file:
        file.write(solution_str)
    if solution_str != "y":
        time.sleep(60)
    return 1.0

def late(solution_str, ground_truth):
    time.sleep(1.2)
    return float(solution_str == ground_truth)

async def slow(solution_str, ground_truth):
    if solution_str == "hang":
        await asyncio.sleep(60)
    if solution_str == "busy":
        while True:
            pass
    await asyncio.sleep(0.2)
    return float(solution_str == ground_truth)

barrier = asyncio.Barrier(60)

async def together(solution_str, ground_truth):
    if solution_str == "hang":
        await asyncio.sleep(60)
    await barrier.wait()
    return float(solution_str == ground_truth)

def compute_scores(solution_strs, ground_truths):
    if "hang" in solution_strs:
        time.sleep(60)
    return [float(a == b) for a, b in zip(solution_strs, ground_truths)]
"""

Start = Callable[..., TimedFunction]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "mine.py").write_text(SOURCE)
    before = reward_processes()
    started: list[TimedFunction] = []

    def start_function(name: str = "score", *, timeout_seconds: float = 0.8) -> TimedFunction:
        function = TimedFunction(tmp_path / "mine.py", name, arguments={}, timeout_seconds=timeout_seconds)
        started.append(function)
        return function

    yield start_function
    for function in started:
        function.close()
    assert reward_processes() <= before, "a process was left behind"


def _calls(*texts: str, truth: str = "yes") -> list[Call]:
    return [
        Call(row=i, data_source="", solution_str=text, ground_truth=truth, extra_info={})
        for i, text in enumerate(texts)
    ]


def _summary(function: TimedFunction, *texts: str) -> list[float | str | None]:
    outcomes = function.outcomes(_calls(*texts))
    return [outcome.reward if outcome.failure is None else outcome.failure.kind for outcome in outcomes]


@pytest.mark.parametrize("stuck", ["hang", "busy"])
def test_a_call_that_never_returns_is_stopped_and_the_rest_goes_on(start: Start, stuck: str) -> None:
    """A-REW-10"""
    function = start()
    assert _summary(function, "yes", stuck, "no", "yes") == [1.0, "timeout", 0.0, 1.0]
    assert _summary(function, "yes") == [1.0]


def test_a_process_that_gets_no_processor_is_not_over_its_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call takes three times its limit, of which the system reports most as waiting for a processor."""
    function = start("late", timeout_seconds=0.4)
    begin = time.monotonic()
    monkeypatch.setattr(timeouts, "_seconds_without_processor", lambda pid: 0.9 * (time.monotonic() - begin))
    assert _summary(function, "yes") == [1.0]
    monkeypatch.setattr(timeouts, "_seconds_without_processor", lambda pid: 0.0)
    assert _summary(function, "yes") == ["timeout"]


def test_time_before_a_call_begins_is_not_part_of_its_limit(start: Start) -> None:
    """The process is stopped for longer than the limit before it can read its work."""
    function = start(timeout_seconds=0.4)
    assert function._process is not None
    child = psutil.Process(function._process.pid)
    child.suspend()
    threading.Timer(1.2, child.resume).start()
    assert _summary(function, "yes", "no") == [1.0, 0.0]


def test_waiting_for_a_processor_extends_a_limit_only_so_far(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "MAX_DELAY", 2.0)
    monkeypatch.setattr(timeouts, "_seconds_without_processor", lambda pid: time.monotonic())
    assert _summary(start(timeout_seconds=0.4), "hang", "yes") == ["timeout", 1.0]


def test_the_message_of_a_timeout_names_function_row_and_limit(start: Start) -> None:
    failure = start().outcomes(_calls("yes", "hang"))[1].failure
    assert failure is not None
    assert "`score`" in failure.message
    assert "row 1" in failure.message
    assert "0.8 s" in failure.message


def test_the_limit_falls_once_a_call_has_hung_but_not_below_what_calls_take() -> None:
    limit = CallLimit(60.0)
    assert limit.seconds == 60.0
    limit.count(failed("late", kind="timeout"), 60.0)
    assert limit.seconds == 6.0
    limit.count(RewardOutcome(reward=1.0), 2.0)
    assert limit.seconds == 20.0
    limit.count(RewardOutcome(reward=0.0), 9.0)
    assert limit.seconds == 60.0
    short = CallLimit(2.0, hung=True)
    assert short.seconds == 1.0


def test_calls_that_all_hang_take_a_few_limits_and_no_more(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "LEAST_LOST_SECONDS", 0.0)
    log = tmp_path / "log"
    outcomes = start("counted", timeout_seconds=0.2).outcomes(_calls(*"n" * 200, truth=str(log)))
    assert [outcome.failure.kind for outcome in outcomes if outcome.failure is not None] == ["timeout"] * 200
    assert 1 <= len(log.read_text()) <= 5


def test_rows_that_return_between_those_that_hang_keep_their_rewards(start: Start, tmp_path: Path) -> None:
    outcomes = start("counted", timeout_seconds=1.0).outcomes(_calls(*"ynyy", truth=str(tmp_path / "log")))
    assert [outcome.reward for outcome in outcomes] == [1.0, None, 1.0, 1.0]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_the_first_outcome_that_ends_the_run_ends_every_call(start: Start, tmp_path: Path, num_processes: int) -> None:
    log = tmp_path / "log"
    processes = FunctionProcesses(
        tmp_path / "mine.py", "counted", arguments={}, timeout_seconds=0.5, num_processes=num_processes
    )
    texts = ["y" if row % 2 else "n" for row in range(40)]
    outcomes = processes.outcomes(_calls(*texts, truth=str(log)), stops=lambda outcome: outcome.stops("stop"))
    processes.close()
    assert len(outcomes) == 40
    assert all(outcome.failure is not None and "row 0" in outcome.failure.message for outcome in outcomes)
    assert log.read_text().count("n") == 1


def test_a_coroutine_that_blocks_is_not_waited_for_twice(start: Start) -> None:
    function = start("slow", timeout_seconds=3.0)
    function._limit.hung = True
    assert _summary(function, "yes", "busy", "no") == [1.0, "timeout", 0.0]
    assert function._limit.seconds < 3.0


def test_overlapping_calls_after_a_wave_that_hung_have_a_shorter_limit(start: Start) -> None:
    outcomes = start("slow", timeout_seconds=3.0).outcomes(_calls(*["hang"] * 65))
    messages = [outcome.failure.message for outcome in outcomes if outcome.failure is not None]
    assert sum("3 s" in message for message in messages) == 64
    assert sum("1 s" in message for message in messages) == 1


def test_a_child_in_a_session_of_its_own_ends_with_the_call(start: Start, tmp_path: Path) -> None:
    function = start()
    assert function.outcomes(_calls("detached", truth=str(tmp_path / "pid")))[0].failure is not None
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)


def test_a_child_that_forked_answers_nothing(start: Start) -> None:
    function = start()
    assert _summary(function, "yes", "fork", "yes", "no") == [1.0, 0.0, 1.0, 0.0]
    assert _summary(function, "yes", "yes") == [1.0, 1.0]


def test_a_function_that_ignores_signals_is_stopped(start: Start) -> None:
    assert _summary(start(), "deaf", "yes") == ["timeout", 1.0]


def test_a_function_that_prints_without_end_fills_no_log(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    function = start()
    assert _summary(function, "chatter", "yes") == ["timeout", 1.0]
    function.close()
    assert timeouts.SHOWN_BYTES < len(capfd.readouterr().err) < 2 * timeouts.SHOWN_BYTES


def test_what_a_stopped_call_started_ends_with_it(start: Start) -> None:
    """A-REW-10"""
    assert _summary(start(), "child", "yes") == ["timeout", 1.0]


def test_a_call_that_ends_the_process_is_an_error_of_its_row(start: Start) -> None:
    outcomes = start().outcomes(_calls("yes", "exit", "yes"))
    assert [outcome.reward for outcome in outcomes] == [1.0, None, 1.0]
    assert outcomes[1].failure is not None
    assert "`score`" in outcomes[1].failure.message
    assert "7" in outcomes[1].failure.message
    assert "row 1" in outcomes[1].failure.message


def test_an_exception_is_an_error_of_its_row(start: Start) -> None:
    outcomes = start().outcomes(_calls("raise", "yes"))
    assert outcomes[1].reward == 1.0
    assert outcomes[0].failure is not None
    for literal in ("`score`", "row 0", "ValueError: bad text", "line 28 of `mine.py`"):
        assert literal in outcomes[0].failure.message


def test_any_thread_may_call_and_each_gets_its_own_answers(start: Start) -> None:
    """A-REW-09"""
    function = start()
    with ThreadPoolExecutor(4) as threads:
        texts = [("yes", "no"), ("no", "yes"), ("yes", "yes"), ("hang", "yes")]
        answers = list(threads.map(lambda pair: _summary(function, *pair), texts))
    assert answers == [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], ["timeout", 1.0]]


def test_coroutines_overlap_and_each_has_its_own_limit(start: Start) -> None:
    """None of the 60 returns before all of them wait."""
    function = start("together", timeout_seconds=5.0)
    assert _summary(function, *["yes"] * 60, "hang") == [1.0] * 60 + ["timeout"]


def test_a_coroutine_that_blocks_the_others_is_found_and_stopped(start: Start) -> None:
    """A-REW-10"""
    assert _summary(start("slow"), "yes", "busy", "no") == [1.0, "timeout", 0.0]


def test_a_batched_function_answers_for_all_or_none(start: Start) -> None:
    function = start("compute_scores", timeout_seconds=0.5)
    assert _summary(function, "yes", "no", "yes") == [1.0, 0.0, 1.0]
    assert _summary(function, "yes", "hang") == ["timeout", "timeout"]
    assert _summary(function, "yes") == [1.0]


def test_what_the_user_prints_goes_to_stderr(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    function = start()
    assert _summary(function, "print") == [0.0]
    function.close()
    captured = capfd.readouterr()
    assert captured.out == ""


def test_one_process_serves_many_calls(start: Start) -> None:
    function = start()
    _summary(function, "yes")
    first = reward_processes()
    _summary(function, "no")
    assert reward_processes() == first


def test_no_calls_are_no_outcomes(start: Start) -> None:
    assert start().outcomes([]) == []


def test_a_file_that_cannot_be_imported_is_refused_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\nos.does_not_exist()\n")
    before = reward_processes()
    with pytest.raises(ConfigError) as error:
        TimedFunction(tmp_path / "bad.py", "f", arguments={}, timeout_seconds=1)
    assert "line 2 of `bad.py`" in error.value.message
    (tmp_path / "gone.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(ConfigError) as error:
        TimedFunction(tmp_path / "gone.py", "f", arguments={}, timeout_seconds=1)
    assert "gone.py" in error.value.message
    assert reward_processes() == before


@pytest.mark.parametrize("text", ["yes", "hang", "busy"])
def test_the_worker_ends_when_its_parent_does_in_the_middle_of_a_call_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    parent = (
        "import os, pathlib, psutil, threading, time\n"
        "from rl_compat.rewards.processes.custom import Call\n"
        "from rl_compat.rewards.processes.timeouts import TimedFunction\n"
        f"file = pathlib.Path({str(tmp_path / 'mine.py')!r})\n"
        "function = TimedFunction(file, 'score', arguments={}, timeout_seconds=60)\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        f"call = Call(row=0, data_source='', solution_str={text!r}, ground_truth='', extra_info={{}})\n"
        "threading.Thread(target=function.outcomes, args=([call],), daemon=True).start()\n"
        "time.sleep(0.3)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=environment)
    worker = int(done.stdout)
    deadline = time.monotonic() + 120
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
