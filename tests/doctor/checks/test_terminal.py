"""The check of the terminal."""

from __future__ import annotations

import pytest
from fakes.machines import host

from rl_compat.doctor.checks.system.host import check_terminal
from rl_compat.doctor.findings import Severity
from rl_compat.hardware.types import Hardware, Software


def writing(encoding: str | None) -> Hardware:
    return Hardware(devices=(), host=host(locale_encoding=encoding), software=Software(python="3.12"))


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "utf8", "UTF_8"])
def test_every_spelling_of_utf8_is_fine(encoding: str) -> None:
    (finding,) = check_terminal(writing(encoding))
    assert (finding.id, finding.severity, finding.remedies) == ("terminal.utf8", Severity.OK, ())


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ANSI_X3.4-1968", "cp1252", "no-such-encoding", ""])
def test_another_encoding_is_a_warning_with_two_ways_out(encoding: str) -> None:
    (finding,) = check_terminal(writing(encoding))
    assert (finding.id, finding.severity) == ("terminal.encoding", Severity.WARNING)
    assert f"`{encoding}`" in finding.what
    assert [line for remedy in finding.remedies for line in remedy.commands] == [
        "export PYTHONUTF8=1",
        "export LC_ALL=C.UTF-8 LANG=C.UTF-8",
    ]


def test_an_unknown_encoding_says_nothing() -> None:
    assert not list(check_terminal(writing(None)))
