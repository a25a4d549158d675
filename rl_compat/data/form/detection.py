"""Detects the form of a file from its columns and its first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_compat.data.form.columns import Columns, Record, Task, columns_of, has_column
from rl_compat.data.form.patterns import PATTERNS, Form, FormPattern
from rl_compat.errors import DataError, nearest, quoted

NUM_LOOKED_AT = 100
"first rows of a file that decide its form"
TITLES: Mapping[Task, str] = {
    "prompts": "prompts",
    "supervised": "prompts with responses",
    "preference": "preference pairs",
    "labelled": "labelled responses",
}
KEYS: Mapping[Task, str] = {
    "prompts": "`data.prompt_key`",
    "supervised": "`data.prompt_key` and `data.response_key`",
    "preference": "`data.chosen_key` and `data.rejected_key`",
    "labelled": "`data.prompt_key`, `data.response_key` and `data.label_key`",
}


def detect(records: Sequence[Record], *, task: Task, columns: Columns, name: str) -> Form:
    """The form of a file. Raises DataError when no form fits, or more than one."""
    present, records = columns_of(records), records[:NUM_LOOKED_AT]
    named = columns.named(task)
    _check_named(named, present, records, name=name)
    found = [
        (form, pattern) for pattern in PATTERNS if (form := _match(pattern, records, present, task, named)) is not None
    ]
    if not found:
        raise _no_form(present, task=task, columns=columns, name=name)
    first, pattern = found[0]
    others = [] if pattern.wins else [form for form, other in found[1:] if _competes(form, other, first)]
    if others:
        raise _ambiguous([first, *others], task=task, name=name)
    return first


def _match(
    pattern: FormPattern, records: Sequence[Record], present: Sequence[str], task: Task, named: Mapping[str, str]
) -> Form | None:
    roles = {**pattern.needs, **(pattern.truth if task == "prompts" else {}), **pattern.takes}
    if task not in pattern.tasks or any(role not in roles for role in named):
        return None
    columns: dict[str, str] = {}
    for role, names in roles.items():
        wanted = (named[role],) if role in named else names
        column = next((item for item in wanted if has_column(item, present, records)), None)
        if column is not None and column not in columns.values():
            columns[role] = column
        elif role in pattern.needs:
            return None
    if not pattern.fits(records, columns, task):
        return None
    used = {column.partition(".")[0] for column in columns.values()}
    unused = () if task == "prompts" else tuple(column for column in present if column not in used)
    return Form(name=pattern.name, title=pattern.title, columns=columns, rewrite=pattern.rewrite, unused=unused)


def _competes(form: Form, pattern: FormPattern, first: Form) -> bool:
    """Whether a form needs a column that the first form does not use."""
    needed = {form.columns[role] for role in pattern.needs}
    return not pattern.last and not needed <= set(first.columns.values())


def _check_named(named: Mapping[str, str], present: Sequence[str], records: Sequence[Record], *, name: str) -> None:
    for role, column in named.items():
        if has_column(column, present, records):
            continue
        close = nearest(column, present)
        raise DataError(
            f"`{name}` has no column `{column}`, only {quoted(present) or 'none'}",
            hint=f"set `data.{role}_key={close}`" if close else f"name the column with `data.{role}_key`",
        )


def _no_form(present: Sequence[str], *, task: Task, columns: Columns, name: str) -> DataError:
    close = nearest(columns.prompt, present) if columns.prompt not in present else None
    forms = "; ".join(
        dict.fromkeys(_needed(pattern) for pattern in PATTERNS if task in pattern.tasks if _needed(pattern))
    )
    what = f"column `{columns.prompt}`" if task == "prompts" else f"columns of {TITLES[task]}"
    hint = f"set `data.prompt_key={close}`" if close else f"name the columns with {KEYS[task]}, or use one of: {forms}"
    return DataError(f"`{name}` has no {what}, only {quoted(present) or 'none'}", hint=hint)


def _needed(pattern: FormPattern) -> str:
    return " + ".join(f"`{names[0]}`" for names in pattern.needs.values() if names)


def _ambiguous(forms: Sequence[Form], *, task: Task, name: str) -> DataError:
    kinds = "; ".join(f"{form.title} ({quoted(form.columns.values())})" for form in forms)
    prompt = forms[0].columns.get("prompt") or forms[0].columns["question"]
    response = forms[0].columns.get("response") or forms[0].columns.get("solution")
    more = f" and `data.response_key={response}`" if task == "supervised" and response else ""
    return DataError(
        f"`{name}` matches {len(forms)} forms of {TITLES[task]}: {kinds}",
        hint=f"name the columns, such as `data.prompt_key={prompt}`{more}",
    )
