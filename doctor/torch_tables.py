"""The tables of torch releases and NVIDIA drivers, as questions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from rl_compat.hardware.binaries import parse_version

KNOWLEDGE = Path(__file__).resolve().with_name("knowledge")
OLDEST = (2, 6)
BEYOND = (2, 16)
"releases that rl_compat runs with: at least OLDEST, below BEYOND"


@cache
def read_knowledge(name: str) -> dict[str, Any]:
    """One table of the knowledge folder."""
    table: dict[str, Any] = json.loads((KNOWLEDGE / f"{name}.json").read_text())
    return table


def releases(python: str | None = None) -> list[dict[str, Any]]:
    """The rows of the release table that rl_compat runs with, and that Python too when given; newest first."""
    rows = [row for row in read_knowledge("torch")["releases"] if OLDEST <= parse_version(row["torch"]) < BEYOND]
    fitting = [row for row in rows if python is None or python_fits(python_bounds(row), python)]
    return sorted(fitting, key=lambda row: parse_version(row["torch"]), reverse=True)


def python_bounds(release: dict[str, Any]) -> str:
    """`>=3.10,<=3.14`; experimental versions, in brackets in the table, do not count."""
    return str(release["python"]).partition("(")[0].strip()


def python_fits(bounds: str, python: str) -> bool:
    """Whether `3.12` lies within `>=3.10,<=3.14`."""
    lower, upper = (parse_version(bound.lstrip("<>= ")) for bound in bounds.split(","))
    return lower <= parse_version(python)[:2] <= upper


def cuda_of(variant: str) -> str:
    """`cu126` as `12.6`."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


def index_url(variant: str) -> str:
    return str(read_knowledge("torch")["index_url"]).replace("<tag>", variant)


def driver_runs(driver_version: str, cuda: str, *, full: bool = False) -> bool:
    """Whether a Linux driver runs binaries of that CUDA; `full` when it must also compile its PTX."""
    row = _driver_row(cuda)
    return row is not None and parse_version(driver_version) >= parse_version(row["full" if full else "minor_compat"])


def minor_compatible_driver(cuda: str) -> str:
    """The oldest Linux driver that runs precompiled binaries of that CUDA."""
    row = _driver_row(cuda)
    assert row is not None, f"drivers.json has no row for CUDA {cuda}"
    return str(row["minor_compat"])


def _driver_row(cuda: str) -> dict[str, Any] | None:
    return next((row for row in read_knowledge("drivers")["cuda_min_driver_linux"] if row["cuda"] == cuda), None)


def variants(release: dict[str, Any], machine: str) -> list[tuple[str, list[str]]]:
    """CUDA builds of a release as (variant, architecture list): the package index's own first, then the newest."""
    wheels: dict[str, list[str]] = release["x86_64_wheels"]
    if machine != "x86_64":
        listed = read_knowledge("torch")["aarch64"]
        since = parse_version(release["torch"]) >= (2, 12)
        usable = machine == "aarch64" and since
        wheels = {variant: listed[variant] for variant in wheels if usable and variant in listed}
    order = sorted(wheels, key=lambda name: (name == release["pypi_default"], parse_version(cuda_of(name))))
    return [(variant, _arch_list(wheels[variant])) for variant in reversed(order)]


def _arch_list(listed: list[str]) -> list[str]:
    """`6.0` as `sm_60`, `12.0+PTX` as `sm_120` and `compute_120`; an entry in brackets is not certain and left out."""
    archs = []
    for entry in listed:
        digits = entry.partition("+")[0].replace(".", "")
        if digits.isdigit():
            archs.append(f"sm_{digits}")
            archs += [f"compute_{digits}"] if entry.endswith("+PTX") else []
    return archs
