"""How a worker method is called on a group: which arguments are split, and how the results are merged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from rl_compat.batch import Batch

Shares = list[list[int]]
"the rows of each worker, ascending"
Merge = Callable[[Sequence[Any], Shares], Any]
"the results of all workers and their shares to one result"
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The declaration of a worker method."""

    split: tuple[str, ...]
    "arguments that are divided by rows, all in the same way; every worker gets the others whole"
    merge: Merge
    urgent: bool
    "the call does not wait for the running one"


def dispatch(
    *, split: tuple[str, ...] = (), merge: Merge | None = None, urgent: bool = False
) -> Callable[[Method], Method]:
    """Declare how a group calls a worker method.

    By default `in_order` merges the results of a method with split arguments, and `first` those of other methods.
    """

    def declare(method: Method) -> Method:
        declaration = Dispatch(split, merge or (in_order if split else first), urgent)
        method.__dispatch__ = declaration  # type: ignore[attr-defined]
        return method

    return declare


def dispatch_of(method: Callable[..., Any]) -> Dispatch:
    """The declaration of a worker method. Every method that a group calls has one."""
    declaration = getattr(method, "__dispatch__", None)
    assert isinstance(declaration, Dispatch), f"`{method.__qualname__}` has no `@dispatch`"
    return declaration


def arguments_of(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a worker method by name, without the worker."""
    names = list(inspect.signature(method).parameters)[1:] if args else []
    return dict(zip(names, args, strict=False)) | kwargs


def split_arguments(
    arguments: dict[str, Any], declaration: Dispatch, num_workers: int
) -> tuple[list[dict[str, Any]], Shares]:
    """The arguments of each worker, and its rows; a worker without rows gets empty arguments."""
    if num_workers == 1 or not declaration.split:
        return [arguments] * num_workers, [[] for _ in range(num_workers)]
    shares = balanced_shares(arguments[declaration.split[0]], num_workers)
    split = [{name: _pick(arguments[name], rows) for name in declaration.split} for rows in shares]
    return [arguments | own for own in split], shares


def balanced_shares(rows: Any, num_shares: int) -> Shares:
    """A batch or sequence in shares with about the same number of tokens.

    The rows of a group stay together. The largest remaining group goes to the share with the fewest tokens, so the
    result depends only on the groups and lengths. A share is empty if there are fewer groups than shares.
    """
    is_batch = isinstance(rows, Batch)
    groups = rows.groups.tolist() if is_batch else range(len(rows))
    weights = rows.sequence_lengths() if is_batch else [1] * len(rows)
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    sizes = {group: sum(weights[row] for row in own) for group, own in members.items()}
    shares: Shares = [[] for _ in range(num_shares)]
    loads = [0] * num_shares
    for group in sorted(members, key=lambda group: -sizes[group]):
        lightest = loads.index(min(loads))
        shares[lightest] += members[group]
        loads[lightest] += sizes[group]
    return [sorted(share) for share in shares]


def first(results: Sequence[Any], shares: Shares) -> Any:
    """The result of the first worker, for methods that return the same on all workers."""
    del shares
    return results[0]


def distinct(results: Sequence[Sequence[Any]], shares: Shares) -> list[Any]:
    """The items of all workers, each once."""
    del shares
    return list(dict.fromkeys(item for result in results for item in result))


def in_order(results: Sequence[Any], shares: Shares) -> Any:
    """Rows of all workers in the order of the caller: tensors, lists, and dictionaries of them.

    `[b, T]` tensors of different widths are padded with zeros on the right. A list may hold several items per row.
    """
    if len(results) == 1:
        return results[0]
    if isinstance(results[0], dict):
        return {name: in_order([result[name] for result in results], shares) for name in results[0]}
    order = [row for rows in shares for row in rows]
    if isinstance(results[0], Tensor):
        width = max(result.shape[1] for result in results)
        padded = [torch.nn.functional.pad(result, (0, width - result.shape[1])) for result in results]
        return torch.cat(padded)[torch.tensor(order).argsort()]
    items = [item for result in results for item in result]
    per_row = len(items) // max(1, len(order))
    placed = [(row * per_row + offset) for row in order for offset in range(per_row)]
    return [item for _, item in sorted(zip(placed, items, strict=True), key=lambda pair: pair[0])]


def _pick(value: Any, rows: Sequence[int]) -> Any:
    return value.select(rows) if isinstance(value, Batch) else [value[row] for row in rows]
