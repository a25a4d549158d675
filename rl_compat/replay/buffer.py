"""The buffer of groups that may be trained on again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from rl_compat.batch import Batch, Sequences
from rl_compat.config.types import SamplesConfig
from rl_compat.errors import ConfigError, DamagedCheckpointError, check_type
from rl_compat.replay.levels import ENTRY, RULES, Entries, Level, ReplayBounds, ReplayRule, draw_priorities
from rl_compat.replay.priorities import Floats, draw, importance_weights, inclusion_probabilities, priorities
from rl_compat.replay.rows import Outcomes, group_starts, oldest_versions, response_bytes, to_sequences, to_table
from rl_compat.rewards.types import Scores

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

    def responses(self) -> tuple[Sequences, Outcomes]:
        """The responses, with the importance weights of their groups as `batch.weights`, and what scored them."""
        sequences, outcomes = to_sequences(self.table)
        batch = sequences.batch
        counts = np.diff(np.append(group_starts(self.table), len(self.table)))
        of_rows = torch.as_tensor(np.repeat(self.weights, counts), dtype=torch.float32)
        weighted = batch.with_(weights=of_rows[:, None] * batch.response_mask)
        return replace(sequences, batch=weighted), outcomes


class ReplayBuffer:
    """Groups of responses in memory, at most `settings.replay.capacity`; they enter and leave whole.

    A step draws groups, learns from them and from new ones, counts their use, and adds the new ones. Then the
    `ReplayRule`s of the attribute `rules`, a tuple, are applied in their order; a program may change it.
    """

    def __init__(self, settings: SamplesConfig, *, hot: int) -> None:
        """`hot` newest groups are kept whatever their priority."""
        check_type("settings", settings, SamplesConfig)
        self.settings = settings
        self.rules: tuple[ReplayRule, ...] = RULES
        self.entries: Entries = np.empty(0, ENTRY)
        "an index with a few numbers for each group; its rows stay in the tables in which they came"
        self._hot = min(hot, settings.replay.capacity)
        self._tables: dict[int, pyarrow.Table] = {}
        self._next_part = 0

    def __len__(self) -> int:
        return len(self.entries)

    def draw(self, count: int, *, version: int, seed: int) -> DrawnGroups | None:
        """Up to `count` groups for the policy of a version; None if there are none. The buffer does not change.

        Raises ConfigError for a negative `count`.
        """
        if count < 0:
            raise ConfigError(f"`count` is {count}, expected at least 0")
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

    def priorities(self, batch: Batch) -> dict[int, float]:
        """The priority of each group of a batch that was trained on, as `settings.replay.priority` says.

        Raises ConfigError for a batch that lacks what it is computed from.
        """
        return priorities(batch, self.settings.replay.priority)

    def count_use(self, priorities: Mapping[int, float]) -> None:
        """Groups were trained on once more, and have these priorities. Raises ConfigError for others than it holds."""
        places = np.flatnonzero(np.isin(self.entries["group"], list(priorities)))
        if len(places) != len(priorities):
            absent = sorted({*priorities} - {*self.entries["group"].tolist()})
            raise ConfigError(f"the buffer has no group {absent[0]}", hint="give the priorities of drawn groups")
        self.entries["uses"][places] += 1
        self.entries["priority"][places] = [priorities[group] for group in self.entries["group"][places].tolist()]

    def add(
        self, sequences: Sequences, scores: Scores, priorities: Mapping[int, float], *, version: int
    ) -> dict[str, int]:
        """Add new groups, which the policy of a version has trained on once, and apply the rules.

        Returns the number of groups that left, by the name of the rule. A group with the prompt and the responses of
        an older one takes its place, and has been trained on as often as both together. Raises ConfigError for a group
        without a priority.
        """
        table = to_table(sequences, Outcomes(scores=scores), step=version + 1)
        return self.add_rows(table, priorities, version=version)

    def add_rows(self, table: pyarrow.Table, priorities: Mapping[int, float], *, version: int) -> dict[str, int]:
        """The same as `add` for rows of the record: the responses of whole groups, next to each other."""
        new = self._new_entries(table, version=version)
        new["uses"] = 1
        try:
            new["priority"] = [priorities[group] for group in new["group"].tolist()]
        except KeyError as error:
            raise ConfigError(
                f"group {error} has no priority", hint="give one to each group of the responses"
            ) from None
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

    def _bounds(self, version: int) -> ReplayBounds:
        return ReplayBounds(settings=self.settings, hot=self._hot, version=version)

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

    def _apply_rules(self, bounds: ReplayBounds) -> dict[str, int]:
        left = {}
        for rule in self.rules:
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
