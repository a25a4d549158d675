"""The reference log-probabilities of preference data: computed once, before training, and cached in a file."""

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
from rl_compat.models.files.atomic import file_written_whole
from rl_compat.models.files.sources import file_sha256

Compute = Callable[[ItemBatch], Tensor]

SAVE_EVERY_SECONDS = 30.0


class ReferenceValues:
    """Values by name of a set of items: `[N, K]` for N items of K examples, NaN until computed."""

    def __init__(self, file: Path | None, *, identity: str) -> None:
        """Read `file` if its identity, a digest of what the values depend on, matches; None stores nothing."""
        self._file = file
        self._identity = identity
        self._values: dict[str, Tensor] = {} if file is None else _read(file, identity)
        self._saved = time.monotonic()

    def complete(
        self,
        name: str,
        items: Sequence[Item],
        groups: Sequence[Sequence[int]],
        compute: Compute,
        *,
        on_progress: Callable[[int], None],
    ) -> None:
        """Compute the groups of rows with missing values. After an interrupt the finished groups are kept.

        The last digits of a value depend on the rows that share its batch, so a group is always computed as a whole.
        """
        values, missing, done = self._of(name, items), self.missing(name, items, groups), 0
        try:
            for group in missing:
                rows = list(group)
                values[rows] = compute(item_batch([items[row] for row in rows])).view(len(rows), -1)
                done += len(rows)
                on_progress(done)
                if time.monotonic() - self._saved > SAVE_EVERY_SECONDS:
                    self.save()
        finally:
            if missing:
                self.save()

    def missing(self, name: str, items: Sequence[Item], groups: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The groups of rows with missing values."""
        unknown = self._of(name, items).isnan().any(dim=1).tolist()
        return [group for group in groups if any(unknown[row] for row in group)]

    def attached(self, name: str, batch: ItemBatch, rows: Sequence[int]) -> ItemBatch:
        """The batch of these rows with their reference values."""
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


def weights_digest(folder: Path, *, cache: Path) -> str:
    """A digest of the contents of a model's weight files.

    A file is read once: `cache` keeps its digest for as long as its path, size, time and inode stay the same.
    """
    known = json.loads(cache.read_text()) if cache.exists() else {}
    digests = {}
    for file in sorted(folder.glob("*.safetensors")):
        stat = file.stat()
        key = json.dumps([str(file.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino])
        digests[key] = known.get(key) or file_sha256(file)
    if digests != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with file_written_whole(cache) as aside:
            aside.write_text(json.dumps(digests))
    return hashlib.sha256("".join(digests.values()).encode()).hexdigest()


def identity_of(*parts: object, items: Sequence[Sequence[Item]]) -> str:
    """A digest of the tokens of the items and of `parts`, everything else that the values depend on."""
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
