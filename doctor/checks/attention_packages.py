"""Packages of GPU kernels (flash-attn, xformers, Liger, flashinfer …): off on cards that they have no code for."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.capability.devices import capability_text
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import pip_install, pip_uninstall
from rl_compat.doctor.tables.rows import Row, has_kernels, is_unknown, kernel_row, satisfies
from rl_compat.doctor.tables.torch import releases
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.types import Device, Hardware

PACKAGES = (
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "xformers",
    "liger-kernel",
    "flashinfer-python",
    "torchao",
    "deepspeed",
)
MODULES = {"flash-attn": "flash_attn", "flash-attn-3": "flash_attn_interface", "liger-kernel": "liger_kernel"}
"what a package is imported as, where that is not its name"


def look_at_attention_packages(hardware: Hardware) -> Iterator[Finding]:
    """Nothing when none of them is installed, or without a GPU."""
    installed = {name: version for name in PACKAGES if (version := hardware.software.packages.get(name)) is not None}
    errors = hardware.software.import_errors
    for name, version in installed.items():
        if name in errors:
            yield _broken(hardware, name, version, errors[name])
    if "triton" in errors:
        yield _broken_triton(hardware, errors["triton"])
    working = {name: version for name, version in installed.items() if name not in errors}
    if not hardware.devices or not working:
        return
    lacking = {name: cards for name, version in working.items() if (cards := _lacking(hardware, name, version))}
    strange = {name: row for name, version in working.items() if (row := _other_torch(hardware, name, version))}
    if lacking:
        yield _off(lacking, working)
    if strange.keys() - lacking.keys():
        yield _built_for_another_torch(hardware, {name: row for name, row in strange.items() if name not in lacking})
    ready = [name for name in working if name not in lacking and name not in strange]
    if ready:
        yield _ready(ready, working)


def _lacking(hardware: Hardware, name: str, version: str) -> list[Device]:
    """The cards that a package has no use on; none where the tables cannot say."""
    row = kernel_row(name, version)
    if row is None or is_unknown(name, version):
        return []
    return [device for device in hardware.devices if not has_kernels(row, device.compute_capability)]


def _other_torch(hardware: Hardware, name: str, version: str) -> Row | None:
    """The row of a package whose release is for another torch than the one here."""
    row, torch = kernel_row(name, version), hardware.software.torch
    if row is None or torch is None or is_unknown(name, version) or satisfies(torch.version, row["torch"]):
        return None
    return row


def _needs(row: Row) -> str:
    if row["cc_max"] is None:
        return f"{row['cc_min']}"
    return f"{row['cc_min']}" if row["cc_min"] == row["cc_max"] else f"{row['cc_min']} to {row['cc_max']}"


def _off(lacking: dict[str, list[Device]], versions: dict[str, str]) -> Finding:
    """One note for all of them: nothing is wrong, they are only of no use."""
    cards = {device.index: device for devices in lacking.values() for device in devices}
    named = sorted(
        {(device.compute_capability, f"{capability_text(device)} ({device.name})") for device in cards.values()}
    )
    needs = [
        f"{name} {versions[name]} needs {_needs(row)}" for name in lacking if (row := kernel_row(name, versions[name]))
    ]
    return Finding(
        id="attention_packages.off",
        severity=Severity.NOTE,
        what=f"off because cc {', '.join(text for _, text in named)}: {', '.join(needs)}",
        why="attention runs through torch's own kernels instead, which any card has; the weakest selected card decides",
        where=("installed packages",),
        affects=tuple(f"cuda:{index}" for index in sorted(cards)),
    )


def _built_for_another_torch(hardware: Hardware, rows: dict[str, Row]) -> Finding:
    torch = hardware.software.torch
    assert torch is not None
    named = [f"{name} {hardware.software.packages[name]} goes with torch {row['torch']}" for name, row in rows.items()]
    return Finding(
        id="attention_packages.other_torch",
        severity=Severity.NOTE,
        what=f"{', '.join(named)}, this is {torch.version}",
        why="its machine code may not load with this torch; training does not use it",
        where=("installed packages",),
        remedies=(
            Remedy(
                what=f"uninstall {' and '.join(rows)} if nothing else needs it",
                step=Step.PACKAGE,
                commands=(pip_uninstall(hardware, *rows),),
            ),
        ),
    )


def _ready(names: list[str], versions: dict[str, str]) -> Finding:
    unknown = [name for name in names if is_unknown(name, versions[name])]
    newer = f"; newer than the tables: {', '.join(unknown)}" if unknown else ""
    return Finding(
        id="attention_packages.usable",
        severity=Severity.OK,
        what=f"usable on every card here: {', '.join(f'{name} {versions[name]}' for name in names)}{newer}",
        where=("installed packages",),
    )


def _broken(hardware: Hardware, name: str, version: str, error: str) -> Finding:
    """A package of machine code for another torch, the usual case; worse when transformers falls with it.

    Where no card here could use it anyhow, a note.
    """
    useless = len(_lacking(hardware, name, version)) == len(hardware.devices)
    severity = Severity.NOTE if useless else Severity.WARNING
    fatal = _module(name) in hardware.software.import_errors.get("transformers", "")
    other_torch = "undefined symbol" in error or "cannot open shared object" in error
    cause = "; it was built for another torch" if other_torch else ""
    return Finding(
        id="attention_packages.does_not_import",
        severity=Severity.FAILURE if fatal else severity,
        what=f"{name} {version} does not import: {error}{cause}",
        why="transformers imports it and falls with it"
        if fatal
        else "transformers takes an installed package for a working one and dies when a model asks for it",
        where=(name,),
        affects=("training", "rollout") if fatal else ("rollout",),
        remedies=(
            Remedy(
                what=f"uninstall {name}: training does not need it",
                step=Step.PACKAGE,
                commands=(pip_uninstall(hardware, name),),
            ),
        ),
    )


def _broken_triton(hardware: Hardware, error: str) -> Finding:
    """Of no consequence below 7.0, where torch's compiler refuses anyhow."""
    row = kernel_row("triton", hardware.software.packages.get("triton", "0"))
    matters = any(row is not None and has_kernels(row, device.compute_capability) for device in hardware.devices)
    version = hardware.software.packages.get("triton")
    return Finding(
        id="attention_packages.triton_does_not_import",
        severity=Severity.WARNING if matters else Severity.NOTE,
        what=f"triton{f' {version}' if version else ''} does not import: {error}",
        why="torch.compile and Triton kernels do not work without it; training runs without both",
        where=("triton",),
        affects=("training",),
        remedies=_triton_of_torch(hardware) if matters else (),
    )


def _triton_of_torch(hardware: Hardware) -> tuple[Remedy, ...]:
    torch = hardware.software.torch
    release = parse_version(torch.version)[:2] if torch is not None else ()
    row = next((row for row in releases() if parse_version(row["torch"]) == release), None)
    if row is None:
        return ()
    wanted = str(row["triton"])
    exact = f"triton=={wanted}" if wanted.count(".") == 2 else f"triton=={wanted}.*"
    return (
        Remedy(
            what=f"reinstall the triton that torch {row['torch']} goes with, {wanted}",
            step=Step.PACKAGE,
            commands=(pip_install(hardware, "--force-reinstall", "--no-deps", exact),),
        ),
    )


def _module(name: str) -> str:
    return MODULES.get(name, name)


CHECK = Check(
    id="attention_packages",
    question="are the installed packages of GPU kernels of use on these cards, and do they import?",
    run=look_at_attention_packages,
    wants_imports=True,
)
