"""Signals stop a run where nothing is lost."""

from __future__ import annotations

import os
import signal

import pytest

from rl_compat.trainer.interrupt import Interrupted, StopSignals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138), (signal.SIGQUIT, 131)],
)
def test_a_signal_outside_a_protected_section_stops_at_once(number: int, code: int) -> None:
    signals = StopSignals(lambda text: None)
    with pytest.raises(Interrupted) as stop, signals.installed():
        send(number)
        pytest.fail("the signal did not stop the block")
    assert stop.value.exit_code == code


def test_a_protected_section_is_finished_first_and_that_is_said() -> None:
    said: list[str] = []
    done: list[str] = []
    signals = StopSignals(said.append)
    with pytest.raises(Interrupted), signals.installed(), signals.protected("step 3"):
        send(signal.SIGINT)
        done.append("update")
    assert done == ["update"]
    assert "step 3" in said[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_by_hand_stops_a_protected_section(number: int) -> None:
    done: list[str] = []
    signals = StopSignals(lambda text: None)
    with pytest.raises(Interrupted), signals.installed(), signals.protected("step 3"):
        send(number)
        send(number)
        done.append("update")
    assert done == []


def test_a_connection_that_is_lost_stops_once_however_often_that_is_signalled() -> None:
    done: list[str] = []
    signals = StopSignals(lambda text: None)
    with signals.installed():
        with pytest.raises(Interrupted) as stop:
            send(signal.SIGHUP)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
            send(number)
        done.append("saved")
    assert (stop.value.exit_code, done) == (129, ["saved"])


def test_an_ignored_signal_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(lambda text: None).installed():
            send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_former_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals(lambda text: None).installed():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
