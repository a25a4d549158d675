"""Errors that a user can fix: a message, a hint, and the exit code of the command."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class RLCompatError(Exception):
    """A problem that the user can fix. Exit code 1."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(RLCompatError):
    """An invalid request. Exit code 2, raised before anything expensive starts."""

    exit_code = 2


class ConfigError(UsageError):
    """An unknown key, a wrong type or a value out of range."""


class DataError(UsageError):
    """A dataset that is missing, empty or in the wrong format."""


class ModelError(UsageError):
    """A model folder, file or name that cannot be loaded."""


class HardwareError(UsageError):
    """A request for hardware that this machine does not have."""


class DoesNotFitError(UsageError):
    """A plan that needs more memory or disk space than is available."""


class CheckpointError(RLCompatError):
    """A checkpoint that is incomplete, damaged or could not be written."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint that is missing or does not hold what was written to it."""


class WorkerError(RLCompatError):
    """A worker process that ended, or that stands still."""


class RewardError(RLCompatError):
    """A reward function that failed or returned something unusable."""


class NotFiniteError(RLCompatError):
    """A model whose numbers are NaN or infinite."""

    number: int | None = None
    "of the request among those of the call"


def not_finite_hint(dtype: str, *, setting: str) -> str:
    """What to do about outputs of a model that are NaN or infinite; `setting` is that of the dtype of its products."""
    if dtype == "fp16":
        return f"activations of this model may exceed 65,504, the range of fp16: use `{setting}=fp32`"
    return "its weights hold NaN or infinity, or lead to them: use an earlier checkpoint or another model"


def check_type(name: str, value: object, *kinds: type, hint: str | None = None) -> None:
    """Raise ConfigError if the argument `name` of a public call is of none of the kinds."""
    if not isinstance(value, kinds):
        wanted = " or ".join(f"`{kind.__name__}`" for kind in kinds)
        given = f"`{value!r}`" if isinstance(value, str | int | float) else f"`{type(value).__name__}`"
        raise ConfigError(f"`{name}` takes {wanted}, not {given}", hint=hint)


SYNONYMS = {
    "gpu": "cuda",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
}
"what other programs call the same"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name` in any case, or that means the same; None if none is similar."""
    by_text = {text.lower(): text for text in known}
    meant = SYNONYMS.get(name.lower(), name.lower())
    matches = get_close_matches(meant if meant in by_text else name.lower(), list(by_text), n=1, cutoff=0.6)
    return by_text[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint that names the known name closest to `name`, or `otherwise` if none is similar."""
    close = nearest(name, known)
    return f"did you mean `{close}`" if close else otherwise


def quoted(names: Iterable[object]) -> str:
    """Names in backticks, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


WRITE_FAILURES: Mapping[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", "free some space (`df -h`, and `df -i` for the number of files)"),
    errno.EDQUOT: ("the disk quota is used up", "remove files of yours there (`quota -s`) or ask for a larger quota"),
    errno.EFBIG: ("the file is larger than allowed", "raise `ulimit -f`, or use a file system for large files"),
    errno.EIO: ("the disk or its connection fails (input/output error)", "look at `dmesg`, and use another disk"),
    errno.EROFS: (
        "the file system is read-only",
        "use another folder; `dmesg` says if an error made it so",
    ),
    errno.EACCES: ("permission is denied", "use a folder that you may write to (`ls -ld`)"),
    errno.EPERM: ("permission is denied", "use a folder that you may write to (`ls -ld`, `lsattr -d`)"),
    errno.ENAMETOOLONG: ("a name is too long", "use shorter names of folders"),
    errno.ENFILE: ("this machine has too many files open", "close other programs, or raise `fs.file-max`"),
    errno.EMFILE: ("this process has too many files open", "raise `ulimit -n`"),
    errno.ESTALE: ("the network file system lost the file (stale file handle)", "mount it again, or use a local disk"),
    errno.ENOENT: ("the folder does not exist any more", "leave the folders of a run in place while it trains"),
    errno.ETIMEDOUT: ("the network file system does not answer", "check its server, or use a local disk"),
}
"error number of a failed write, to its cause and what to do"


def write_failure(error: BaseException) -> tuple[str, str | None]:
    """Why a file could not be written, and what to do. Libraries may give the error number only in their text."""
    number = error_number(error)
    if number is not None and number in WRITE_FAILURES:
        return WRITE_FAILURES[number]
    text = os.strerror(number) if number is not None else str(error).strip()
    return (text.splitlines()[0].lower() if text else type(error).__name__), None


def error_number(error: BaseException) -> int | None:
    """The `errno` of an error, or the number or description of one in its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    found = re.search(r"(?:os error |\[Errno )(\d+)", text)
    if found:
        return int(found.group(1))
    return next((number for number in WRITE_FAILURES if os.strerror(number).lower() in text.lower()), None)
