"""The order in which an update goes through a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch

from rl_compat import seeds
from rl_compat.batch import Batch

AnyBatch = TypeVar("AnyBatch", bound=Batch)


def mini_batches(batch: AnyBatch, *, prompts_per_mini_batch: int, num_epochs: int, seed: int) -> Iterator[AnyBatch]:
    """Mini-batches of whole groups, every group once per epoch, in an order that depends on the seed alone."""
    groups = batch.groups.unique(sorted=True)
    for epoch in range(num_epochs):
        generator = torch.Generator().manual_seed(seeds.derive(seed, "epoch", epoch))
        order = groups[torch.randperm(len(groups), generator=generator)]
        for chosen in order.split(prompts_per_mini_batch):
            rows = torch.isin(batch.groups, chosen).nonzero().flatten().tolist()
            yield batch.select(rows)
