"""The checks of the disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from fakes.doctor import missing
from fakes.machines import P40, host, recorded

from rl_compat.doctor.checks.system.storage import TORCH_BYTES, check_caches, check_disk, must_install_torch
from rl_compat.doctor.findings import Certainty, Finding, Severity, Step
from rl_compat.hardware.types import Device, Folder, Hardware, Software, TorchBuild
from rl_compat.units import GIB, MIB

CUDA = TorchBuild(version="2.14.1+cu126", cuda="12.6")
CPU = TorchBuild(version="2.14.1+cpu")


def writing(
    *folders: Folder, devices: tuple[Device, ...] = (P40,), torch: TorchBuild | None = CUDA, **facts: object
) -> Hardware:
    return Hardware(
        devices=devices, host=host(folders=folders, **facts), software=Software(python="3.12.8", torch=torch)
    )


def folder(role: str, free: int | None = 400 * GIB, *, error: str | None = None, **facts: object) -> Folder:
    values: dict[str, object] = {"path": f"/data/{role}", "writable": error is None, "error": error, **facts}
    return Folder(role=role, free_bytes=free, **values)  # type: ignore[arg-type]


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in check(hardware)}


def only(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> Finding:
    (finding,) = check(hardware)
    return finding


def commands(finding: Finding) -> list[str]:
    return [line for remedy in finding.remedies for line in remedy.commands]


def test_a_full_disk_stops_a_run_and_one_finding_names_every_folder_on_it() -> None:
    finding = only(check_disk, writing(folder("run", 0), folder("temporary", 0, path="/tmp/my files")))
    assert (finding.id, finding.severity) == ("disk.full", Severity.FAILURE)
    assert finding.what == "run folder `/data/run` has 0 B free; temporary folder `/tmp/my files` has 0 B free"
    assert finding.affects == ("run", "temporary")
    assert finding.remedies[0].certainty is Certainty.PLACEHOLDER
    assert commands(finding) == [
        'mkdir -p "/PATH/WITH/SPACE/tmp"',
        'export TMPDIR="/PATH/WITH/SPACE/tmp"',
        'cd "/PATH/WITH/SPACE"',
        "df -h /data/run",
        "df -h '/tmp/my files'",
    ]


@pytest.mark.parametrize(
    ("error", "case", "look"),
    [
        ("Read-only file system", "read_only", "findmnt -T /data/run"),
        ("Permission denied", "not_writable", "ls -ld /data/run"),
        ("No space left on device", "inodes", "df -i /data/run"),
        ("Disk quota exceeded", "quota", "quota -s"),
        ("no answer within 3 s", "hangs", "findmnt --types nfs,nfs4,cifs,fuse.sshfs,ceph,lustre"),
        ("a link to `/disk`, which does not exist", "gone", "ls -ld /data/run"),
        ("", "not_writable", "ls -ld /data/run"),
    ],
)
def test_the_error_of_a_test_file_tells_why_a_folder_cannot_be_written(error: str, case: str, look: str) -> None:
    finding = only(check_disk, writing(folder("run", 30 * GIB, error=error)))
    assert (finding.id, finding.severity) == (f"disk.{case}", Severity.FAILURE)
    assert "30.0 GiB free" in finding.what
    assert error in finding.what
    assert commands(finding)[-1] == look


def test_a_read_only_cache_is_a_warning_since_what_is_in_it_can_still_be_used() -> None:
    broken = [folder(role, error="[Errno 30] Read-only file system") for role in ("hub_cache", "model_cache")]
    finding = only(check_caches, writing(*broken))
    assert (finding.id, finding.severity) == ("caches.read_only", Severity.WARNING)
    assert 'export HF_HOME="/PATH/WITH/SPACE/huggingface"' in finding.remedies[0].commands
    assert 'export RLC_CACHE="/PATH/WITH/SPACE/rl_compat"' in finding.remedies[0].commands


def test_a_variable_that_is_asked_first_is_the_one_that_is_changed() -> None:
    hardware = replace(writing(folder("hub_cache", 0)), environment={"HF_HUB_CACHE": "/data/hub_cache"})
    assert only(check_caches, hardware).remedies[0].commands[1] == 'export HF_HUB_CACHE="/PATH/WITH/SPACE/huggingface"'


def test_a_file_system_without_any_room_says_by_its_error_whether_it_is_full() -> None:
    assert found(check_caches, writing(folder("hub_cache", 0, error="No such file or directory"))) == {
        "caches.not_writable": Severity.WARNING
    }
    assert found(check_caches, writing(folder("hub_cache", 0, error="No space left on device"))) == {
        "caches.full": Severity.WARNING
    }


def test_two_faults_are_two_findings() -> None:
    hardware = writing(folder("hub_cache", 0), folder("model_cache", error="Permission denied"))
    assert found(check_caches, hardware) == {
        "caches.full": Severity.WARNING,
        "caches.not_writable": Severity.WARNING,
    }


def test_a_run_folder_that_holds_no_two_checkpoints_is_a_warning() -> None:
    assert found(check_disk, writing(folder("run", 2 * GIB))) == {"disk.small": Severity.WARNING}
    finding = only(check_disk, writing(folder("run", 4 * GIB)))
    assert (finding.id, finding.what) == ("disk.enough", "run folder `/data/run` has 4.0 GiB free")


def test_a_small_tmpfs_is_named_as_such() -> None:
    finding = only(check_disk, writing(folder("temporary", 100 * MIB, file_system="tmpfs")))
    assert finding.id == "disk.small"
    assert not missing(finding.what, "(tmpfs)", "100.0 MiB free", "1.0 GiB")
    assert finding.remedies[0].step == Step.SHELL


def test_room_for_packages_matters_only_where_torch_has_to_be_installed() -> None:
    packages = folder("packages", 5 * GIB)
    assert found(check_disk, writing(packages)) == {}
    assert found(check_disk, writing(packages, torch=None)) == {"disk.small": Severity.FAILURE}
    assert found(check_disk, writing(packages, torch=CPU)) == {"disk.small": Severity.FAILURE}
    assert found(check_disk, writing(packages, torch=None, devices=())) == {"disk.enough": Severity.OK}
    assert found(check_disk, writing(folder("packages", TORCH_BYTES["cuda"]), torch=None)) == {
        "disk.enough": Severity.OK
    }


def test_a_torch_that_could_not_be_imported_is_still_installed() -> None:
    hardware = writing()
    broken = replace(hardware, software=Software(python="3.12", packages={"torch": "2.14.1"}, torch_error="no"))
    assert must_install_torch(broken) is None
    replaced = replace(hardware, software=Software(python="3.12", packages={"torch": "2.14.1+cpu"}))
    assert must_install_torch(replaced) == "cuda"


def test_room_that_is_not_known_is_not_judged() -> None:
    assert found(check_caches, writing(folder("hub_cache", None))) == {"caches.enough": Severity.OK}


def test_a_cache_without_room_for_a_model_is_a_warning() -> None:
    assert found(check_caches, writing(folder("hub_cache", 3 * GIB))) == {"caches.small": Severity.WARNING}


@pytest.mark.parametrize(
    ("facts", "slow"),
    [
        ({"path": "/mnt/c/Users/ada/runs"}, True),
        ({"file_system": "9p"}, True),
        ({"path": "/mnt/data/runs", "file_system": "ext4"}, False),
    ],
)
def test_a_disk_of_windows_is_slow_under_wsl_alone(facts: dict[str, Any], slow: bool) -> None:
    item = folder("run", **facts)
    assert ("disk.windows_disk" in found(check_disk, writing(item, wsl=True))) is slow
    assert found(check_disk, writing(item)) == {"disk.enough": Severity.OK}


def test_leaving_a_disk_of_windows_can_be_pasted() -> None:
    hardware = writing(folder("hub_cache", path="/mnt/c/cache"), wsl=True)
    finding = next(item for item in check_caches(hardware) if item.id == "caches.windows_disk")
    assert finding.remedies[0].certainty is Certainty.READY
    assert finding.remedies[0].commands == ('mkdir -p "$HOME/huggingface"', 'export HF_HOME="$HOME/huggingface"')


def test_an_older_recording_has_its_disk_and_no_caches() -> None:
    hardware = writing(disk_free_bytes=400 * GIB)
    assert found(check_disk, hardware) == {"disk.enough": Severity.OK}
    assert found(check_caches, hardware) == {}
    assert found(check_disk, writing()) == {}


def test_a_healthy_machine_has_nothing_worse_than_ok() -> None:
    for check in (check_disk, check_caches):
        assert set(found(check, recorded("p40")).values()) <= {Severity.OK}
