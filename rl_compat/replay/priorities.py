"""How often each group is drawn, and the weights that make up for it (Schaul et al. 2016, arXiv 1511.05952).

A draw is without replacement: a group is in a batch once. Group i is in it with the probability
min(1, c p_i^alpha), where c makes the expected number of groups the wanted one. For a few groups out of many this is
count P(i) with P(i) = p_i^alpha / sum p^alpha, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_compat.algorithms.kl import kl_estimate
from rl_compat.algorithms.masking import masked_mean
from rl_compat.batch import Batch
from rl_compat.config.types import PriorityName

Floats = NDArray[np.float64]


def _advantage(batch: Batch) -> Tensor:
    batch.require("advantages", reader="the priority")
    assert batch.advantages is not None
    return batch.advantages.abs()


def _td_error(batch: Batch) -> Tensor:
    batch.require("returns", "values", reader="the priority")
    assert batch.returns is not None and batch.values is not None
    return (batch.returns - batch.values).abs()


def _kl(batch: Batch) -> Tensor:
    if batch.old_logprobs is None or batch.rollout_logprobs is None:
        return torch.zeros_like(batch.response_mask, dtype=torch.float32)
    return kl_estimate("k3", logprobs=batch.rollout_logprobs, ref_logprobs=batch.old_logprobs)


_MEASURES: dict[PriorityName, tuple[Callable[[Batch], Tensor], Callable[[Floats], Floats]]] = {
    "advantage": (_advantage, lambda mean: mean),
    "td_error": (_td_error, lambda mean: mean),
    "kl": (_kl, lambda mean: 1 / (1 + mean)),
}
"a number per token, and how its mean over the responses of a group becomes the group's priority"


def priorities(batch: Batch, name: PriorityName) -> dict[int, float]:
    """The priority of each group of a batch that was trained on; 1 for priorities that do not depend on it."""
    groups, position = batch.groups.unique(return_inverse=True)
    if name not in _MEASURES:
        return dict.fromkeys(groups.tolist(), 1.0)
    per_token, of_mean = _MEASURES[name]
    rows = masked_mean(per_token(batch).double(), mask=batch.response_mask, dim=1)
    sums = torch.zeros(len(groups), dtype=torch.float64).index_add(0, position, rows)
    means = (sums / position.bincount()).nan_to_num(0.0, 0.0, 0.0)
    return dict(zip(groups.tolist(), of_mean(means.numpy()).tolist(), strict=True))


def inclusion_probabilities(priority: Floats, count: int) -> Floats:
    """The probability of each group to be among `count` drawn ones, [N]; 0 for those of priority 0.

    They sum to `count`, or to the number of groups with a priority if that is smaller.
    """
    certain, open_ = np.zeros(len(priority), dtype=bool), priority > 0
    count = min(count, int(open_.sum()))
    while True:
        scaled = np.where(open_, priority, 0.0)
        if open_.any():
            scaled *= (count - certain.sum()) / scaled.sum()
        above = open_ & (scaled >= 1 - 1e-12)
        if not above.any():
            return np.where(certain, 1.0, scaled)
        certain, open_ = certain | above, open_ & ~above


def draw(probabilities: Floats, generator: np.random.Generator) -> NDArray[np.int64]:
    """Places of groups, each with its probability: systematic sampling in random order, in ascending order."""
    certain = np.flatnonzero(probabilities >= 1)
    order = generator.permutation(np.flatnonzero((probabilities > 0) & (probabilities < 1)))
    edges = np.cumsum(probabilities[order])
    count = round(edges[-1]) if len(edges) else 0
    if count == 0:
        return certain
    points = generator.random() + np.arange(count)
    places = np.searchsorted(edges * (count / edges[-1]), points, side="right")
    return np.sort(np.concatenate([certain, order[np.unique(np.minimum(places, len(order) - 1))]]))


def importance_weights(probabilities: Floats, *, beta: float) -> Floats:
    """(N P)^-beta of drawn groups over the largest of them, from their probabilities."""
    weights = np.power(probabilities, -beta)
    return np.asarray(weights / weights.max())


def effective_fraction(weights: Floats) -> float:
    """The effective sample size (sum w)^2 / sum w^2 as a fraction of the number of weights."""
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
