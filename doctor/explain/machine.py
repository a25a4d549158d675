"""What a recognised error means for one machine: whether it can come from it, what is wrong on it, what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.doctor.explain.patterns import KnownError, KnownRemedy
from rl_compat.doctor.remedies import pip_install, pip_uninstall, torch_remedies
from rl_compat.doctor.types import Check, CheckResult, Finding, Remedy, Severity, Step, Sureness
from rl_compat.hardware.types import Hardware

MOST_REMEDIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to say of one error on one machine."""

    concerns: str
    "whether the error can come from this machine: `yes`, `unlikely`, `no` or `unknown`"
    why: str
    "why not, or which device; empty when every machine can give it"
    findings: tuple[Finding, ...]
    "of its checks, the worst first, without what is fine"
    fine: tuple[str, ...]
    "ids of its checks that found everything fine"
    remedies: tuple[Remedy, ...]
    "those of the findings, then those of the table that suit the machine"


def advise(error: KnownError, hardware: Hardware, results: Sequence[CheckResult]) -> Advice:
    """The advice for the machine; `results` are those of the error's checks."""
    concerns, why = origin(error, hardware)
    findings = [finding for result in results for finding in result.findings if finding.severity > Severity.NOTE]
    findings.sort(key=lambda finding: -finding.severity)
    fine = [result.check.id for result in results if result.findings and result.severity is Severity.OK]
    here = [remedy for finding in findings for remedy in finding.remedies[:1]]
    known = [made for remedy in error.remedies for made in _suiting(remedy, hardware)]
    return Advice(
        concerns=concerns,
        why=why,
        findings=tuple(findings),
        fine=tuple(fine),
        remedies=tuple(_once([*here, *known])[:MOST_REMEDIES]),
    )


def origin(error: KnownError, hardware: Hardware) -> tuple[str, str]:
    """Whether the error can come from the cards of the machine, and why."""
    applies = error.applies_to
    if not applies.ranges:
        return "yes", ""
    if not hardware.devices:
        return "unknown", f"it comes from cards {applies}; this machine shows CUDA programs none"
    inside = [device for device in hardware.devices if device.compute_capability in applies]
    has = _has(hardware)
    if inside and len(inside) < len(hardware.devices):
        names = ", ".join(f"cuda:{device.index} ({device.name})" for device in inside)
        return "yes", f"it comes from cards {applies}, here {names}"
    if inside:
        return "yes", ""
    if applies.only:
        return "no", f"this machine has {has}, the message comes from {applies}: was the log made elsewhere?"
    return "unlikely", f"this machine has {has}, the message usually comes from {applies}: was the log made elsewhere?"


def checks_of(errors: Sequence[KnownError], checks: Sequence[Check]) -> tuple[Check, ...]:
    """The doctor's checks that any of the errors names."""
    named = {id for error in errors for id in error.checks}
    return tuple(check for check in checks if check.id in named)


def _has(hardware: Hardware) -> str:
    capabilities = sorted({device.compute_capability for device in hardware.devices})
    return "compute capability " + " and ".join(f"{major}.{minor}" for major, minor in capabilities)


def _suiting(remedy: KnownRemedy, hardware: Hardware) -> list[Remedy]:
    """The remedy as it stands on the machine; none where it does not suit its cards or its system."""
    suits = not hardware.devices or any(device.compute_capability in remedy.capabilities for device in hardware.devices)
    step = Step[remedy.step.upper()]
    if not suits or (step is Step.DRIVER and hardware.host.wsl):
        return []
    if remedy.install_torch:
        return list(torch_remedies(hardware)[:1])
    commands = list(remedy.commands)
    if remedy.pip_uninstall:
        commands.append(pip_uninstall(hardware, *remedy.pip_uninstall))
    if remedy.pip_install:
        commands.append(pip_install(hardware, *remedy.pip_install))
    what = f"on the host: {remedy.what}" if step is Step.DRIVER and hardware.host.container else remedy.what
    return [Remedy(what=what, step=step, commands=tuple(commands), sure=Sureness[remedy.sure.upper()])]


def _once(remedies: Sequence[Remedy]) -> list[Remedy]:
    known: dict[tuple[object, ...], Remedy] = {}
    for remedy in remedies:
        known.setdefault(remedy.commands or (remedy.what,), remedy)
    return list(known.values())
