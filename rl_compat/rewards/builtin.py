"""The built-in rewards by name and by data source, and what rows must hold for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rl_compat.errors import DataError
from rl_compat.rewards.arithmetic import arithmetic
from rl_compat.rewards.gsm8k import gsm8k, gsm8k_format, gsm8k_strict
from rl_compat.rewards.numbers import parse_number
from rl_compat.rewards.types import Outcome

BuiltinReward = Callable[[str, Any], Outcome]

AUTO = "auto"
BUILTINS: Mapping[str, BuiltinReward] = {
    "gsm8k": gsm8k,
    "gsm8k_strict": gsm8k_strict,
    "gsm8k_format": gsm8k_format,
    "arithmetic": arithmetic,
}
BUILTIN_BY_SOURCE: Mapping[str, str] = {"openai/gsm8k": "gsm8k", "rlc/arithmetic": "arithmetic"}

NEEDS_NUMBER = ("gsm8k",)
"rewards that compare with the ground truth as a number"
NEEDS_TRUTH = ("gsm8k", "gsm8k_strict", "arithmetic")

NUM_NAMED_ROWS = 8


class HasTruth(Protocol):
    """A row or a prompt."""

    @property
    def data_source(self) -> str: ...
    @property
    def ground_truth(self) -> Any: ...
    @property
    def row(self) -> int: ...


def check_rows(rows: Sequence[HasTruth], functions: Sequence[str]) -> None:
    """Raise DataError when the named functions cannot score these rows: unknown source, or no usable ground truth."""
    if AUTO in functions:
        unknown = {row.row: row.data_source for row in rows if row.data_source not in BUILTIN_BY_SOURCE}
        if unknown:
            raise unknown_source(unknown.values(), rows=list(unknown))
    for row in rows:
        for name in functions:
            _check_truth(row, BUILTIN_BY_SOURCE[row.data_source] if name == AUTO else name)


def check_sources(data_sources: Iterable[str], functions: Sequence[str]) -> None:
    """Raise DataError when `auto` does not know a data source."""
    unknown = [source for source in data_sources if source not in BUILTIN_BY_SOURCE]
    if AUTO in functions and unknown:
        raise unknown_source(unknown)


def unknown_source(sources: Iterable[str], *, rows: Sequence[int] = ()) -> DataError:
    """The error for data sources that no built-in reward belongs to."""
    names = ", ".join(f"`{source}`" for source in list(dict.fromkeys(sources))[:NUM_NAMED_ROWS])
    known = ", ".join(f"`{source}`" for source in BUILTIN_BY_SOURCE)
    shown = ", ".join(map(str, rows[:NUM_NAMED_ROWS])) + (" …" if len(rows) > NUM_NAMED_ROWS else "")
    where = f" ({len(rows)} rows, counted from 0: {shown})" if rows else ""
    return DataError(
        f"no reward belongs to the data source {names}{where}: known are {known}",
        hint="set `data_source` in these rows, or name the reward: `reward.functions=gsm8k`, "
        "or a function of your own as `reward.functions=my_rewards.py:my_function`",
    )


def _check_truth(row: HasTruth, name: str) -> None:
    if name in NEEDS_TRUTH and (row.ground_truth is None or str(row.ground_truth) == ""):
        raise DataError(
            f"row {row.row} has no ground truth, which the reward `{name}` needs",
            hint="put it in `reward_model.ground_truth`, or in a column `ground_truth` or `answer`",
        )
    if name in NEEDS_NUMBER and parse_number(str(row.ground_truth)) is None:
        raise DataError(
            f"row {row.row} has the ground truth `{str(row.ground_truth)[:40]}`, and the reward `{name}` needs a number"
        )
