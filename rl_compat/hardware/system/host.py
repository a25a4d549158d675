"""The host: memory, cores, shared memory, disk, and the container of this process."""

from __future__ import annotations

import codecs
import locale
import os
import platform
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from rl_compat.hardware.system.cgroup import read_cpu_quota, read_memory_limit
from rl_compat.hardware.system.folders import disk_bytes, read_folders
from rl_compat.hardware.system.text_files import read_text
from rl_compat.hardware.types import Host

CPU_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "f16c",
    "fma",
    "asimd",
    "sve",
    "bf16",
)


def read_host(*, environment: Mapping[str, str], root: Path = Path("/"), folder: Path | None = None) -> Host:
    """Facts of the host. `root` contains `/proc`, `/sys` and `/dev`; `folder` is on the disk that is measured."""
    total, available = read_ram(root)
    limit = read_memory_limit(root)
    limited = limit is not None and limit.limit_bytes < total
    kernel = read_text(root / "proc/sys/kernel/osrelease").strip() or platform.release()
    shm = disk_bytes(root / "dev/shm")
    folders = read_folders(environment, root=root, run=folder)
    cpuinfo = read_text(root / "proc/cpuinfo")
    cpu_name = _cpuinfo_field(cpuinfo, "model name") or _cpuinfo_field(cpuinfo, "Model")
    return Host(
        platform=f"{platform.system()} {platform.machine()}",
        kernel=kernel,
        cpu_name=cpu_name or platform.processor() or platform.machine(),
        num_cores=count_cores(read_cpu_quota(root)),
        ram_total_bytes=total,
        ram_limit_bytes=limit.limit_bytes if limit and limited else total,
        ram_available_bytes=min(available, limit.available_bytes) if limit and limited else available,
        shm_total_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        disk_free_bytes=next((place.free_bytes for place in folders if place.role == "run"), None),
        cpu_features=parse_cpu_features(cpuinfo),
        container=find_container(environment, root),
        wsl="microsoft" in kernel.lower(),
        file_descriptor_limit=_file_descriptor_limit(),
        locale_encoding=read_encoding(),
        folders=folders,
        libc=read_libc(),
    )


def read_ram(root: Path) -> tuple[int, int]:
    """Total bytes of the host, and bytes that can be allocated without swapping."""
    fields = parse_meminfo(read_text(root / "proc/meminfo"))
    if "MemTotal" in fields:
        return fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0))
    try:
        import psutil
    except ImportError:
        return _physical_memory()
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _physical_memory() -> tuple[int, int]:
    """Memory from the C library's page count, all assumed available; zero if unknown."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        total = 0
    return total, total


def read_libc(built_for: str | None = None) -> str | None:
    """The C library of this Python, from a build such as `x86_64-pc-linux-musl`; None if unknown."""
    if "musl" in (built_for or sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return "musl"
    name, version = platform.libc_ver()
    return f"{name} {version}" if name == "glibc" else None


def read_encoding() -> str:
    """The default text encoding of Python, such as `utf-8`."""
    name = locale.getpreferredencoding(False)
    try:
        return codecs.lookup(name).name
    except LookupError:
        return name.lower()


def parse_meminfo(text: str) -> dict[str, int]:
    """`/proc/meminfo` as bytes by name."""
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        parts = rest.split()
        if parts and parts[0].isdigit():
            fields[name] = int(parts[0]) * (1024 if len(parts) > 1 else 1)
    return fields


def count_cores(quota: float | None) -> int:
    """Cores this process may use: its affinity, limited to whole cores of the quota; at least one."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def parse_cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """The CPU_FEATURES that `/proc/cpuinfo` lists."""
    flags = (_cpuinfo_field(cpuinfo, "flags") or _cpuinfo_field(cpuinfo, "Features") or "").split()
    return tuple(feature for feature in CPU_FEATURES if feature in flags)


def find_container(environment: Mapping[str, str], root: Path) -> str | None:
    """The kind of container of this process; None outside a container."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    named = read_text(root / "run/systemd/container").strip() or environment.get("container", "")
    if named:
        return named
    groups = read_text(root / "proc/1/cgroup")
    kinds = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "containerd": "containerd", "lxc": "lxc"}
    return next((kind for mark, kind in kinds.items() if mark in groups), None)


def _cpuinfo_field(cpuinfo: str, name: str) -> str | None:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _file_descriptor_limit() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
