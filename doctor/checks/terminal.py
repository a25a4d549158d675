"""Checks of the terminal: whether text can be written as it is."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Severity
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Hardware


def check_terminal(hardware: Hardware) -> Iterator[Finding]:
    """Whether Python reads and writes text as UTF-8."""
    encoding = hardware.host.locale_encoding
    if encoding is None:
        return
    good = is_utf8(encoding)
    yield Finding(
        id="terminal.utf8" if good else "terminal.encoding",
        severity=Severity.OK if good else Severity.WARNING,
        what=f"Python reads and writes text as `{encoding}`",
        why=""
        if good
        else "prompts and responses in other scripts, and the bars of plots, stop a run with `UnicodeEncodeError`",
        where=("locale",),
        affects=() if good else ("console", "data"),
        remedies=()
        if good
        else (
            shell("let Python use UTF-8 whatever the locale says", "export PYTHONUTF8=1"),
            shell("or take a UTF-8 locale", "export LC_ALL=C.UTF-8 LANG=C.UTF-8"),
        ),
    )


def is_utf8(encoding: str) -> bool:
    """Whether the name, in any of its spellings, means UTF-8."""
    try:
        return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    except LookupError:
        return False


CHECKS: tuple[Check, ...] = (Check(id="terminal", question="is text read and written as UTF-8?", run=check_terminal),)
