"""Folders that training writes to, on real file systems: writable, read-only, full, missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_compat.hardware.system.folders import (
    TEST_BYTES,
    file_system_of,
    folder_places,
    read_folder,
    read_folders,
    read_mounts,
)
from rl_compat.models.files.registry import cache_folder

MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /mnt/my\040disk rw - ext4 /dev/vdb rw
31 27 0:41 / /home rw - nfs4 server:/home rw
32 31 0:42 / /home rw - overlay overlay rw
nonsense
"""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs to mount")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of four blocks."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={4 * TEST_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_writable_folder_has_room_and_stays_empty(tmp_path: Path) -> None:
    folder = read_folder("run", tmp_path, read_mounts())
    assert (folder.path, folder.writable, folder.error) == (str(tmp_path), True, None)
    assert folder.free_bytes
    assert folder.file_system
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_judged_by_its_parent_and_not_made(tmp_path: Path) -> None:
    folder = read_folder("run", tmp_path / "runs" / "first", {})
    assert (folder.path, folder.writable) == (str(tmp_path), True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = read_folder("run", tmp_path / "file" / "runs", {})
    assert (folder.path, folder.writable, folder.error) == (str(tmp_path / "file"), False, "Not a directory")


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "gone")
    folder = read_folder("hub_cache", tmp_path / "cache" / "hub", {})
    assert not folder.writable
    assert folder.error == f"a link to `{tmp_path / 'gone'}`, which does not exist"


@needs_root
def test_a_full_disk_is_an_error_and_no_file_is_left(small_disk: Path) -> None:
    (small_disk / "data").write_bytes(bytes(4 * TEST_BYTES))
    folder = read_folder("run", small_disk, read_mounts())
    assert (folder.writable, folder.free_bytes, folder.error) == (False, 0, "No space left on device")
    assert folder.file_system == "tmpfs"
    assert [path.name for path in small_disk.iterdir()] == ["data"]


@needs_root
def test_a_read_only_file_system_is_an_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    folder = read_folder("hub_cache", small_disk / "hub", read_mounts())
    assert (folder.path, folder.writable, folder.error) == (str(small_disk), False, "Read-only file system")


@needs_root
def test_another_users_folder_is_an_error(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(0o755)
    program = (
        "import os; from pathlib import Path; "
        "from rl_compat.hardware.system.folders import read_folder; os.setuid(65534); "
        f"print(read_folder('run', Path({str(tmp_path)!r}), {{}}).error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Permission denied"


def test_a_working_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        "import os, shutil; from rl_compat.hardware.system.folders import read_folders; "
        f"os.chdir({str(gone)!r}); shutil.rmtree({str(gone)!r}); print(read_folders({{}})[0].error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "the working directory does not exist any more"


def test_each_role_has_its_folder(tmp_path: Path) -> None:
    folders = read_folders({"HOME": str(tmp_path)}, run=tmp_path)
    assert [folder.role for folder in folders] == ["run", "temporary", "hub_cache", "model_cache", "packages"]
    assert folders[2].path == str(tmp_path)


def test_the_caches_are_where_their_users_look(tmp_path: Path) -> None:
    home = {"HOME": "/home/ada"}
    assert folder_places(home)["hub_cache"] == Path("/home/ada/.cache/huggingface/hub")
    assert folder_places({**home, "XDG_CACHE_HOME": "/c"})["hub_cache"] == Path("/c/huggingface/hub")
    assert folder_places({**home, "HF_HOME": "~/hf"})["hub_cache"] == Path("/home/ada/hf/hub")
    assert folder_places({**home, "HF_HOME": "/a", "HF_HUB_CACHE": "/b"})["hub_cache"] == Path("/b")
    assert folder_places({**home, "TMPDIR": str(tmp_path)})["temporary"] == tmp_path
    assert folder_places({**home, "TMPDIR": "/nonexistent"})["temporary"] == Path("/tmp")


@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "/c"}, {"RLC_CACHE": "~/models"}, {"RLC_CACHE": "here"}])
def test_the_models_cache_is_the_one_that_models_are_put_into(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "RLC_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert folder_places(os.environ)["model_cache"] == cache_folder()


def test_the_longest_mount_point_names_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTINFO)
    mounts = read_mounts(tmp_path)
    assert file_system_of(Path("/mnt/my disk/runs"), mounts) == "ext4"
    assert file_system_of(Path("/home/nobody-here"), mounts) == "overlay"
    assert file_system_of(Path("/homes"), mounts) == "ext4"
    assert read_mounts(tmp_path / "missing") == {}
