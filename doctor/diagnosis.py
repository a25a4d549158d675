"""A diagnosis: a machine, what every check found on it, what training would look like, and what mends it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rl_compat.doctor.findings import Check, CheckResult, Finding, Severity
from rl_compat.doctor.mend import Mend
from rl_compat.doctor.verdict import Verdict
from rl_compat.hardware.types import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that is shown, as text or JSON."""

    hardware: Hardware
    results: tuple[CheckResult, ...]
    left_out: tuple[tuple[Check, str], ...] = ()
    "checks that were not run, each with the option that left it out"
    seconds: float
    "from the start of the reading to the last check"

    verdict: Verdict | None = None
    "None when only some checks were asked"
    once_mended: Verdict | None = None
    "what is left to say once the failures are mended; None where nothing fails or nothing helps"
    mending: tuple[Mend, ...] = ()
    "what mends the findings, in order"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all checks, the worst first and otherwise in the order of the checks."""
        found = [finding for result in self.results for finding in result.findings]
        return tuple(sorted(found, key=lambda finding: -finding.severity))

    @property
    def counts(self) -> dict[Severity, int]:
        """Findings by severity."""
        counted = Counter(finding.severity for finding in self.findings)
        return {severity: counted[severity] for severity in Severity}

    @property
    def exit_code(self) -> int:
        """1 when something fails, else 0."""
        return int(self.counts[Severity.FAILURE] > 0)
