"""A fingerprint of the training rows, which tells on resume which of them changed."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable
from typing import Any
from zlib import crc32

MAX_SUMS = 65_536
"sums in a checkpoint; of more rows each sum covers several that are next to each other"
CONTENT = ("prompt", "tools", "data_source", "ground_truth", "response", "chosen", "rejected", "margin", "label")
"the fields of a row that a change is looked for in"


class Fingerprint:
    """A checksum of each row, and the number of the row in the data."""

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        self._sums = array("L")
        self._numbers = array("q")
        for row in rows:
            self.add(row)

    def add(self, row: Any) -> None:
        content = [getattr(row, name) for name in CONTENT if hasattr(row, name)]
        self._sums.append(crc32(repr(content).encode("utf-8", "surrogatepass")))
        self._numbers.append(row.row)

    def state(self) -> str:
        """The checksums as text, in at most 350 kB."""
        sums = b"".join(total.to_bytes(4, "little") for total in self._totals())
        return base64.b64encode(sums).decode()

    def changed(self, state: str) -> list[int]:
        """The numbers of the rows, or of the first of the rows that share a sum, that a saved state has otherwise.

        The state has the same number of rows.
        """
        raw = base64.b64decode(state)
        before = [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]
        pairs = enumerate(zip(before, self._totals(), strict=True))
        return [self._numbers[index * self._rows_per_sum] for index, (old, new) in pairs if old != new]

    @property
    def _rows_per_sum(self) -> int:
        return max(1, -(-len(self._sums) // MAX_SUMS))

    def _totals(self) -> list[int]:
        step = self._rows_per_sum
        if step == 1:
            return list(self._sums)
        return [crc32(self._sums[start : start + step].tobytes()) for start in range(0, len(self._sums), step)]
