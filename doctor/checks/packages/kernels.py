"""Packages of GPU kernels (flash-attn, xformers, Liger, flashinfer …): off on cards that they have no code for."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.capability.devices import torch_version
from rl_compat.capability.kernels import TRITON_MINIMUM, against_installed_triton, required_triton
from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok
from rl_compat.doctor.remedies import pip_install, pip_uninstall
from rl_compat.doctor.tables.cards import device_ids, with_capability
from rl_compat.doctor.tables.rows import Row, has_kernels, is_unknown, kernel_row, satisfies
from rl_compat.hardware.types import Device, Hardware

PACKAGES = (
    *("flash-attn", "flash-attn-3", "flash-attn-4", "xformers"),
    *("liger-kernel", "flashinfer-python", "torchao", "deepspeed"),
)
MODULES = {"flash-attn": "flash_attn", "flash-attn-3": "flash_attn_interface", "liger-kernel": "liger_kernel"}
"import name of a package, if it differs"
INSTALLED = "installed packages"


def check_attention_packages(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if none of them is installed, or without a GPU."""
    installed = {name: version for name in PACKAGES if (version := hardware.software.packages.get(name)) is not None}
    errors = hardware.software.import_errors
    for name, version in installed.items():
        if name in errors:
            yield _broken(hardware, name, version, errors[name])
    if "triton" in errors:
        version = hardware.software.packages.get("triton")
        what = f"triton{f' {version}' if version else ''} does not import: {errors['triton']}"
        yield _wrong_triton(hardware, "triton_does_not_import", what)
    elif _compiles(hardware) and (reasons := against_installed_triton(hardware)):
        yield _wrong_triton(hardware, "triton_mismatch", reasons[0])
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
        unknown = [name for name in ready if is_unknown(name, working[name])]
        newer = f"; newer than the tables: {', '.join(unknown)}" if unknown else ""
        usable = ", ".join(f"{name} {working[name]}" for name in ready)
        yield ok("attention_packages.usable", f"usable on every card here: {usable}{newer}", INSTALLED)


def _lacking(hardware: Hardware, name: str, version: str) -> list[Device]:
    """The cards that a package does not support; empty if the tables cannot tell."""
    row = kernel_row(name, version)
    if row is None or is_unknown(name, version):
        return []
    return [device for device in hardware.devices if not has_kernels(row, device.compute_capability)]


def _other_torch(hardware: Hardware, name: str, version: str) -> Row | None:
    """The row of a package whose release is for another torch than the installed one."""
    row, torch = kernel_row(name, version), hardware.software.torch
    if row is None or torch is None or is_unknown(name, version) or satisfies(torch.version, row["torch"]):
        return None
    return row


def _needs(row: Row) -> str:
    low, high = row["cc_min"], row["cc_max"]
    return f"{low}" if high in (None, low) else f"{low} to {high}"


def _off(lacking: dict[str, list[Device]], versions: dict[str, str]) -> Finding:
    """One note for all of them: nothing is broken, they are just not used."""
    cards = {device.index: device for devices in lacking.values() for device in devices}
    ordered = [cards[index] for index in sorted(cards)]
    needs = [
        f"{name} {versions[name]} needs {_needs(row)}" for name in lacking if (row := kernel_row(name, versions[name]))
    ]
    return finding(
        "attention_packages.off", f"off on {with_capability(ordered)}: {', '.join(needs)}", affects=device_ids(ordered)
    )


def _built_for_another_torch(hardware: Hardware, rows: dict[str, Row]) -> Finding:
    torch = hardware.software.torch
    assert torch is not None
    listed = [f"{name} {hardware.software.packages[name]} is for torch {row['torch']}" for name, row in rows.items()]
    return finding(
        "attention_packages.other_torch",
        f"{', '.join(listed)}; the installed torch is {torch.version}",
        pip_uninstall(hardware, f"uninstall {' and '.join(rows)} if nothing else needs it", *rows),
    )


def _broken(hardware: Hardware, name: str, version: str, error: str) -> Finding:
    """Usually a package compiled for another torch; a failure if transformers fails with it.

    A note if no card here supports it anyway.
    """
    useless = len(_lacking(hardware, name, version)) == len(hardware.devices)
    severity = Severity.NOTE if useless else Severity.WARNING
    fatal = MODULES.get(name, name) in hardware.software.import_errors.get("transformers", "")
    other_torch = "undefined symbol" in error or "cannot open shared object" in error
    return finding(
        "attention_packages.does_not_import",
        f"{name} {version} does not import: {error}{'; it was built for another torch' if other_torch else ''}",
        pip_uninstall(hardware, f"uninstall {name}: training does not need it", name),
        severity=Severity.FAILURE if fatal else severity,
        why="transformers imports it and fails too" if fatal else None,
        where=(name,),
        affects=("training", "rollout") if fatal else ("rollout",),
    )


def _wrong_triton(hardware: Hardware, case: str, what: str) -> Finding:
    """Not a problem below 7.0, where torch's compiler does not work anyway."""
    matters = _compiles(hardware)
    return finding(
        f"attention_packages.{case}",
        what,
        *(_triton_of_torch(hardware) if matters else ()),
        severity=Severity.WARNING if matters else Severity.NOTE,
    )


def _compiles(hardware: Hardware) -> bool:
    """Whether torch's compiler supports a card here."""
    return any(device.compute_capability >= TRITON_MINIMUM for device in hardware.devices)


def _triton_of_torch(hardware: Hardware) -> tuple[Remedy, ...]:
    wanted = required_triton(hardware)
    if wanted is None:
        return ()
    exact = f"triton=={wanted}" if wanted.count(".") == 2 else f"triton=={wanted}.*"
    what = f"install triton {wanted}, which torch {torch_version(hardware)} requires"
    return (pip_install(hardware, what, "--force-reinstall", "--no-deps", exact),)
