"""Where one pool leaves bytes for another: this process, or a folder that both see."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rl_compat.errors import ModelError


class WeightStore(Protocol):
    """Bytes by keys that the store makes. Keys can be pickled."""

    def put(self, data: Tensor) -> object:
        """Keep bytes, uint8 `[n]` on the CPU; returns their key."""
        ...

    def get(self, key: object) -> Tensor:
        """The bytes of a key, which the caller does not change. Raises ModelError if the store has lost them."""
        ...

    def drop(self, keys: Sequence[object]) -> None:
        """Forget bytes, if they are still kept."""
        ...


class MemoryStore:
    """Bytes in the memory of this process."""

    def __init__(self) -> None:
        self._kept: dict[object, Tensor] = {}
        self._next_key = 0

    def put(self, data: Tensor) -> object:
        key, self._next_key = self._next_key, self._next_key + 1
        self._kept[key] = data
        return key

    def get(self, key: object) -> Tensor:
        if key not in self._kept:
            raise ModelError(f"the store has no weights under `{key}`")
        return self._kept[key]

    def drop(self, keys: Sequence[object]) -> None:
        for key in keys:
            self._kept.pop(key, None)


class FileStore:
    """Bytes in files of one folder, such as a shared disk. A file appears under its name when it is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, data: Tensor) -> object:
        key = f"{uuid.uuid4().hex}.bin"
        unfinished = self._folder / f".{key}"
        data.numpy().tofile(unfinished)
        unfinished.rename(self._folder / key)
        return key

    def get(self, key: object) -> Tensor:
        file = self._folder / str(key)
        try:
            data = bytearray(file.read_bytes())
        except OSError as error:
            raise ModelError(f"the weights in `{file}` cannot be read: {error}") from error
        return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    def drop(self, keys: Sequence[object]) -> None:
        for key in keys:
            (self._folder / str(key)).unlink(missing_ok=True)
