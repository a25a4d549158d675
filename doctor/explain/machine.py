"""What a recognised error means for one machine: whether it can come from it, what is wrong on it, what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rl_compat.doctor.explain.patterns import Capability, KnownError, KnownRemedy
from rl_compat.doctor.findings import Check, CheckResult, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import pip_install, pip_uninstall, torch_remedies
from rl_compat.doctor.tables.target import target_of
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
    "of its checks, in their order, without what is fine"
    fine: tuple[str, ...]
    "ids of its checks that found everything fine"
    remedies: tuple[Remedy, ...]
    "those of the findings, then those of the table that suit the machine"


def advise(error: KnownError, hardware: Hardware, results: Sequence[CheckResult]) -> Advice:
    """The advice for the machine; `results` are those of the error's checks.

    Where the error cannot be from this machine, the remedies are for the one that it is from.
    """
    concerns, why = origin(error, hardware)
    if concerns != "yes":
        there = tuple(_elsewhere(remedy) for remedy in error.remedies[:MOST_REMEDIES])
        return Advice(concerns=concerns, why=why, findings=(), fine=(), remedies=there)
    findings = [finding for result in results for finding in result.findings if finding.severity > Severity.NOTE]
    fine = [result.check.id for result in results if result.findings and result.severity <= Severity.NOTE]
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
    applies, cards = error.applies_to, target_of(hardware).cards
    if not applies.ranges:
        return "yes", ""
    if not cards:
        return "unknown", f"the message comes from cards {applies}, and no card is seen on this machine"
    inside = [card for card in cards if card in applies]
    if inside and len(inside) < len(cards):
        names = [
            f"cuda:{device.index} ({device.name})" for device in hardware.devices if device.compute_capability in inside
        ]
        return "yes", f"the message comes from cards {applies}, here {', '.join(names or map(_text, inside))}"
    if inside:
        return "yes", ""
    has = f"this machine has compute capability {' and '.join(_text(card) for card in sorted(set(cards)))}"
    usually = "" if applies.only else "usually "
    return (
        "no" if applies.only else "unlikely",
        f"{has}, the message {usually}comes from {applies}: was the log made elsewhere?",
    )


def checks_of(errors: Sequence[KnownError], checks: Sequence[Check]) -> tuple[Check, ...]:
    """The doctor's checks that any of the errors names."""
    named = {id for error in errors for id in error.checks}
    return tuple(check for check in checks if check.id in named)


def _text(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _suiting(remedy: KnownRemedy, hardware: Hardware) -> list[Remedy]:
    """The remedy as it stands on the machine; none where it does not suit its cards or its system."""
    cards = target_of(hardware).cards
    suits = not cards or any(card in remedy.capabilities for card in cards)
    step = Step[remedy.step.upper()]
    if not suits or (step is Step.DRIVER and hardware.host.wsl):
        return []
    if remedy.install_torch:
        return list(torch_remedies(hardware)[:1]) if cards else [_elsewhere(remedy)]
    commands = list(remedy.commands)
    if remedy.pip_uninstall:
        commands.append(pip_uninstall(hardware, *remedy.pip_uninstall))
    if remedy.pip_install:
        commands.append(pip_install(hardware, *remedy.pip_install))
    what = f"on the host: {remedy.what}" if step is Step.DRIVER and hardware.host.container else remedy.what
    return [Remedy(what=what, step=step, commands=tuple(commands), sure=_sureness(remedy))]


def _elsewhere(remedy: KnownRemedy) -> Remedy:
    """The remedy for another machine, whose Python and cards are not known."""
    commands = list(remedy.commands)
    if remedy.pip_uninstall:
        commands.append(shlex.join(["python", "-m", "pip", "uninstall", "--yes", *remedy.pip_uninstall]))
    if remedy.pip_install:
        commands.append(shlex.join(["python", "-m", "pip", "install", *remedy.pip_install]))
    named = "; `rlc doctor` there names it" if remedy.install_torch else ""
    for_cards = f", on cards {remedy.capabilities}" if remedy.capabilities.ranges else ""
    return Remedy(
        what=f"on the machine of the log: {remedy.what}{for_cards}{named}",
        step=Step[remedy.step.upper()],
        commands=tuple(commands),
        sure=_sureness(remedy),
    )


def _sureness(remedy: KnownRemedy) -> Sureness:
    return Sureness[remedy.sure.upper()]


def _once(remedies: Sequence[Remedy]) -> list[Remedy]:
    known: dict[tuple[object, ...], Remedy] = {}
    for remedy in remedies:
        known.setdefault(remedy.commands or (remedy.what,), remedy)
    return list(known.values())
