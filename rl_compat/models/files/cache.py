"""The cache of downloaded and converted models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_compat.errors import ModelError, write_failure
from rl_compat.models.files.atomic import fill_folder


def cache_folder() -> Path:
    """`RLC_CACHE`, or `rl_compat` in the user's cache folder."""
    named = os.environ.get("RLC_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "rl_compat"


def models_folder() -> Path:
    return cache_folder() / "models"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The cached folder `name`, which `build` fills if it does not exist yet.

    Concurrent processes wait for each other. The remains of an interrupted build are removed by the next one.
    Raises ModelError if the cache cannot be written.
    """
    from safetensors import SafetensorError

    target = models_folder() / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{name}.lock")):
            if not target.is_dir():
                fill_folder(target, build)
    except (OSError, SafetensorError) as error:
        raise _cannot_write(target.parent, error) from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cannot_write(folder: Path, error: Exception) -> ModelError:
    hint = "set `RLC_CACHE` to another folder for downloaded and converted models"
    return ModelError(f"cannot write a model to `{folder}`: {write_failure(error)[0]}", hint=hint)
