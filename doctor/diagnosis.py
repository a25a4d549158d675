"""A diagnosis: the machine, what every check found on it, what it can train, and how to fix it."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from rl_compat.doctor.findings import Check, CheckResult, Finding, Needs, Severity
from rl_compat.doctor.fix import Fix, plan_fixes, replaces_torch
from rl_compat.doctor.options import Options
from rl_compat.doctor.verdict import Verdict, judge, judge_fixed
from rl_compat.errors import UsageError, did_you_mean
from rl_compat.hardware.types import Hardware, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that is shown, as text or JSON."""

    hardware: Hardware
    results: tuple[CheckResult, ...]
    skipped: tuple[tuple[Check, str], ...] = ()
    "checks that did not run, each with the option that excludes it"
    seconds: float
    "from the start of the probe to the last check"

    verdict: Verdict | None = None
    "None if only some checks ran, or on several nodes"
    once_fixed: Verdict | None = None
    "the verdict once the failures are fixed; None if nothing fails or nothing helps"
    fixes: tuple[Fix, ...] = ()
    "how to fix the findings, in order"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all checks, the worst first and otherwise in the order of the checks."""
        return tuple(sorted(findings_of(self.results), key=lambda finding: -finding.severity))

    @property
    def counts(self) -> dict[Severity, int]:
        """Findings by severity."""
        counted = Counter(finding.severity for finding in self.findings)
        return {severity: counted[severity] for severity in Severity}

    @property
    def exit_code(self) -> int:
        """1 if there is a failure, else 0."""
        return int(self.counts[Severity.FAILURE] > 0)


def diagnose(options: Options, checks: Sequence[Check]) -> Diagnosis:
    """Read the machine, as far as the checks need it, and run them. Raises RLCompatError."""
    started = time.perf_counter()
    skipped = tuple((check, option) for check in checks if (option := excluded_by(check, options)))
    if skipped and options.only:
        check, option = skipped[0]
        raise UsageError(
            f"`--only {check.id}` and `{option}` exclude each other", hint=f"drop `{option}`, or the check"
        )
    selected = [check for check in checks if check not in [check for check, _ in skipped]]
    hardware = read_machine(options, selected)
    if hardware.nodes:
        return Diagnosis(
            hardware=hardware,
            results=run_on_nodes(selected, hardware),
            skipped=skipped,
            seconds=time.perf_counter() - started,
        )
    results = run_checks(selected, hardware)
    findings = findings_of(results)
    failures = [finding.what for finding in findings if finding.severity is Severity.FAILURE]
    fixes = plan_fixes(findings, hardware, lambda machine: findings_of(run_checks(selected, machine)))
    verdict = None if options.only else judge(hardware, failures)
    broken = verdict is not None and not verdict.works
    return Diagnosis(
        hardware=hardware,
        results=results,
        skipped=skipped,
        verdict=verdict,
        once_fixed=judge_fixed(hardware, new_torch=replaces_torch(fixes)) if broken else None,
        fixes=fixes,
        seconds=time.perf_counter() - started,
    )


def excluded_by(check: Check, options: Options) -> str | None:
    """The option that excludes a check; none does for a recording, which contains every fact."""
    if options.hardware is not None:
        return None
    if Needs.TORCH in check.needs and not options.torch:
        return "--no-torch"
    return "--no-network" if Needs.NETWORK in check.needs and not options.network else None


def read_machine(options: Options, checks: Sequence[Check]) -> Hardware:
    """The recording, or this machine: torch, packages and servers only if a check needs them. Raises RLCompatError."""
    if options.hardware is not None:
        from rl_compat.hardware.recording import load_recording

        return load_recording(options.hardware)
    from rl_compat.hardware.probe import probe

    needs = reduce(or_, (check.needs for check in checks), Needs.NOTHING)
    imports = options.torch and Needs.IMPORTS in needs
    torch_seconds = options.torch_seconds if imports or Needs.TORCH in needs else None
    network_seconds = options.network_seconds if Needs.NETWORK in needs else None
    if options.cluster is not None:
        from rl_compat.hardware.cluster import probe_nodes

        with _progress("asking the nodes"):
            nodes = probe_nodes(
                options.cluster,
                torch_timeout_seconds=torch_seconds,
                packages=imports,
                network_timeout_seconds=network_seconds,
            )
        return replace(probe(torch_timeout_seconds=None), nodes=nodes)
    with _progress("importing torch" if torch_seconds else ""):
        found = probe(torch_timeout_seconds=torch_seconds, packages=imports, network_timeout_seconds=network_seconds)
    tried = options.show_all or "exchange" in options.only
    if not tried or found.software.torch is None or len(found.devices) == 1:
        return found
    from rl_compat.hardware.exchange import read_exchange

    with _progress("exchanging values between two processes"):
        return replace(found, exchange=read_exchange(num_gpus=len(found.devices)))


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """A line on the terminal while something takes time, erased afterwards."""
    shown = f"{text} ..." if text and sys.stderr.isatty() else ""
    print(shown, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(f"\r{' ' * len(shown)}\r", end="", file=sys.stderr, flush=True)


def select_checks(checks: Sequence[Check], ids: Sequence[str]) -> tuple[Check, ...]:
    """The checks with those ids in their own order, all of them without ids. Raises UsageError for an unknown id."""
    known = [check.id for check in checks]
    for wanted in ids:
        if wanted not in known:
            raise UsageError(f"unknown check `{wanted}`", hint=did_you_mean(wanted, known, "`--list` shows them"))
    return tuple(check for check in checks if not ids or check.id in ids)


def findings_of(results: Iterable[CheckResult]) -> list[Finding]:
    return [finding for result in results for finding in result.findings]


def run_checks(checks: Iterable[Check], hardware: Hardware) -> tuple[CheckResult, ...]:
    """What every check finds on that hardware, in the given order. A check that raises reports that and no more."""
    return tuple(_run(check, hardware) for check in checks)


def run_on_nodes(checks: Iterable[Check], hardware: Hardware) -> tuple[CheckResult, ...]:
    """What every check finds on the nodes of a cluster. Nodes with the same finding share it."""
    return tuple(_run(check, hardware) if check.of_cluster else _on_each(check, hardware.nodes) for check in checks)


def _on_each(check: Check, nodes: Iterable[Node]) -> CheckResult:
    started = time.perf_counter()
    on: dict[Finding, dict[str, None]] = {}
    for node in nodes:
        if node.hardware is not None:
            for finding in _run(check, node.hardware).findings:
                on.setdefault(finding, {})[node.address] = None
    findings = tuple(replace(finding, affects=(*addresses, *finding.affects)) for finding, addresses in on.items())
    return CheckResult(check=check, findings=findings, seconds=time.perf_counter() - started)


def _run(check: Check, hardware: Hardware) -> CheckResult:
    started = time.perf_counter()
    try:
        findings = tuple(check.run(hardware))
    except Exception as error:
        findings = (_broken(check, error),)
    return CheckResult(check=check, findings=findings, seconds=time.perf_counter() - started)


def _broken(check: Check, error: Exception) -> Finding:
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join("".join(traceback.format_exception_only(error)).split())
    return Finding(
        f"{check.id}.broken",
        Severity.WARNING,
        f"the check `{check.id}` raised an error: {message}",
        "its question stays unanswered; other checks are not affected",
        where=(f"{place.filename.rpartition('/')[2]}:{place.lineno}",),
    )
