"""Does the installed transformers go with this torch, this Python and this project, and which attention does it run?"""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.capability.attention import EFFICIENT_MINIMUM
from rl_compat.capability.devices import capability_text, torch_has_code, torch_version
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import pip_install, pip_uninstall, torch_remedies
from rl_compat.doctor.tables.rows import (
    is_unknown,
    required,
    satisfies,
    transformers_row,
    trap,
)
from rl_compat.doctor.tables.target import suitable_torch, target_of
from rl_compat.doctor.tables.torch import index_url, releases
from rl_compat.doctor.tables.wheels import NoTorchBuildError
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.gpu.catalogue import capability_of
from rl_compat.hardware.types import Hardware

NAME = "transformers"


def look_at_transformers(hardware: Hardware) -> Iterator[Finding]:
    """Nothing when it is not installed, or torch is too old for both: `required_packages` and `torch` say that."""
    version = hardware.software.packages.get(NAME)
    if version is None:
        return
    error = hardware.software.import_errors.get(NAME)
    if error is not None:
        yield _does_not_import(hardware, version, error)
    wrong = _too_old(hardware, version) or _python_too_old(hardware, version)
    if wrong is not None:
        yield wrong
    elif not _lacks_torch(hardware, version):
        if error is None:
            yield _works(hardware, version)
        if trapped := _grouped_attention(hardware, version):
            yield trapped
    yield from _companions(hardware)


def _does_not_import(hardware: Hardware, version: str, error: str) -> Finding:
    return Finding(
        id="transformers.does_not_import",
        severity=Severity.FAILURE,
        what=f"transformers {version} does not import: {error}",
        why="every model comes through it",
        where=(NAME,),
        affects=("training", "rollout"),
        remedies=(
            Remedy(
                what="install it again; where the message names another package, that one is to blame",
                step=Step.PACKAGE,
                sure=Sureness.UNSURE,
                commands=(pip_install(hardware, "--force-reinstall", "--no-deps", _requirement(NAME)),),
            ),
        ),
    )


def _too_old(hardware: Hardware, version: str) -> Finding | None:
    floor = _requirement(NAME).removeprefix(NAME)
    if satisfies(version, floor):
        return None
    return Finding(
        id="transformers.too_old",
        severity=Severity.FAILURE,
        what=f"transformers {version} is older than what rl_compat works with, {floor}",
        why="the caches and attention interfaces that generation uses are not in it",
        where=("installed packages",),
        affects=("training", "rollout"),
        remedies=(_install(hardware, "install one that does"),),
    )


def _lacks_torch(hardware: Hardware, version: str) -> bool:
    """Whether it takes the torch here for none."""
    row, torch = transformers_row(version), torch_version(hardware)
    if row is None or torch is None or is_unknown(NAME, version):
        return False
    return not satisfies(torch, f">={row['torch_min']}")


def _python_too_old(hardware: Hardware, version: str) -> Finding | None:
    row, python = transformers_row(version), hardware.software.python
    if row is None or is_unknown(NAME, version) or satisfies(target_of(hardware).python, f">={row['python_min']}"):
        return None
    return Finding(
        id="transformers.python_too_old",
        severity=Severity.WARNING,
        what=f"transformers {version} needs Python {row['python_min']} or newer, this is {python}",
        why="it was put here past pip's own check and may fail anywhere",
        where=("installed packages",),
        affects=("training", "rollout"),
        remedies=(_install(hardware, "let pip pick one for this Python"),),
    )


def _works(hardware: Hardware, version: str) -> Finding:
    torch = torch_version(hardware)
    newer = ", and is newer than the tables" if is_unknown(NAME, version) else ""
    return Finding(
        id="transformers.works",
        severity=Severity.OK,
        what=f"transformers {version}" + (f" goes with torch {torch}" if torch and not newer else newer),
        where=("installed packages",),
    )


def _grouped_attention(hardware: Hardware, version: str) -> Finding | None:
    """Old card, old torch: grouped-query models of eager Hugging Face code run in math attention without a word."""
    row, torch = trap("transformers_grouped_math"), hardware.software.torch
    if torch is None or torch.cuda is None:
        return None
    used = [device for device in hardware.devices if torch_has_code(torch, device)]
    weakest = min(used, key=lambda device: device.compute_capability, default=None)
    if weakest is None or weakest.compute_capability < EFFICIENT_MINIMUM:
        return None
    if weakest.compute_capability >= capability_of(row["cc_below"]) or satisfies(
        torch.version, f">={row['torch_below']}"
    ):
        return None
    if satisfies(version, f">{row['checked_with']}"):
        return None
    return Finding(
        id="transformers.grouped_query_math",
        severity=Severity.NOTE,
        what=f"transformers {version} with torch {torch.version} computes grouped-query attention in the math kernel "
        f"on {weakest.name} ({capability_text(weakest)})",
        why="memory grows with the square of the length; this project's engines repeat the keys and are not touched, "
        "other programs and plain Hugging Face code in the same environment are",
        where=("torch", "installed packages"),
        affects=(f"cuda:{weakest.index}", "other programs"),
        remedies=_newer_torch(hardware, row["torch_below"]),
    )


def _newer_torch(hardware: Hardware, least: str) -> tuple[Remedy, ...]:
    """The torch that suits the machine, where that is new enough."""
    try:
        build = suitable_torch(hardware)
    except NoTorchBuildError:
        return ()
    return torch_remedies(hardware)[:1] if parse_version(build.version) >= parse_version(least) else ()


def _companions(hardware: Hardware) -> Iterator[Finding]:
    """torchvision and torchaudio are compiled for one release of torch, and transformers imports torchvision."""
    torch, packages = torch_version(hardware), hardware.software.packages
    row = next((row for row in releases() if parse_version(row["torch"]) == parse_version(torch or "")[:2]), None)
    for name in ("torchvision", "torchaudio"):
        version = packages.get(name)
        if row is None or version is None or is_unknown(name, version):
            continue
        wanted = str(row[name]).removeprefix("==")
        if parse_version(version)[:2] != parse_version(wanted)[:2]:
            yield _other_release(hardware, name, version, wanted)


def _other_release(hardware: Hardware, name: str, version: str, wanted: str) -> Finding:
    torch = hardware.software.torch
    index = ["--index-url", _index(torch.version)] if torch is not None and "+" in torch.version else []
    return Finding(
        id=f"transformers.{name}",
        severity=Severity.WARNING,
        what=f"{name} {version} is not the release that goes with torch {torch_version(hardware)}, which is {wanted}",
        why="its compiled operators do not load, and transformers dies on import with an error about them",
        where=("installed packages",),
        affects=("training", "rollout"),
        remedies=(
            Remedy(
                what=f"uninstall {name}: training text models does not need it",
                step=Step.PACKAGE,
                commands=(pip_uninstall(hardware, name),),
            ),
            Remedy(
                what=f"install {name} {wanted}",
                step=Step.PACKAGE,
                commands=(pip_install(hardware, "--no-deps", *index, f"{name}=={wanted}"),),
            ),
        ),
    )


def _index(version: str) -> str:
    return index_url(version.partition("+")[2])


def _install(hardware: Hardware, what: str) -> Remedy:
    return Remedy(what=what, step=Step.PACKAGE, commands=(pip_install(hardware, _requirement(NAME)),))


def _requirement(package: str) -> str:
    return next(f"{row['package']}{row['versions']}" for row in required() if row["package"] == package)


CHECK = Check(
    id="transformers",
    question="does transformers go with this torch, this Python and this project?",
    run=look_at_transformers,
    needs_torch=True,
    wants_imports=True,
)
