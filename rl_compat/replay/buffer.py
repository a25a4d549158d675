"""The buffer of groups that may be trained on again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from rl_compat.config.types import SamplesConfig
from rl_compat.errors import DamagedCheckpointError
from rl_compat.replay.levels import ENTRY, RULES, Bounds, Entries, Level, draw_priorities
from rl_compat.replay.priorities import Floats, draw, importance_weights, inclusion_probabilities
from rl_compat.replay.rows import group_starts, oldest_versions, response_bytes

STATE_FILE = "replay.parquet"
SAVED = ("uses", "oldest", "priority", "level")
"fields of an entry that do not follow from its rows"
OF_ENTRY = "entry/"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGroups:
    """Groups that are trained on again."""

    table: pyarrow.Table
    "their rows"
    groups: NDArray[np.int64]
    weights: Floats
    "importance weight of each group"
    staleness: NDArray[np.int64]
    "policy versions between the oldest token of each group and the policy that learns"

    def row_weights(self) -> Floats:
        """The weight of each row."""
        counts = np.diff(np.append(group_starts(self.table), len(self.table)))
        return np.repeat(self.weights, counts)


class ReplayBuffer:
    """Groups in memory, at most `settings.replay.capacity`; they enter and leave whole.

    Rows stay in the tables in which they came, and an index has a few numbers for each group.
    """

    def __init__(self, settings: SamplesConfig, *, hot: int) -> None:
        """`hot` newest groups are kept whatever their priority."""
        self.settings = settings
        self.entries: Entries = np.empty(0, ENTRY)
        self._hot = min(hot, settings.replay.capacity)
        self._tables: dict[int, pyarrow.Table] = {}
        self._next_part = 0

    def __len__(self) -> int:
        return len(self.entries)

    def draw(self, count: int, *, version: int, seed: int) -> DrawnGroups | None:
        """Up to `count` groups for the policy of a version; None if there are none. The buffer does not change."""
        bounds = self._bounds(version)
        stale = version - self.entries["oldest"] > self.settings.replay.max_staleness
        priority = np.where(stale, 0.0, draw_priorities(self.entries, bounds) ** self.settings.replay.alpha)
        probabilities = inclusion_probabilities(priority, count)
        places = draw(probabilities, np.random.default_rng(seed))
        if not len(places):
            return None
        chosen = self.entries[places]
        return DrawnGroups(
            table=self._rows(chosen),
            groups=chosen["group"],
            weights=importance_weights(probabilities[places], beta=self.settings.replay.beta),
            staleness=version - chosen["oldest"],
        )

    def count_use(self, priorities: Mapping[int, float]) -> None:
        """Groups were trained on once more, and have these priorities."""
        places = np.flatnonzero(np.isin(self.entries["group"], list(priorities)))
        assert len(places) == len(priorities), "groups are drawn from the buffer"
        self.entries["uses"][places] += 1
        self.entries["priority"][places] = [priorities[group] for group in self.entries["group"][places].tolist()]

    def add(self, table: pyarrow.Table, priorities: Mapping[int, float], *, version: int) -> dict[str, int]:
        """Add new groups, which were trained on once, and apply the rules for the policy of a version.

        Returns the number of groups that left, by the name of the rule. A group with the prompt and the responses of
        an older one takes its place, and has been trained on as often as both together.
        """
        new = self._new_entries(table, version=version)
        new["uses"] = 1
        new["priority"] = [priorities[group] for group in new["group"].tolist()]
        self.entries = _with_copies_marked(self.entries, new)
        self._tables[self._next_part] = table
        self._next_part += 1
        left = self._apply_rules(self._bounds(version))
        self._free_rows()
        return left

    def save(self, folder: Path) -> None:
        """Write the groups into a checkpoint."""
        if not len(self.entries):
            return
        rows = self._rows(self.entries)
        for name in SAVED:
            values = np.repeat(self.entries[name], self.entries["count"])
            rows = rows.append_column(f"{OF_ENTRY}{name}", pyarrow.array(values))
        pyarrow.parquet.write_table(rows, folder / STATE_FILE, compression="zstd")

    def load(self, folder: Path) -> None:
        """Continue with the groups of a checkpoint. Raises DamagedCheckpointError for a file that cannot be read."""
        self.entries, self._tables = np.empty(0, ENTRY), {}
        file = folder / STATE_FILE
        if not file.exists():
            return
        try:
            saved = pyarrow.parquet.read_table(file).combine_chunks()
        except (pyarrow.ArrowException, OSError) as error:
            raise DamagedCheckpointError(f"`{file}` cannot be read: {error}") from error
        table = saved.drop_columns([f"{OF_ENTRY}{name}" for name in SAVED])
        self.entries = self._new_entries(table, version=0)
        for name in SAVED:
            self.entries[name] = saved[f"{OF_ENTRY}{name}"].to_numpy()[self.entries["start"]]
        self._tables[self._next_part] = table
        self._next_part += 1

    def _bounds(self, version: int) -> Bounds:
        return Bounds(settings=self.settings, hot=self._hot, version=version)

    def _new_entries(self, table: pyarrow.Table, *, version: int) -> Entries:
        """The groups of a table as hot entries of the next part."""
        starts = group_starts(table)
        entries = np.zeros(len(starts), ENTRY)
        entries["start"], entries["count"] = starts, np.diff(np.append(starts, len(table)))
        entries["part"], entries["level"] = self._next_part, Level.HOT
        entries["group"] = table["group"].to_numpy()[starts]
        entries["oldest"] = oldest_versions(table, starts, otherwise=version)
        rows, responses = table["row"].to_numpy()[starts].tolist(), response_bytes(table)
        entries["key"] = [
            _content_key(row, sorted(next(responses) for _ in range(count)))
            for row, count in zip(rows, entries["count"].tolist(), strict=True)
        ]
        return entries

    def _rows(self, entries: Entries) -> pyarrow.Table:
        """The rows of entries in the order of the buffer, in which those of a part are together."""
        parts, first = np.unique(entries["part"], return_index=True)
        tables = []
        for part, of_part in zip(parts.tolist(), np.split(entries, first[1:]), strict=True):
            ends = np.cumsum(of_part["count"])
            rows = np.arange(ends[-1]) + np.repeat(of_part["start"] - ends + of_part["count"], of_part["count"])
            tables.append(self._tables[part].take(rows))
        return pyarrow.concat_tables(tables, promote_options="default").combine_chunks()

    def _apply_rules(self, bounds: Bounds) -> dict[str, int]:
        left = {}
        for rule in RULES:
            found = rule.matches(self.entries, bounds)
            if rule.to is not None:
                self.entries["level"][found] = rule.to
            else:
                left[rule.name] = int(found.sum())
                self.entries = self.entries[~found] if left[rule.name] else self.entries
        return left

    def _free_rows(self) -> None:
        """Drop tables without groups, and copy the rows in use once they are less than half of all."""
        used = set(np.unique(self.entries["part"]).tolist())
        self._tables = {part: table for part, table in self._tables.items() if part in used}
        if 2 * int(self.entries["count"].sum()) < sum(map(len, self._tables.values())):
            self._tables = {self._next_part: self._rows(self.entries)}
            self.entries["part"] = self._next_part
            self.entries["start"] = np.cumsum(self.entries["count"]) - self.entries["count"]
            self._next_part += 1


def _with_copies_marked(entries: Entries, new: Entries) -> Entries:
    """Entries and new ones; all but the last of several copies are marked, and the last has their uses."""
    order = np.argsort(new["key"], kind="stable")
    keys = new["key"][order]
    position = np.searchsorted(keys, entries["key"], side="right") - 1
    old = np.flatnonzero((position >= 0) & (keys[position] == entries["key"]))
    both = np.concatenate([entries, new])
    groups_of_copies: dict[int, list[int]] = {}
    for place in [*old.tolist(), *(len(entries) + np.arange(len(new))).tolist()]:
        groups_of_copies.setdefault(int(both["key"][place]), []).append(place)
    for places in groups_of_copies.values():
        if len(places) > 1:
            both["uses"][places[-1]] = both["uses"][places].sum()
            both["copied"][places[:-1]] = True
    return both


def _content_key(row: int, responses: list[bytes]) -> int:
    digest = hashlib.blake2b(str(row).encode(), digest_size=8)
    for response in responses:
        digest.update(len(response).to_bytes(4, "big") + response)
    return int.from_bytes(digest.digest(), "big")
