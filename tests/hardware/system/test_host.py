"""Facts of the host, read from folders that look like `/proc` and `/sys`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rl_compat.hardware.system.cgroup import read_cpu_quota, read_memory_limit
from rl_compat.hardware.system.host import count_cores, find_container, parse_cpu_features, read_host, read_libc
from rl_compat.units import GIB

MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {60 * GIB // 1024} kB\n"


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_the_limit_of_a_version_2_group_bounds_ram(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/memory.max": 32 * GIB,
            "sys/fs/cgroup/memory.current": 5 * GIB,
            "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {3 * GIB}",
        },
    )
    host = read_host(environment={}, root=root, folder=tmp_path)
    assert host.ram_total_bytes == 64 * GIB
    assert host.ram_limit_bytes == 32 * GIB
    assert host.ram_available_bytes == 30 * GIB


def test_the_tightest_enclosing_group_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job/step",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/user/memory.max": 8 * GIB,
            "sys/fs/cgroup/user/job/memory.max": "max",
            "sys/fs/cgroup/user/job/step/memory.max": 16 * GIB,
            "sys/fs/cgroup/user/cpu.max": "250000 100000",
            "sys/fs/cgroup/user/job/step/cpu.max": "max 100000",
        },
    )
    limit = read_memory_limit(root)
    assert limit is not None
    assert limit.limit_bytes == 8 * GIB
    assert read_cpu_quota(root) == 2.5


def test_version_1_groups_are_read(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": 4 * GIB,
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": 150000,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": 100000,
        },
    )
    limit = read_memory_limit(root)
    assert limit is not None
    assert (limit.limit_bytes, limit.available_bytes) == (4 * GIB, 3 * GIB)
    assert read_cpu_quota(root) == 1.5


def test_a_path_of_the_hosts_falls_back_to_the_mounts_root(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/kubepods/pod1/container1",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 2 * GIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 0,
        },
    )
    limit = read_memory_limit(root)
    assert limit is not None
    assert limit.limit_bytes == 2 * GIB


@pytest.mark.parametrize("value", ["max", "9223372036854771712"])
def test_no_limit_leaves_the_hosts_ram(tmp_path: Path, value: str) -> None:
    files = {"sys/fs/cgroup/cgroup.controllers": "memory", "sys/fs/cgroup/memory.max": value}
    host = read_host(environment={}, root=write(tmp_path, files), folder=tmp_path)
    assert host.ram_limit_bytes == host.ram_total_bytes == 64 * GIB
    assert host.ram_available_bytes == 60 * GIB


def test_cores_are_the_affinity_cut_to_the_quota() -> None:
    allowed = len(os.sched_getaffinity(0))
    assert count_cores(None) == allowed
    assert count_cores(1.9) == 1
    assert count_cores(0.5) == 1
    assert count_cores(1000.0) == allowed


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"run/systemd/container": "lxc"}, {}, "lxc"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "0::/kubepods/besteffort/pod"}, {}, "kubernetes"),
        ({"proc/1/cgroup": "0::/init.scope"}, {}, None),
    ],
)
def test_the_container_is_recognised(
    tmp_path: Path, files: dict[str, object], environment: dict[str, str], kind: str | None
) -> None:
    assert find_container(environment, write(tmp_path, files)) == kind


def test_wsl_is_read_from_the_kernels_release(tmp_path: Path) -> None:
    """A-ENV-06."""
    root = write(tmp_path, {"proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2"})
    assert read_host(environment={}, root=root, folder=tmp_path).wsl


def test_cpu_features_are_those_that_matter() -> None:
    cpuinfo = "processor : 0\nmodel name : Some CPU\nflags : fpu avx2 avx512f amx_bf16 sse\n"
    assert parse_cpu_features(cpuinfo) == ("avx2", "avx512f", "amx_bf16")


def test_the_encoding_is_that_of_this_python() -> None:
    program = "from rl_compat.hardware.system.host import read_encoding; print(read_encoding())"
    for utf8, expected in (("1", "utf-8"), ("0", "ascii")):
        variables = {**os.environ, "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_nothing_is_known_of_an_empty_machine_and_it_does_not_crash(tmp_path: Path) -> None:
    host = read_host(environment={}, root=tmp_path, folder=tmp_path / "missing")
    assert host.num_cores >= 1
    assert host.ram_total_bytes > 0
    assert host.disk_free_bytes == host.folders[0].free_bytes
    assert host.folders[0].path == str(tmp_path)
    assert host.folders[0].file_system is None
    assert host.shm_total_bytes is None


def test_the_c_library_is_named_with_its_version() -> None:
    assert read_libc("x86_64-pc-linux-musl") == "musl"
    assert read_libc("x86_64-pc-linux-gnu") in (None, " ".join(platform.libc_ver()))
