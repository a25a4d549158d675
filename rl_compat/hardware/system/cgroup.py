"""Limits of control groups (version 1 and 2) on this process: the tightest of all enclosing groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rl_compat.hardware.system.text_files import read_text

UNLIMITED_BYTES = 1 << 60
"version 1 uses a number near 2^63 for no limit"
MEMORY_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"of version 2 and 1: the controller, the files of the limit and the usage, and the line of `memory.stat` to subtract"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    limit_bytes: int
    available_bytes: int
    "the limit minus used memory that cannot be reclaimed"


def read_memory_limit(root: Path) -> MemoryLimit | None:
    """The tightest memory limit and what is left of it; None without a limit."""
    found = (_memory(folder, *files) for controller, *files in MEMORY_FILES for folder in _folders(root, controller))
    limits = [limit for limit in found if limit is not None]
    if not limits:
        return None
    return MemoryLimit(
        min(limit.limit_bytes for limit in limits), max(0, min(limit.available_bytes for limit in limits))
    )


def read_cpu_quota(root: Path) -> float | None:
    """CPU quota in cores; None without a quota."""
    found = [_quota_v2(folder) for folder in _folders(root, "")]
    found += [_quota_v1(folder) for folder in _folders(root, "cpu")]
    return min((quota for quota in found if quota is not None), default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's group and its ancestors up to the mount; an empty controller is version 2.

    The path in `/proc/self/cgroup` may be the host's while only the container's subtree is mounted: then the mount's
    root is the group.
    """
    for mount in _mounts(root, controller):
        group = _group_path(root, controller)
        folder = mount / group.lstrip("/")
        if not folder.is_dir():
            folder = mount
        while folder != mount:
            yield folder
            folder = folder.parent
        yield mount


def _mounts(root: Path, controller: str) -> list[Path]:
    top = root / "sys/fs/cgroup"
    if controller:
        return [path for path in (top / controller,) if path.is_dir()]
    return [path for path in (top, top / "unified") if (path / "cgroup.controllers").exists()]


def _group_path(root: Path, controller: str) -> str:
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == controller or controller in controllers.split(","):
            return path
    return "/"


def _memory(folder: Path, limit_file: str, usage_file: str, droppable: str) -> MemoryLimit | None:
    limit = _number(folder / limit_file)
    if limit is None or limit >= UNLIMITED_BYTES:
        return None
    used = _number(folder / usage_file) or 0
    for line in read_text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == droppable:
            used -= int(value)
    return MemoryLimit(limit, limit - max(used, 0))


def _quota_v2(folder: Path) -> float | None:
    quota, period = [*read_text(folder / "cpu.max").split(), "", ""][:2]
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _number(path: Path) -> int | None:
    text = read_text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None
