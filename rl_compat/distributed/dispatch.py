"""How a worker method is called on a group: which arguments are split over the workers, and how the results merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from rl_compat.batch import Batch

Merge = Literal["concat", "mean", "first"]
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Dispatch:
    split: tuple[str, ...] = ()
    "names of the arguments that are divided by rows; the others go to every worker"
    merge: Merge = "first"
    "rows one after the other, the mean of dictionaries of numbers, or the first worker's result"


def dispatch(*, split: tuple[str, ...] = (), merge: Merge = "first") -> Callable[[Method], Method]:
    """Declare beside a worker method how a group calls it. Split arguments are passed by keyword."""

    def declare(method: Method) -> Method:
        method.__dispatch__ = Dispatch(split, merge)  # type: ignore[attr-defined]
        return method

    return declare


def dispatch_of(method: Callable[..., Any]) -> Dispatch:
    """The declaration of a worker method; a method without one is broadcast and gives the first result."""
    return getattr(method, "__dispatch__", Dispatch())


def split_rows(value: Any, num_parts: int) -> list[Any]:
    """A batch, tensor or sequence in contiguous parts whose sizes differ by at most one."""
    total = len(value)
    bounds = [total * part // num_parts for part in range(num_parts + 1)]
    parts = list(pairwise(bounds))
    if isinstance(value, Batch):
        return [value.select(range(start, end)) for start, end in parts]
    return [value[start:end] for start, end in parts]


def split_arguments(arguments: dict[str, Any], declaration: Dispatch, num_workers: int) -> list[dict[str, Any]]:
    """One dictionary of keyword arguments per worker."""
    if num_workers == 1:
        return [arguments]
    pieces = {name: split_rows(arguments[name], num_workers) for name in declaration.split}
    return [
        {name: pieces[name][rank] if name in pieces else value for name, value in arguments.items()}
        for rank in range(num_workers)
    ]


def merge_results(results: Sequence[Any], merge: Merge) -> Any:
    """The workers' results as one, those of a dictionary name by name.

    `[b, T]` tensors of different width are padded with zeros on the right.
    """
    if merge == "first" or len(results) == 1:
        return results[0]
    if merge == "mean":
        return {name: sum(result[name] for result in results) / len(results) for name in results[0]}
    if isinstance(results[0], dict):
        return {name: merge_results([result[name] for result in results], merge) for name in results[0]}
    if isinstance(results[0], Tensor):
        width = max(result.shape[1] for result in results)
        return torch.cat([torch.nn.functional.pad(result, (0, width - result.shape[1])) for result in results])
    return [item for result in results for item in result]
