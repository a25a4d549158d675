"""Signals stop a run where nothing is lost."""

from __future__ import annotations

import os
import signal

import pytest

from rl_compat.trainer.interrupt import Interrupted, StopSignals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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


def test_a_second_signal_stops_a_protected_section() -> None:
    done: list[str] = []
    signals = StopSignals(lambda text: None)
    with pytest.raises(Interrupted), signals.installed(), signals.protected("step 3"):
        send(signal.SIGINT)
        send(signal.SIGINT)
        done.append("update")
    assert done == []


def test_the_former_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals(lambda text: None).installed():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
