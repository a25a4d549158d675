"""Two processes sum tensors and check the values."""

from __future__ import annotations

from dataclasses import replace

from fakes.doctor import machine

from rl_compat.doctor.checks.cards.several import check_exchange
from rl_compat.doctor.findings import Severity
from rl_compat.hardware.exchange import _judge, read_exchange
from rl_compat.hardware.system.timeouts import Finished
from rl_compat.hardware.types import Exchange


def test_two_processes_of_the_cpu_sum_right_values() -> None:
    assert read_exchange(num_gpus=0, timeout_seconds=60.0) == Exchange(backend="gloo")


def test_wrong_values_errors_and_silence_are_told_apart() -> None:
    def of(returncode: int | None, stdout: str = "", stderr: str = "") -> Finished:
        return Finished(stdout=stdout, stderr=stderr, returncode=returncode)

    assert _judge("nccl", [of(0, "0\n"), of(0, "7\n")], 20.0) == Exchange(backend="nccl", num_wrong=7)
    assert "rank 1" in (_judge("nccl", [of(0, "0"), of(1, stderr="a\nno route")], 20.0).error or "")
    assert "20 s" in (_judge("nccl", [of(None), of(0, "0")], 20.0).error or "")


def test_the_doctor_says_what_came_of_it() -> None:
    two = machine("p40_two")
    cases = {
        "exchange.right": Exchange(backend="nccl"),
        "exchange.wrong": Exchange(backend="nccl", num_wrong=7),
        "exchange.failed": Exchange(backend="gloo", error="rank 0 has not ended within 20 s"),
    }
    found = {name: next(iter(check_exchange(replace(two, exchange=case)))) for name, case in cases.items()}
    assert {name: finding.id for name, finding in found.items()} == {name: name for name in cases}
    assert found["exchange.wrong"].severity is found["exchange.failed"].severity is Severity.FAILURE
    assert found["exchange.wrong"].remedies[0].commands
    assert list(check_exchange(two)) == []
    assert [finding.id for finding in check_exchange(machine("p40"))] == ["exchange.one_device"]
