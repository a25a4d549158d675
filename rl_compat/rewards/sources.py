"""The reward of each `data_source`, which `auto` uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from rl_compat.errors import DataError, nearest, quoted

BUILTIN_BY_SOURCE: Mapping[str, str] = {
    "openai/gsm8k": "gsm8k",
    "rlc/arithmetic": "arithmetic",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "hiyouga/geometry3k": "math",
    "numina_*": "math",
    "math": "math_dapo",
    "math_dapo": "math_dapo",
    "math_dapo_reasoning": "math_dapo",
    "aime*": "math_dapo",
    "searchR1_*": "qa_exact_match",
}
"data source, or a pattern with `*`, to the name of a built-in reward"

CODE_SOURCES = ("codecontests", "apps", "codeforces", "taco")
"data sources whose answers are programs, which are not executed here"

NUM_NAMED_ROWS = 8


def builtin_of(source: str, sources: Mapping[str, str] | None = None) -> str | None:
    """The reward that `auto` uses for a data source: the entry of `reward.sources`, else the built-in one, else None.

    An exact name takes precedence over a pattern.
    """
    for table in (sources or {}, BUILTIN_BY_SOURCE):
        if source in table:
            return table[source]
        for pattern, name in table.items():
            if "*" in pattern and fnmatchcase(source, pattern):
                return name
    return None


def unknown_source(
    sources_found: Iterable[str], *, rows: Sequence[int] = (), sources: Mapping[str, str] | None = None
) -> DataError:
    """The error for data sources without a reward."""
    distinct = list(dict.fromkeys(sources_found))
    names = quoted(distinct[:NUM_NAMED_ROWS])
    known = [*(sources or {}), *BUILTIN_BY_SOURCE]
    shown = ", ".join(map(str, rows[:NUM_NAMED_ROWS])) + (" …" if len(rows) > NUM_NAMED_ROWS else "")
    where = f" ({len(rows)} rows, counted from 0: {shown})" if rows else ""
    return DataError(
        f"no reward belongs to the data source {names}{where}; known are {quoted(known)}", hint=_remedy(distinct, known)
    )


def _remedy(unknown: Sequence[str], known: Sequence[str]) -> str:
    own = "a custom function `reward.functions=my_rewards.py:my_function`"
    programs = [source for source in unknown if source in CODE_SOURCES]
    if programs:
        return f"the answers of `{programs[0]}` are programs, which are not executed here: use {own}"
    close = [(source, near) for source in unknown if (near := nearest(source, known)) is not None]
    meant = f"for `{close[0][0]}` did you mean `{close[0][1]}`; otherwise " if close else ""
    return (
        f"{meant}set the reward with `reward.functions=gsm8k`, {own}, "
        f'or for this source only with `reward.sources={{"{unknown[0]}": "math"}}`'
    )
