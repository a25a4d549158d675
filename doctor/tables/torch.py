"""Questions to the tables of torch releases and NVIDIA drivers."""

from __future__ import annotations

from typing import Any

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.tables.rows import satisfies
from rl_compat.hardware.gpu.catalogue import read_table

OLDEST = (2, 6)
BEYOND = (2, 16)
"supported releases: at least OLDEST, below BEYOND"
OLDEST_PYTHON = (3, 11)


def releases(python: str | None = None) -> list[dict[str, Any]]:
    """The supported rows of the release table, newest first; with `python`, those that support it."""
    rows = [row for row in read_table("torch")["releases"] if OLDEST <= parse_version(row["torch"]) < BEYOND]
    fitting = [row for row in rows if python is None or satisfies(python, row["python"])]
    return sorted(fitting, key=lambda row: parse_version(row["torch"]), reverse=True)


def cuda_of(variant: str) -> str:
    """`cu126` as `12.6`."""
    digits = variant.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


def index_url(variant: str) -> str:
    return str(read_table("torch")["index_url"]).replace("<tag>", variant)


def needed_glibc(release: str, variant: str, machine: str) -> str:
    """The oldest glibc for which pip accepts a Linux wheel of a release; `variant` is `cpu` or a CUDA variant."""
    for row in read_table("torch")["platforms"]:
        last = row["torch_max"]
        within = parse_version(row["torch_min"]) <= parse_version(release)[:2] and (
            last is None or parse_version(release)[:2] <= parse_version(last)
        )
        if within and row["machine"] in (None, machine) and (row["variants"] is None or variant in row["variants"]):
            return str(row["glibc_min"])
    raise LookupError(f"no row of `platforms` covers torch {release}")


def libc_runs(libc: str | None, release: str, variant: str, machine: str) -> bool:
    """Whether a wheel supports a C library: `glibc 2.17`, `musl`, or None if unknown or not Linux."""
    if libc is None:
        return True
    name, _, version = libc.partition(" ")
    return name == "glibc" and parse_version(version) >= parse_version(needed_glibc(release, variant, machine))


def driver_runs(driver_version: str, cuda: str, *, full: bool = False) -> bool:
    """Whether the table lists a Linux driver for binaries of that CUDA version; with `full` also for its PTX."""
    needed = needed_driver(cuda, full=full)
    return needed is not None and parse_version(driver_version) >= parse_version(needed)


def needed_driver(cuda: str, *, full: bool = False) -> str | None:
    """The oldest Linux driver for precompiled binaries of that CUDA, or with `full` for its PTX; None if not listed.

    Precompiled binaries of one major version all need the same driver, including versions newer than the table.
    """
    rows: list[dict[str, str]] = read_table("drivers")["cuda_min_driver_linux"]
    exact = next((row for row in rows if row["cuda"] == cuda), None)
    if exact is not None:
        return exact["full" if full else "minor_compat"]
    major = parse_version(cuda)[:1]
    return next((row["minor_compat"] for row in rows if not full and parse_version(row["cuda"])[:1] == major), None)


def driver_of_cuda(cuda: str) -> str | None:
    """The oldest Linux driver that supports that CUDA version; stands for a driver whose own version is unknown."""
    rows: list[dict[str, str]] = read_table("drivers")["cuda_min_driver_linux"]
    reached = [row["full"] for row in rows if parse_version(row["cuda"]) <= parse_version(cuda)]
    return max(reached, key=parse_version, default=None) or needed_driver(cuda)


def variants(release: dict[str, Any], machine: str) -> list[tuple[str, list[str]]]:
    """CUDA builds of a release as (variant, architecture list): first the one on PyPI, then the newest."""
    wheels: dict[str, list[str]] = release["x86_64_wheels"]
    if machine != "x86_64":
        version = parse_version(release["torch"])
        rows = read_table("torch")["aarch64"] if machine == "aarch64" else []
        listed = {row["variant"]: row["archs"] for row in rows if version >= parse_version(row["torch_min"])}
        wheels = {variant: listed[variant] for variant in wheels if variant in listed}
    order = sorted(wheels, key=lambda name: (name == release["pypi_default"], parse_version(cuda_of(name))))
    return [(variant, _arch_list(wheels[variant])) for variant in reversed(order)]


def _arch_list(listed: list[str]) -> list[str]:
    """`6.0` as `sm_60`, `12.0+PTX` as `sm_120` and `compute_120`."""
    archs = []
    for entry in listed:
        digits = entry.removesuffix("+PTX").replace(".", "")
        archs += [f"sm_{digits}", f"compute_{digits}"] if entry.endswith("+PTX") else [f"sm_{digits}"]
    return archs
