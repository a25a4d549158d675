"""Running checks: each guarded, so that one that breaks reports itself and the others go on, and each timed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Sequence

from rl_compat.doctor.findings import Check, CheckResult, Finding, Severity
from rl_compat.errors import UsageError, nearest
from rl_compat.hardware.types import Hardware


def run_checks(checks: Iterable[Check], hardware: Hardware) -> tuple[CheckResult, ...]:
    """What every check finds on that hardware, in the given order."""
    return tuple(_run(check, hardware) for check in checks)


def select_checks(checks: Sequence[Check], ids: Sequence[str]) -> tuple[Check, ...]:
    """The checks of those ids in their own order, all of them for no id. Raises UsageError for an unknown id."""
    known = [check.id for check in checks]
    for wanted in ids:
        if wanted not in known:
            close = nearest(wanted, known)
            hint = f"did you mean `{close}`" if close else "`--list` shows them"
            raise UsageError(f"there is no check `{wanted}`", hint=hint)
    return tuple(check for check in checks if not ids or check.id in ids)


def _run(check: Check, hardware: Hardware) -> CheckResult:
    started = time.perf_counter()
    try:
        findings = tuple(check.run(hardware))
    except Exception as error:
        findings = (_broken(check, error),)
    return CheckResult(check=check, findings=findings, seconds=time.perf_counter() - started)


def _broken(check: Check, error: Exception) -> Finding:
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    return Finding(
        id=f"{check.id}.broken",
        severity=Severity.WARNING,
        what=f"the check `{check.id}` broke off: {said}",
        why="its question stays open; the other checks are not touched by it",
        where=(f"{place.filename.rpartition('/')[2]}:{place.lineno}",),
    )
