"""What the model says of rows before it is trained: the reference of preferences, computed once and kept in a file."""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rl_compat.data.encode.items import Item, ItemBatch, item_batch
from rl_compat.trainer.checkpoints import file_written_whole

Compute = Callable[[ItemBatch], Tensor]

CHUNK_ITEMS = 64
SAVE_EVERY_SECONDS = 30.0


class ReferenceValues:
    """By a name of the rows: `[N, K]` for N items of K examples, NaN where not known yet."""

    def __init__(self, file: Path | None, *, identity: str) -> None:
        """Read the file if there is one of the same `identity`: what its numbers depend on. None keeps no file."""
        self._file = file
        self._identity = identity
        self._values: dict[str, Tensor] = {} if file is None else _read(file, identity)
        self._saved = time.monotonic()

    def complete(
        self,
        name: str,
        items: Sequence[Item],
        rows: Sequence[int],
        compute: Compute,
        *,
        on_progress: Callable[[int], None],
    ) -> None:
        """Compute what is missing of these rows. An interrupt keeps what is there."""
        values, missing = self._of(name, items), self.missing(name, items, rows)
        try:
            for first in range(0, len(missing), CHUNK_ITEMS):
                chunk = missing[first : first + CHUNK_ITEMS]
                values[chunk] = compute(item_batch([items[row] for row in chunk])).view(len(chunk), -1)
                on_progress(min(len(missing), first + CHUNK_ITEMS))
                if time.monotonic() - self._saved > SAVE_EVERY_SECONDS:
                    self.save()
        finally:
            if missing:
                self.save()

    def missing(self, name: str, items: Sequence[Item], rows: Sequence[int]) -> list[int]:
        """Those of the rows that are not known yet."""
        unknown = self._of(name, items).isnan().any(dim=1).tolist()
        return [row for row in rows if unknown[row]]

    def attached(self, name: str, batch: ItemBatch, rows: Sequence[int]) -> ItemBatch:
        """A batch made of these rows, with their values."""
        reference = self._values[name][list(rows)].flatten()
        assert not bool(reference.isnan().any()), "a row without its reference"
        return batch.with_(reference=reference)

    def save(self) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with file_written_whole(self._file) as aside:
            save_file(self._values, aside, metadata={"identity": self._identity})
        self._saved = time.monotonic()

    def _of(self, name: str, items: Sequence[Item]) -> Tensor:
        if name not in self._values:
            self._values[name] = torch.full((len(items), len(items[0].examples)), float("nan"))
        return self._values[name]


def identity_of(*parts: object, items: Sequence[Sequence[Item]]) -> str:
    """A digest of the tokens of the items and of what else the numbers depend on."""
    digest = hashlib.sha256(json.dumps([str(part) for part in parts]).encode())
    for group in items:
        for item in group:
            for example in item.examples:
                for numbers in (example.prompt_ids, example.response_ids, example.learned):
                    digest.update(array("q", (len(numbers), *numbers)).tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def _read(file: Path, identity: str) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as tensors:
            if (tensors.metadata() or {}).get("identity") != identity:
                return {}
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}
