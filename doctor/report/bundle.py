"""The data for a bug report in one zip file: machine, findings, versions, plan and end of the last run.

It never contains weights, data or samples, and the redactor processes every text.
"""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rl_compat.doctor.report.redact import Owner, Redactor, find_owner
from rl_compat.errors import UsageError
from rl_compat.hardware.recording import to_json
from rl_compat.hardware.types import Hardware
from rl_compat.units import format_bytes

TAIL_LINES = 200
TAIL_BYTES = 256 * 1024
WHOLE_FILES = ("plan.json", "run.toml", "hardware.json")
LARGEST_WHOLE_BYTES = 4 * 1024 * 1024
"of a larger file, the bundle has the end"
LOGS = ("*.log", "*.out", "*.err", "logs/*.log")
RUNS = Path("runs")


def write_bundle(
    path: Path,
    *,
    hardware: Hardware,
    reports: Mapping[str, Any],
    run_folder: Path | None = None,
    owner: Owner | None = None,
    versions: Mapping[str, str] | None = None,
    today: datetime | None = None,
) -> tuple[str, ...]:
    """Write the bundle and return the names in it. `reports` are texts and JSON by file name.

    `run_folder` defaults to the newest under `runs`. Raises UsageError, and leaves no file, if the file exists or
    cannot be written, or if the folder contains no run.
    """
    refuse_request(path, run_folder)
    installed = installed_versions() if versions is None else versions
    keep = {*installed.values(), *hardware.software.packages.values()}
    redactor = Redactor(owner or find_owner(), keep=keep)
    run = newest_run() if run_folder is None else run_folder
    files = {
        "hardware.json": _json(redactor.value(to_json(hardware))),
        **{
            name: redactor.text(report) if isinstance(report, str) else _json(redactor.value(report))
            for name, report in reports.items()
        },
        "versions.txt": redactor.text("".join(f"{name} {version}\n" for name, version in sorted(installed.items()))),
        **(dict(_run_files(run, redactor)) if run else {}),
    }
    _write_zip(path, files, today or datetime.now())
    return tuple(files)


def refuse_request(path: Path, run_folder: Path | None = None) -> None:
    """Raise UsageError if the file exists, its folder does not, or the run folder contains no run."""
    if run_folder is not None and not (run_folder / "plan.json").is_file():
        raise UsageError(f"`{run_folder}` contains no `plan.json`", hint="name the folder of a run")
    if os.path.lexists(path):
        raise _exists(path)
    if not path.parent.is_dir():
        raise _cannot_write(path, f"the folder `{path.parent}` does not exist")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _cannot_write(path, os.strerror(errno.EACCES))


def describe_bundle(path: Path) -> list[str]:
    """One line per file: name and size."""
    with zipfile.ZipFile(path) as bundle:
        return [f"{entry.filename}  {format_bytes(entry.file_size)}" for entry in bundle.infolist()]


def newest_run(folder: Path = RUNS) -> Path | None:
    """The run folder below that one with the newest plan; None if there is none."""
    plans = []
    for plan in (*folder.glob("*/plan.json"), *folder.glob("*/*/plan.json")):
        with suppress(OSError):
            plans.append((plan.stat().st_mtime, plan.parent))
    return max(plans)[1] if plans else None


def installed_versions() -> dict[str, str]:
    """Version of every installed package by name, except those with broken metadata."""
    found: dict[str, str] = {}
    for distribution in distributions():
        with suppress(Exception):
            name, version = distribution.metadata["Name"], distribution.version
            if name and version:
                found.setdefault(name, version)
    return found


def read_tail(path: Path, *, lines: int = TAIL_LINES, size: int = TAIL_BYTES) -> str:
    """The last whole lines of a text file, at most `size` bytes. Raises OSError."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        content = file.read(size)
    if end > size:
        content = content.partition(b"\n")[2]
    return "".join(content.decode(errors="replace").splitlines(keepends=True)[-lines:])


def _run_files(run: Path, redactor: Redactor) -> Iterator[tuple[str, str]]:
    """Name in the bundle and redacted text of the files of a run."""
    logs = sorted(path for pattern in LOGS for path in run.glob(pattern))
    tails = [run / "metrics.jsonl", *logs]
    for path in (*(run / name for name in WHOLE_FILES), *tails):
        if path.is_symlink() or not path.is_file():
            continue
        name = f"run/{redactor.text(path.relative_to(run).as_posix())}"
        try:
            whole = path.name in WHOLE_FILES and path.stat().st_size <= LARGEST_WHOLE_BYTES
            text = path.read_text(encoding="utf-8", errors="replace") if whole else read_tail(path)
        except OSError as error:
            yield name, f"could not be read: {error.strerror}\n"
            continue
        yield name, _clean(path, text, redactor)


def _clean(path: Path, text: str, redactor: Redactor) -> str:
    """JSON is redacted value by value, so that escapes cannot hide anything; other text as a whole."""
    if path.suffix == ".json":
        with suppress(ValueError):
            return _json(redactor.value(json.loads(text)))
    if path.suffix == ".jsonl":
        return "".join(f"{_clean_line(line, redactor)}\n" for line in text.splitlines())
    return redactor.text(text)


def _clean_line(line: str, redactor: Redactor) -> str:
    try:
        return json.dumps(redactor.value(json.loads(line)))
    except ValueError:
        return redactor.text(line)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _write_zip(path: Path, files: Mapping[str, str], today: datetime) -> None:
    """Write the whole file or nothing, and never overwrite one."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, date_time=today.timetuple()[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, text.encode("utf-8", errors="replace"))
    try:
        file = path.open("xb")
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise _cannot_write(path, error.strerror) from None
    try:
        with file:
            file.write(content.getbuffer())
    except OSError as error:
        path.unlink()
        raise _cannot_write(path, error.strerror) from None


def _exists(path: Path) -> UsageError:
    return UsageError(f"`{path}` already exists", hint="name a file that does not exist yet")


def _cannot_write(path: Path, reason: str | None) -> UsageError:
    return UsageError(
        f"`{path}` cannot be written: {reason}", hint="name a file in an existing folder that you can write to"
    )
