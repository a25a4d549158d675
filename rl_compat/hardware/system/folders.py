"""The folders that training writes to: free space, file system, and whether a file can be written."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from rl_compat.hardware.system.timeouts import Background
from rl_compat.hardware.types import Folder

TEST_BYTES = 4096
"one block, which a full disk cannot store"
TIMEOUT_SECONDS = 3.0
"for all folders together; a lost network file system never answers"
TEMPORARY_PLACES = ("/tmp", "/var/tmp", "/usr/tmp")


def read_folders(
    environment: Mapping[str, str],
    *,
    root: Path = Path("/"),
    run: Path | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> tuple[Folder, ...]:
    """The folder of each role. `root` contains `/proc`; `run` is the run's folder, by default the working directory."""
    mounts = read_mounts(root)
    places = folder_places(environment, run=run)
    asked = {role: Background(partial(read_folder, role, path, mounts)) for role, path in places.items()}
    deadline = time.monotonic() + timeout_seconds
    found = []
    for role, answer in asked.items():
        try:
            found.append(answer.result(max(0.0, deadline - time.monotonic())))
        except TimeoutError:
            error = f"no answer within {timeout_seconds:g} s"
            found.append(Folder(role=role, path=str(places[role]), writable=False, error=error))
    return tuple(found)


def folder_places(environment: Mapping[str, str], *, run: Path | None = None) -> dict[str, Path]:
    """The folder of each role, from the variables that its libraries read."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111
    caches = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    hub_home = Path(environment.get("HF_HOME") or caches / "huggingface")
    places = {
        "run": run or Path(),
        "temporary": _temporary_folder(environment),
        "hub_cache": Path(hub) if hub else hub_home / "hub",
        "model_cache": Path(environment.get("RLC_CACHE") or caches / "rl_compat"),
        "packages": Path(sysconfig.get_path("purelib")),
    }
    return {role: _absolute(path, home) for role, path in places.items()}


def _temporary_folder(environment: Mapping[str, str]) -> Path:
    """The temporary folder that Python uses: the first writable one, or else the first that exists."""
    named = [environment[name] for name in ("TMPDIR", "TEMP", "TMP") if environment.get(name)]
    existing = [place for place in (*named, *TEMPORARY_PLACES) if Path(place).is_dir()]
    usable = [place for place in existing if os.access(place, os.W_OK | os.X_OK)]
    return Path((usable or existing or [*named, *TEMPORARY_PLACES])[0])


def _absolute(path: Path, home: Path) -> Path:
    """`path` with `~` expanded; a relative path stays relative if the working directory no longer exists."""
    text = str(path)
    if text == "~" or text.startswith("~/"):
        path = home / text[2:]
    try:
        return path.absolute()
    except OSError:
        return path


def read_folder(role: str, path: Path, mounts: Mapping[str, str]) -> Folder:
    """A folder or its nearest existing parent, tested by writing a few bytes to a file that is removed at once."""
    if not path.is_absolute():
        return Folder(role=role, path=str(path), writable=False, error="the working directory does not exist any more")
    place = next((place for place in (path, *path.parents) if os.path.lexists(place)), Path("/"))
    dangling = not os.path.exists(place)  # noqa: PTH110
    error = f"a link to `{os.path.realpath(place)}`, which does not exist" if dangling else write_error(place)
    size = disk_bytes(place)
    return Folder(
        role=role,
        path=str(place),
        writable=error is None,
        free_bytes=size[1] if size else None,
        file_system=file_system_of(place, mounts),
        error=error,
    )


def write_error(folder: Path) -> str | None:
    """Why a file cannot be written in a folder; None if it can."""
    try:
        handle, name = tempfile.mkstemp(prefix=".rl_compat-", dir=folder)
    except OSError as error:
        return _reason(error)
    try:
        with suppress(OSError):
            Path(name).unlink()
        with open(handle, "wb", buffering=0) as file:  # noqa: PTH123
            file.write(bytes(TEST_BYTES))
    except OSError as error:
        return _reason(error)
    finally:
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)
    return None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def disk_bytes(place: Path) -> tuple[int, int] | None:
    """Total and free bytes of the file system that holds `place`; None if it cannot be read."""
    try:
        usage = shutil.disk_usage(place)
    except OSError:
        return None
    return usage.total, usage.free


def read_mounts(root: Path = Path("/")) -> dict[str, str]:
    """File system type by mount point; the topmost one if several are mounted there."""
    try:
        text = (root / "proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return {}
    mounts = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) > 4 and kind:
            mounts[re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[4])] = kind
    return mounts


def file_system_of(path: Path, mounts: Mapping[str, str]) -> str | None:
    """The type of the file system that holds a path: that of its longest mount point."""
    real = Path(os.path.realpath(path))
    return next((mounts[str(place)] for place in (real, *real.parents) if str(place) in mounts), None)
