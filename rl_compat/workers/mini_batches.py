"""The mini-batches of an update, the share of each rank, and the mean metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rl_compat import seeds
from rl_compat.batch import Batch
from rl_compat.distributed.group import balanced_shares
from rl_compat.distributed.ranks import Ranks

AnyBatch = TypeVar("AnyBatch", bound=Batch)


def mini_batches(batch: AnyBatch, *, prompts_per_mini_batch: int, num_epochs: int, seed: int) -> Iterator[AnyBatch]:
    """Mini-batches of whole groups, each group once per epoch, in an order that depends only on the seed."""
    groups = batch.groups.unique(sorted=True)
    for epoch in range(num_epochs):
        generator = torch.Generator().manual_seed(seeds.derive(seed, "epoch", epoch))
        order = groups[torch.randperm(len(groups), generator=generator)]
        for chosen in order.split(prompts_per_mini_batch):
            rows = torch.isin(batch.groups, chosen).nonzero().flatten().tolist()
            yield batch.select(rows)


def own_share(batch: AnyBatch, ranks: Ranks) -> AnyBatch:
    """The rows of this rank: whole groups, balanced by tokens. The shares of all ranks make up the batch."""
    return batch if ranks.size == 1 else batch.select(balanced_shares(batch, ranks.size)[ranks.rank])


def balance_metrics(batch: Batch, ranks: Ranks, *, role: str) -> dict[str, float]:
    """The tokens of the rank that gets most of a batch over the mean of all ranks; nothing for one rank."""
    if ranks.size == 1:
        return {}
    return {f"perf/balance/{role}": balance(balanced_shares(batch, ranks.size), batch.sequence_lengths())}


def balance(shares: Sequence[Sequence[int]], num_tokens: Sequence[int]) -> float:
    """The largest share over the mean of all; 1 where all are equal, the number of shares where one has everything."""
    loads = [sum(num_tokens[row] for row in rows) for rows in shares]
    return max(loads) * len(loads) / sum(loads) if any(loads) else 1.0


def over_ranks(compute: Callable[[AnyBatch], Tensor], batch: AnyBatch, ranks: Ranks) -> Tensor:
    """The results of `compute` for a batch, `[B]` or `[B, T]`. Ranks compute their shares and all get the whole."""
    if ranks.size == 1:
        return compute(batch)
    rows = balanced_shares(batch, ranks.size)[ranks.rank]
    part = compute(batch.select(rows))
    if part.dim() == 2:
        part = torch.nn.functional.pad(part, (0, batch.response_ids.shape[1] - part.shape[1]))
    whole = torch.zeros(len(batch), *part.shape[1:])
    whole[rows] = part
    return ranks.sum(whole)


_SUMMED = ("skipped_steps",)
_LAST = ("lr",)


def mean_metrics(steps: Sequence[dict[str, float]], *, prefix: str) -> dict[str, float]:
    """Means over the steps; skipped steps are counted and `lr` is the last one. Names get the prefix."""
    merged = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        full_name = name if "/" in name else f"{prefix}{name}"
        if name in _SUMMED:
            merged[full_name] = sum(values)
        elif name in _LAST:
            merged[full_name] = values[-1]
        else:
            merged[full_name] = sum(values) / len(values)
    return merged
