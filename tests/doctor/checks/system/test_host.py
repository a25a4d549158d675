"""The checks of the machine around the cards."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import A100, P40, host, recorded

from rl_compat.doctor.checks.system.host import (
    check_container,
    check_cpu,
    check_file_descriptors,
    check_ram,
    check_shared_memory,
    check_terminal,
    check_wsl,
)
from rl_compat.doctor.diagnosis import run_checks, select_checks
from rl_compat.doctor.findings import Certainty, Finding, Severity, Step
from rl_compat.doctor.table import CHECKS as EVERY_CHECK
from rl_compat.hardware.types import Device, Folder, Hardware, Software
from rl_compat.units import GIB, MIB

CHECKS = select_checks(EVERY_CHECK, ("ram", "cpu", "file_descriptors"))

LINUX = "Linux x86_64"


def around(
    *devices: Device, ram_bytes: int = 64 * GIB, environment: dict[str, str] | None = None, **facts: object
) -> Hardware:
    return Hardware(
        devices=devices,
        host=host(ram_bytes, **{"platform": LINUX, **facts}),
        software=Software(python="3.12.8"),
        environment=environment or {},
    )


def only(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> Finding:
    (finding,) = check(hardware)
    return finding


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def prose(finding: Finding) -> str:
    return "\n".join(remedy.what for remedy in finding.remedies)


def test_64_mib_of_shared_memory_for_two_gpus_are_a_warning_with_both_remedies() -> None:
    """A-ENV-07: a run on several GPUs stops, one on a single GPU does not."""
    finding = only(check_shared_memory, recorded("container_32gib_two_a10"))
    assert (finding.id, finding.severity) == ("shared_memory.small", Severity.WARNING)
    assert finding.what == "/dev/shm has 64.0 MiB, for 2 GPUs"
    assert finding.affects == ("several GPUs",)
    assert "--shm-size=8g" in commands(finding)
    assert "--ipc=host" in prose(finding)
    assert "emptyDir: {medium: Memory" in prose(finding)
    assert {remedy.step for remedy in finding.remedies} == {Step.CONTAINER}


def test_64_mib_of_shared_memory_are_fine_for_one_gpu() -> None:
    """A-ENV-07, second probe."""
    hardware = around(P40, shm_total_bytes=64 * MIB, shm_free_bytes=64 * MIB, container="docker")
    finding = only(check_shared_memory, hardware)
    assert (finding.id, finding.severity, finding.remedies) == ("shared_memory.fits", Severity.OK, ())
    assert "64.0 MiB" in finding.what and "one GPU" in finding.what


def test_kubernetes_gets_its_own_remedy_first() -> None:
    hardware = around(P40, P40, shm_total_bytes=64 * MIB, shm_free_bytes=64 * MIB, container="kubernetes")
    assert "emptyDir" in only(check_shared_memory, hardware).remedies[0].what


def test_podman_is_called_by_its_name() -> None:
    hardware = around(P40, P40, shm_total_bytes=64 * MIB, shm_free_bytes=64 * MIB, container="podman")
    assert "podman run --device nvidia.com/gpu=all --shm-size=8g" in commands(only(check_shared_memory, hardware))


def test_outside_a_container_shared_memory_is_mounted_larger() -> None:
    finding = only(check_shared_memory, around(P40, P40, shm_total_bytes=512 * MIB, shm_free_bytes=512 * MIB))
    assert (finding.id, finding.severity) == ("shared_memory.small", Severity.WARNING)
    assert commands(finding) == "sudo mount -o remount,size=8G /dev/shm"


def test_shared_memory_that_others_fill_is_told_from_one_that_is_small() -> None:
    finding = only(check_shared_memory, around(P40, P40, shm_total_bytes=32 * GIB, shm_free_bytes=10 * MIB))
    assert (finding.id, finding.severity) == ("shared_memory.full", Severity.WARNING)
    assert finding.remedies[0].commands == ("ls -lhS /dev/shm",)


def test_unknown_shared_memory_is_a_note_for_several_gpus_and_nothing_for_one() -> None:
    assert only(check_shared_memory, around(P40, P40)).id == "shared_memory.unknown"
    assert only(check_shared_memory, around(P40, P40)).severity == Severity.NOTE
    assert not list(check_shared_memory(around(P40)))


def test_a_mac_is_not_asked_for_dev_shm() -> None:
    assert not list(check_shared_memory(around(platform="Darwin arm64")))


@pytest.mark.parametrize(
    ("available", "case", "severity"),
    [
        (300 * MIB, "ram.none_left", Severity.FAILURE),
        (2 * GIB, "ram.little", Severity.WARNING),
        (16 * GIB, "ram.no_offload", Severity.NOTE),
        (20 * GIB, "ram.enough", Severity.OK),
    ],
)
def test_host_memory_is_judged_by_what_needs_it(available: int, case: str, severity: Severity) -> None:
    """A P40 trains 24 GiB / 16 bytes without offload; its host holds as many states from 18 GiB on."""
    finding = only(check_ram, around(P40, ram_bytes=64 * GIB, ram_available_bytes=available))
    assert (finding.id, finding.severity) == (case, severity)


def test_the_limit_of_the_container_is_the_budget_and_both_numbers_are_shown() -> None:
    """A-MEM-05."""
    finding = only(check_ram, recorded("container_32gib_two_a10"))
    assert (finding.id, finding.severity) == ("ram.no_offload", Severity.WARNING)
    assert finding.what == (
        "30.0 GiB of host memory available within a limit of 32.0 GiB (the host has 1.0 TiB), the cards have 45.0 GiB"
    )
    assert not missing(finding.why, "2.7 billion", "3.0 billion")
    assert "cgroup" in finding.where
    assert "--memory=SIZE" in commands(finding)
    assert "swap" not in prose(finding) + finding.why


def test_a_limit_that_is_large_enough_is_fine() -> None:
    finding = only(check_ram, around(P40, ram_total_bytes=1024 * GIB, ram_limit_bytes=64 * GIB))
    assert (finding.id, finding.severity) == ("ram.enough", Severity.OK)
    assert not missing(finding.what, "64.0 GiB", "1.0 TiB")


def test_available_memory_never_counts_beyond_the_limit() -> None:
    hardware = around(ram_total_bytes=1024 * GIB, ram_limit_bytes=512 * MIB, ram_available_bytes=1000 * GIB)
    assert only(check_ram, hardware).id == "ram.none_left"


def test_wsl_is_told_of_its_half_of_windows_memory() -> None:
    finding = only(check_ram, around(P40, ram_bytes=12 * GIB, wsl=True))
    assert ".wslconfig" in prose(finding) and "wsl --shutdown" in prose(finding)
    assert finding.remedies[0].step == Step.SYSTEM


def test_memory_that_others_hold_is_looked_for_first() -> None:
    finding = only(check_ram, around(P40, ram_bytes=64 * GIB, ram_available_bytes=4 * GIB))
    assert finding.remedies[0].commands == ("ps -eo pid,user,rss,comm --sort=-rss | head",)


def test_a_card_that_shares_the_hosts_memory_asks_for_no_offload() -> None:
    shared = replace(A100, name="Orin", memory_total_bytes=60 * GIB)
    hardware = around(shared, ram_bytes=61 * GIB, ram_available_bytes=20 * GIB, platform="Linux aarch64")
    assert only(check_ram, hardware).id == "ram.enough"


def test_a_processor_without_avx2_is_a_warning_where_it_trains_and_a_note_beside_a_card() -> None:
    features = ("f16c",)
    alone, with_p40 = around(cpu_features=features), around(P40, cpu_features=features)
    assert [(item.id, item.severity) for item in check_cpu(alone)] == [("cpu.no_avx2", Severity.WARNING)]
    assert [(item.id, item.severity) for item in check_cpu(with_p40)] == [("cpu.no_avx2", Severity.NOTE)]


@pytest.mark.parametrize(
    ("platform", "features"),
    [(LINUX, ("avx2", "amx_bf16")), (LINUX, ()), ("Linux aarch64", ("asimd", "bf16"))],
)
def test_a_processor_of_another_kind_or_not_known_is_not_blamed(platform: str, features: tuple[str, ...]) -> None:
    finding = only(check_cpu, around(platform=platform, cpu_features=features, num_cores=1))
    assert (finding.id, finding.severity) == ("cpu.usable", Severity.OK)
    assert "1 core usable" in finding.what
    assert ("amx_bf16" in finding.what) == ("amx_bf16" in features)


@pytest.mark.parametrize(
    ("value", "cases"),
    [("1", ["cpu.few_threads"]), ("5", []), ("8", []), ("64", ["cpu.many_threads"]), ("four", []), ("", [])],
)
def test_threads_are_compared_with_cores_where_the_processor_trains(value: str, cases: list[str]) -> None:
    on_cpu = around(num_cores=8, environment={"OMP_NUM_THREADS": value})
    assert [item.id for item in check_cpu(on_cpu)][1:] == cases
    assert [item.id for item in check_cpu(replace(on_cpu, devices=(P40,)))] == ["cpu.usable"]


@pytest.mark.parametrize(
    ("limit", "num_devices", "case", "severity"),
    [
        (1024, 1, "file_descriptors.enough", Severity.OK),
        (1024, 4, "file_descriptors.enough", Severity.OK),
        (1024, 8, "file_descriptors.few_for_workers", Severity.NOTE),
        (4096, 8, "file_descriptors.enough", Severity.OK),
        (255, 1, "file_descriptors.few", Severity.WARNING),
        (-1, 8, "file_descriptors.enough", Severity.OK),
    ],
)
def test_open_files_are_judged_by_the_number_of_workers(
    limit: int, num_devices: int, case: str, severity: Severity
) -> None:
    finding = only(check_file_descriptors, around(*[P40] * num_devices, file_descriptor_limit=limit))
    assert (finding.id, finding.severity) == (case, severity)
    assert (commands(finding) == "ulimit -n 4096") == (severity > Severity.OK)


def test_an_unknown_limit_of_files_says_nothing() -> None:
    assert not list(check_file_descriptors(around(P40)))


def folder(role: str, file_system: str | None) -> Folder:
    return Folder(role=role, path=f"/data/{role}", writable=True, file_system=file_system)


def test_what_lies_in_a_containers_own_layer_is_said_to_be_lost_with_it() -> None:
    folders = (folder("run", "overlay"), folder("hub_cache", "ext4"), folder("temporary", "overlay"))
    finding = only(check_container, around(P40, container="docker", folders=folders))
    assert (finding.id, finding.severity) == ("container.ephemeral", Severity.NOTE)
    assert "`/data/run`" in finding.what
    assert "hub_cache" not in finding.what and "temporary" not in finding.what
    assert "--volume HOST_FOLDER" in commands(finding)


def test_a_container_with_mounted_folders_is_fine_and_none_says_nothing() -> None:
    folders = (folder("run", "ext4"), folder("hub_cache", None))
    assert only(check_container, around(container="docker", folders=folders)).severity == Severity.OK
    assert not list(check_container(around(folders=(folder("run", "overlay"),))))


def test_wsl_1_has_no_gpu_and_wsl_2_is_fine() -> None:
    first = only(check_wsl, around(wsl=True, kernel="4.4.0-22621-Microsoft"))
    second = only(check_wsl, around(wsl=True, kernel="5.15.167.4-microsoft-standard-WSL2"))
    assert (first.id, first.severity) == ("wsl.version_1", Severity.WARNING)
    assert (second.id, second.severity) == ("wsl.version_2", Severity.OK)
    assert not list(check_wsl(around()))


def test_a_healthy_machine_has_nothing_worse_than_ok() -> None:
    for name in ("p40", "rtx4090", "laptop_no_gpu"):
        results = run_checks(CHECKS, recorded(name))
        assert {item.severity for result in results for item in result.findings} == {Severity.OK}, name


def test_commands_that_can_be_pasted_are_a_shells_and_have_nothing_to_fill_in() -> None:
    bad = around(P40, P40, ram_bytes=8 * GIB, shm_total_bytes=MIB, shm_free_bytes=MIB, cpu_features=("fma",), wsl=True)
    for result in run_checks(CHECKS, bad):
        for remedy in (remedy for finding in result.findings for remedy in finding.remedies):
            for line in remedy.commands:
                assert shlex.split(line)
                assert remedy.certainty is not Certainty.READY or not {"IMAGE", "SIZE"} & set(
                    line.replace("=", " ").split()
                )


def writing(encoding: str | None) -> Hardware:
    return Hardware(devices=(), host=host(locale_encoding=encoding), software=Software(python="3.12"))


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "utf8", "UTF_8"])
def test_every_spelling_of_utf8_is_fine(encoding: str) -> None:
    (finding,) = check_terminal(writing(encoding))
    assert (finding.id, finding.severity, finding.remedies) == ("terminal.utf8", Severity.OK, ())


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ANSI_X3.4-1968", "cp1252", "no-such-encoding", ""])
def test_another_encoding_is_a_warning_with_two_ways_out(encoding: str) -> None:
    (finding,) = check_terminal(writing(encoding))
    assert (finding.id, finding.severity) == ("terminal.encoding", Severity.WARNING)
    assert f"`{encoding}`" in finding.what
    assert [line for remedy in finding.remedies for line in remedy.commands] == [
        "export PYTHONUTF8=1",
        "export LC_ALL=C.UTF-8 LANG=C.UTF-8",
    ]


def test_an_unknown_encoding_says_nothing() -> None:
    assert not list(check_terminal(writing(None)))
