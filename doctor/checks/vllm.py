"""Could vLLM generate on these cards, and does the installed one go with them and with what is installed?"""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.capability.bitsandbytes import NOT_LISTED
from rl_compat.capability.devices import capability_text, torch_version
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import pip_install, pip_uninstall
from rl_compat.doctor.tables.engines import (
    attention_backends,
    forks_for,
    goes_with_us,
    last_vllm_with_code,
    vllm_has_code,
    vllm_releases,
    vllm_row,
)
from rl_compat.doctor.tables.rows import Row, is_unknown, satisfies
from rl_compat.doctor.tables.target import target_of
from rl_compat.hardware.types import Device, Hardware

OURS = "this project's own engine generates on any card; only `rollout.engine=vllm` and other programs need it"


def look_at_vllm(hardware: Hardware) -> Iterator[Finding]:
    """Always says whether vLLM could serve the cards; nothing without a card and without vLLM."""
    version = hardware.software.packages.get("vllm")
    if version is None:
        if hardware.devices:
            yield _absent(hardware)
        return
    error = hardware.software.import_errors.get("vllm")
    row = vllm_row(version)
    if is_unknown("vllm", version):
        yield _unknown(version)
    elif row is None or target_of(hardware).machine in NOT_LISTED:
        yield _not_listed(version)
    elif lacking := [card for card in hardware.devices if not vllm_has_code(row, card.compute_capability)]:
        yield _without_code(hardware, version, row, lacking)
        return
    elif strange := mismatches(hardware, row):
        yield _mismatch(hardware, version, strange)
        return
    elif error is None:
        yield _works(hardware, version, row)
    if error is not None:
        yield _does_not_import(hardware, version, error)


def _absent(hardware: Hardware) -> Finding:
    """Never a warning: it is not needed."""
    releases = vllm_releases(hardware)
    last = last_vllm_with_code([device.compute_capability for device in hardware.devices])
    if target_of(hardware).machine in NOT_LISTED:
        could = "the table lists wheels for x86_64 only"
    elif releases:
        row = releases[0]
        could = f"{row['vllm']} with torch {row['torch'].lstrip('=')} could serve these cards"
    elif last is not None:
        could = (
            f"{last['vllm']} is the last with code for these cards, and does not go with this driver, Python or project"
        )
    else:
        could = f"no official wheel has code for {_cards(list(hardware.devices))}{_forks(list(hardware.devices))}"
    return Finding(
        id="vllm.not_installed",
        severity=Severity.OK,
        what=f"vLLM is not installed; {could}",
        why=OURS,
        where=("installed packages",),
        affects=("rollout",),
    )


def mismatches(hardware: Hardware, row: Row) -> str:
    """What a release of vLLM wants otherwise: `torch ==2.14.0, this is 2.15.0+cu132 and …`; empty when nothing."""
    here = {
        "torch": torch_version(hardware),
        "transformers": hardware.software.packages.get("transformers"),
        "python": target_of(hardware).python,
    }
    strange = [
        f"{name.replace('python', 'Python')} {row[name]}, this is {version}"
        for name, version in here.items()
        if version is not None and not satisfies(version, row[name])
    ]
    transformers = here["transformers"]
    if transformers is not None and not row["transformers_5"] and satisfies(transformers, ">=5"):
        strange = [*(text for text in strange if "transformers" not in text), f"transformers 4, this is {transformers}"]
    return " and ".join(strange)


def _without_code(hardware: Hardware, version: str, row: Row, lacking: list[Device]) -> Finding:
    """A note, as for other packages that a card has no use for: nothing is broken, it stays off."""
    last = last_vllm_with_code([device.compute_capability for device in hardware.devices])
    other = _other_release(hardware, None)
    kinds = ", ".join(dict.fromkeys(f"{capability_text(device)} ({device.name})" for device in lacking))
    which = f"; the last with code for every card here is {last['vllm']}" if last else _none_has(lacking)
    return Finding(
        id="vllm.no_code",
        severity=Severity.NOTE,
        what=f"off because cc {kinds}: vLLM {version} has code from {row['wheel_min_cc']} on{which}",
        why=OURS,
        where=("installed packages",),
        affects=("rollout", *(f"cuda:{device.index}" for device in lacking)),
        remedies=() if other is None else (_install(hardware, other),),
    )


def _none_has(lacking: list[Device]) -> str:
    return f"; no official wheel of any release has{_forks(lacking)}"


def _forks(lacking: list[Device]) -> str:
    forks = dict.fromkeys(fork for device in lacking for fork in forks_for(device.compute_capability))
    return f" (forks, at one's own risk: {', '.join(forks)})" if forks else ""


def _mismatch(hardware: Hardware, version: str, strange: str) -> Finding:
    return Finding(
        id="vllm.mismatch",
        severity=Severity.WARNING,
        what=f"vLLM {version} goes with {strange}",
        why=f"it is compiled for one torch and written for some transformers; {OURS}",
        where=("installed packages",),
        affects=("rollout",),
        remedies=_remedies(hardware, installed=vllm_row(version)),
    )


def _remedies(hardware: Hardware, installed: Row | None) -> tuple[Remedy, ...]:
    """A release that goes with everything here first, then none at all, then one that changes torch."""
    remove = Remedy(
        what="uninstall vLLM: `rollout.engine=native` generates without it",
        step=Step.PACKAGE,
        commands=(pip_uninstall(hardware, "vllm"),),
    )
    row = _other_release(hardware, installed)
    if row is None:
        return (remove,)
    repaired = installed is not None and row["vllm"] == installed["vllm"]
    harmless = repaired or not mismatches(hardware, row)
    install = _install(hardware, row)
    return (install, remove) if harmless else (remove, install)


def _other_release(hardware: Hardware, installed: Row | None) -> Row | None:
    """The best that the cards, the driver and the Python run: with what is here, else the installed one, else any."""
    releases = vllm_releases(hardware)
    fitting = [row for row in releases if not mismatches(hardware, row)]
    same = [row for row in releases if installed is not None and row["vllm"] == installed["vllm"]]
    return next(iter((*fitting, *same, *releases)), None)


def _install(hardware: Hardware, row: Row) -> Remedy:
    brings = f", which brings what it goes with: torch {row['torch'].lstrip('=')}" if mismatches(hardware, row) else ""
    return Remedy(
        what=f"install vLLM {row['vllm']}{brings}",
        step=Step.PACKAGE,
        commands=(pip_install(hardware, f"vllm=={row['vllm']}"),),
    )


def _works(hardware: Hardware, version: str, row: Row) -> Finding:
    weakest = min(hardware.devices, key=lambda device: device.compute_capability, default=None)
    on = f" has code for {_cards(list(hardware.devices))} and" if weakest else ""
    backends = attention_backends(row, weakest.compute_capability) if weakest else ()
    attention = f"; attention by {', '.join(backends)}" if weakest and weakest.compute_capability < (8, 0) else ""
    apart = "" if goes_with_us(row) else f"; it wants transformers {row['transformers']}, which this project cannot use"
    return Finding(
        id="vllm.works",
        severity=Severity.OK,
        what=f"vLLM {version}{on} goes with what is installed{attention}{apart}",
        why=OURS,
        where=("installed packages",),
        affects=("rollout",),
    )


def _does_not_import(hardware: Hardware, version: str, error: str) -> Finding:
    return Finding(
        id="vllm.does_not_import",
        severity=Severity.WARNING,
        what=f"vLLM {version} does not import: {error}",
        why=OURS,
        where=("vllm",),
        affects=("rollout",),
        remedies=_remedies(hardware, installed=vllm_row(version)),
    )


def _unknown(version: str) -> Finding:
    return Finding(
        id="vllm.unknown",
        severity=Severity.NOTE,
        what=f"vLLM {version} is newer than the table",
        why=f"it may well work; nothing here can say so. {OURS}",
        where=("installed packages",),
        affects=("rollout",),
    )


def _not_listed(version: str) -> Finding:
    return Finding(
        id="vllm.not_listed",
        severity=Severity.OK,
        what=f"vLLM {version} is not in the table, which begins with 0.2.0 and lists wheels for x86_64",
        where=("installed packages",),
        affects=("rollout",),
    )


def _cards(devices: list[Device]) -> str:
    return ", ".join(dict.fromkeys(f"{device.name} ({capability_text(device)})" for device in devices))


CHECK = Check(
    id="vllm",
    question="could vLLM generate on these cards, and does an installed one go with them?",
    run=look_at_vllm,
    wants_imports=True,
)
