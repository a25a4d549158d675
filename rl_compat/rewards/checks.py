"""Check data against the rewards of a run before training: data sources, ground truths and reference solutions.

`BUILTIN_BY_SOURCE` is the reward of each `data_source`, which `auto` uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Number as AnyNumber
from typing import Any, Protocol

from rl_compat.errors import DataError, nearest, quoted
from rl_compat.rewards.builtin.answers import after_thoughts, last_boxed
from rl_compat.rewards.builtin.choice import truth_letter
from rl_compat.rewards.builtin.gsm8k import gold_number
from rl_compat.rewards.builtin.math_answer import find_answer, plain_form
from rl_compat.rewards.builtin.table import AUTO, BUILTINS, Truth
from rl_compat.rewards.builtin.texts import truths

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
PLAIN_NUMBER = re.compile(r"-?[0-9.]+")
LONGEST_EXPRESSION = 200
"characters of a ground truth of mathematics; a longer one is a worked solution"


Complaints = list[tuple[bool, str, str | None]]
"whether the row cannot be used for training, the problem, and the hint"
NEEDS: Mapping[Truth, str] = {
    "number": "one number, or a text with a number after its last `####`",
    "digits": "a number in plain digits, such as `1080`",
    "letter": "a letter",
    "texts": "a text, a number or a list of them",
    "any": "a text or a number",
}
"what a reward can match, by `Builtin.truth`"
NO_REWARD = "set a reward, for example `reward.functions=exact_match`, or one for this source in `reward.sources`"
NO_TRUTH = "add it as `reward_model.ground_truth`, or set `data.answer_key` to its column"


class HasTruth(Protocol):
    """A row or a prompt."""

    @property
    def data_source(self) -> str: ...
    @property
    def ground_truth(self) -> Any: ...
    @property
    def row(self) -> int: ...


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
    names = _named(distinct[:NUM_NAMED_ROWS])
    known = [*(sources or {}), *BUILTIN_BY_SOURCE]
    shown = ", ".join(map(str, rows[:NUM_NAMED_ROWS])) + (" …" if len(rows) > NUM_NAMED_ROWS else "")
    where = f" ({len(rows)} rows, counted from 0: {shown})" if rows else ""
    return DataError(f"no reward belongs to {names}{where}; known are {quoted(known)}", hint=_remedy(distinct, known))


def _named(sources: Sequence[str]) -> str:
    return f"the data source {quoted(sources)}" if any(sources) else "rows without a data source"


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


def reference_judge(
    functions: Sequence[str], *, sources: Mapping[str, str] | None = None, arguments: Mapping[str, str] | None = None
) -> Callable[[str, Any, str | None], Complaints]:
    """A function that checks a row's data source, ground truth and reference solution (or None).

    Custom functions are not called.
    """
    bound = {name: BUILTINS[name].bind(name, arguments or {}) for name in functions if name in BUILTINS}

    def judge(data_source: str, ground_truth: Any, reference: str | None) -> Complaints:
        found: Complaints = []
        for function in functions:
            name = builtin_of(data_source, sources) if function == AUTO else function
            if name is None:
                found.append((True, f"no reward belongs to {_named([data_source])}", NO_REWARD))
            elif name in BUILTINS:
                found += _of_builtin(name, ground_truth, reference, bound.get(name, {}))
        return found

    return judge


def _of_builtin(name: str, truth: Any, reference: str | None, arguments: Mapping[str, Any]) -> Complaints:
    problem = truth_problem(name, truth)
    if problem is not None:
        missing = problem == _missing(name)
        what = "no ground truth" if missing else f"a ground truth that is not {NEEDS[BUILTINS[name].truth]}"
        return [(True, f"{what}, which the reward `{name}` needs", NO_TRUTH if missing else None)]
    found = _of_form(name, truth)
    if reference is None or BUILTINS[name].truth == "none" or BUILTINS[name].needed:
        return found
    if name in ("math", "math_dapo"):
        return found + _of_math(name, truth, after_thoughts(reference))
    if BUILTINS[name].timed:
        return found
    outcome = BUILTINS[name].function(after_thoughts(reference), truth, **arguments)
    if outcome.answer_found is False:
        found.append((True, f"the reward `{name}` finds no answer in the reference solution", None))
    elif outcome.correct is False:
        found.append((True, f"the reward `{name}` does not accept the reference solution", None))
    return found


def _of_form(name: str, truth: Any) -> Complaints:
    """Notes about a ground truth that is compared in another form than it has."""
    accepted = truths(truth) if BUILTINS[name].truth in ("texts", "digits") else []
    found: Complaints = []
    if any(not isinstance(item, str) for item in accepted):
        found.append((False, f"a ground truth is a number: the reward `{name}` compares its text, 5.0 as `5`", None))
    if any(isinstance(item, str) and _READS_AS_LIST.fullmatch(item) for item in accepted):
        found.append((False, f"a ground truth reads as a list: the reward `{name}` compares it as one text", None))
    return found


_READS_AS_LIST = re.compile(r"\s*[\[{].*[\]}]\s*", re.DOTALL)


def _of_math(name: str, truth: Any, reference: str) -> Complaints:
    """Compares text only. Whether two expressions are equal is left to the reward, which has a time limit."""
    answer = find_answer(reference)
    if answer is None:
        return [(True, f"the reward `{name}` finds no answer in the reference solution", None)]
    truths = truth if isinstance(truth, (list, tuple)) else [truth]
    if plain_form(answer.text) in {plain_form(str(item)) for item in truths}:
        return []
    return [(False, f"the answer in the reference solution is not written like the ground truth of `{name}`", None)]


def check_rows(rows: Sequence[HasTruth], functions: Sequence[str], sources: Mapping[str, str] | None = None) -> None:
    """Raise DataError if a row has an unknown data source or no usable ground truth for one of the functions.

    `sources` is `reward.sources`.
    """
    if AUTO in functions:
        unknown = {row.row: row.data_source for row in rows if builtin_of(row.data_source, sources) is None}
        if unknown:
            raise unknown_source(unknown.values(), rows=list(unknown), sources=sources)
    for row in rows:
        for name in functions:
            meant = builtin_of(row.data_source, sources) if name == AUTO else name
            problem = truth_problem(meant or "", row.ground_truth)
            if problem is not None:
                raise DataError(f"row {row.row} {problem}", hint=_truth_hint(row.ground_truth))


def check_sources(
    data_sources: Iterable[str], functions: Sequence[str], sources: Mapping[str, str] | None = None
) -> None:
    """Raise DataError if `functions` contains `auto` and it does not know a data source."""
    unknown = [source for source in data_sources if builtin_of(source, sources) is None]
    if AUTO in functions and unknown:
        raise unknown_source(unknown, sources=sources)


def truth_problem(name: str, ground_truth: Any) -> str | None:
    """Why the built-in `name` cannot use a ground truth, as a predicate of the row; None if it can use it."""
    truth = BUILTINS[name].truth if name in BUILTINS else "none"
    if truth == "none":
        return None
    empty: tuple[Any, ...] = (None, "", [], {}, {"target": []})
    if ground_truth in empty or (truth == "texts" and any(item in empty for item in truths(ground_truth))):
        return _missing(name)
    if gold_answer(name, ground_truth) is not None:
        return None
    kind = "" if isinstance(ground_truth, str) else f" ({type(ground_truth).__name__})"
    return f"has the ground truth `{str(ground_truth)[:40]}`{kind}, and the reward `{name}` needs {NEEDS[truth]}"


def _missing(name: str) -> str:
    return f"has no ground truth, which the reward `{name}` needs"


def gold_answer(name: str, ground_truth: Any) -> str | None:
    """What the built-in `name` compares an answer with, as text; None for a ground truth that it can never match."""
    truth = BUILTINS[name].truth
    if truth == "number":
        number = gold_number(ground_truth)
        return None if number is None else str(number.value)
    if truth == "letter":
        return truth_letter(ground_truth)
    accepted = truths(ground_truth)
    plain = all(isinstance(item, (str, AnyNumber)) and not isinstance(item, bool) and item == item for item in accepted)
    if not plain or (truth == "digits" and not PLAIN_NUMBER.fullmatch(str(ground_truth).removesuffix(".0"))):
        return None
    if name in ("math", "math_dapo") and not all(map(_is_expression, map(str, accepted))):
        return None
    return " | ".join(map(str, accepted)) or None


def gold_answers(functions: Sequence[str], sources: Mapping[str, str] | None = None) -> Callable[[str, Any], str]:
    """A function from a data source and a ground truth to what the first reward that reads it compares with."""

    def gold(data_source: str, ground_truth: Any) -> str:
        names = [builtin_of(data_source, sources) or "" if name == AUTO else name for name in functions]
        reads = [name for name in names if name in BUILTINS and BUILTINS[name].truth != "none"]
        return (gold_answer(reads[0], ground_truth) if reads else None) or str(ground_truth)

    return gold


def _is_expression(text: str) -> bool:
    """Whether a ground truth of mathematics has a marked answer, or is short enough to be one."""
    return last_boxed(text) is not None or "####" in text or len(text) <= LONGEST_EXPRESSION


def _truth_hint(ground_truth: Any) -> str | None:
    missing = ground_truth is None or str(ground_truth) == ""
    return "add it as `reward_model.ground_truth`, or as a column `ground_truth` or `answer`" if missing else None
