"""Four pairs of responses: log-probabilities under policy and reference, and lengths in tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


PAIRS = {
    "chosen_logprobs": numbers(-12.5, -30.25, -4.0, -55.0),
    "rejected_logprobs": numbers(-14.0, -28.5, -9.75, -60.5),
    "ref_chosen_logprobs": numbers(-13.0, -29.0, -6.5, -52.0),
    "ref_rejected_logprobs": numbers(-13.5, -29.75, -7.0, -61.0),
}
LENGTHS = {"chosen_lengths": torch.tensor([5, 12, 2, 20]), "rejected_lengths": torch.tensor([6, 10, 3, 25])}
