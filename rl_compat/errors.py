"""Errors that a user can fix: a message, a hint, and the exit code of the command."""

from __future__ import annotations

from collections.abc import Iterable
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


class RewardError(RLCompatError):
    """A reward function that failed or returned something unusable."""


class NotFiniteError(RLCompatError):
    """A model whose numbers are NaN or infinite."""

    number: int | None = None
    "of the prompt among those of the call"


def check_type(name: str, value: object, *kinds: type, hint: str | None = None) -> None:
    """Raise ConfigError if the argument `name` of a public call is of none of the kinds."""
    if not isinstance(value, kinds):
        wanted = " or ".join(f"`{kind.__name__}`" for kind in kinds)
        given = f"`{value!r}`" if isinstance(value, str | int | float) else f"`{type(value).__name__}`"
        raise ConfigError(f"`{name}` takes {wanted}, not {given}", hint=hint)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None if none is similar."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint that names the known name closest to `name`, or `otherwise` if none is similar."""
    close = nearest(name, known)
    return f"did you mean `{close}`" if close else otherwise


def quoted(names: Iterable[object]) -> str:
    """Names in backticks, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)
