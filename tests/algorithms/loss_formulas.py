"""The policy losses as the papers write them: plain numbers, token by token.

A formula takes one response, the position of a token in it and the log-probabilities to evaluate at, and gives that
token's loss. What a paper holds constant (sg) is taken from `response.logprobs`, so that finite differences in the
other argument are the gradient that the paper means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rl_compat.algorithms.losses.types import PolicyLossInputs, PolicyLossNumbers


@dataclass(frozen=True, kw_only=True)
class Response:
    """The tokens of the mask of one row."""

    logprobs: list[float]
    old: list[float]
    advantages: list[float]
    weights: list[float]
    selected: list[bool]
    numbers: PolicyLossNumbers


Formula = Callable[[Response, int, list[float]], float]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def surrogate(ratio: float, advantage: float, numbers: PolicyLossNumbers) -> float:
    return min(ratio * advantage, clip(ratio, 1 - numbers.clip_low, 1 + numbers.clip_high) * advantage)


def ppo_clip(r: Response, t: int, x: list[float]) -> float:
    objective = surrogate(math.exp(x[t] - r.old[t]), r.advantages[t], r.numbers)
    if r.numbers.clip_dual is not None and r.advantages[t] < 0:
        objective = max(objective, r.numbers.clip_dual * r.advantages[t])
    return -objective * r.weights[t]


def gspo(r: Response, t: int, x: list[float]) -> float:
    row_ratio = math.exp(sum(now - old for now, old in zip(r.logprobs, r.old, strict=True)) / len(r.old))
    token_ratio = row_ratio * math.exp(x[t]) / math.exp(r.logprobs[t])
    return -surrogate(token_ratio, r.advantages[t], r.numbers) * r.weights[t]


def cispo(r: Response, t: int, x: list[float]) -> float:
    ratio = clip(math.exp(r.logprobs[t] - r.old[t]), 1 - r.numbers.clip_low, 1 + r.numbers.clip_high)
    return -ratio * r.advantages[t] * x[t] * r.weights[t]


def sapo(r: Response, t: int, x: list[float]) -> float:
    tau = r.numbers.sapo_tau_positive if r.advantages[t] > 0 else r.numbers.sapo_tau_negative
    gate = 4 / tau / (1 + math.exp(-tau * (math.exp(x[t] - r.old[t]) - 1)))
    return -gate * r.advantages[t] * r.weights[t]


def reinforce(r: Response, t: int, x: list[float]) -> float:
    return -r.advantages[t] * x[t] * r.weights[t]


def clip_cov(r: Response, t: int, x: list[float]) -> float:
    if r.selected[t]:
        return 0.0
    return -surrogate(math.exp(x[t] - r.old[t]), r.advantages[t], r.numbers) * r.weights[t]


def kl_cov(r: Response, t: int, x: list[float]) -> float:
    penalty = r.numbers.kl_cov_coef * abs(x[t] - r.old[t]) if r.selected[t] else 0.0
    return (penalty - r.advantages[t] * math.exp(x[t] - r.old[t])) * r.weights[t]


def geo_mean(r: Response, t: int, x: list[float]) -> float:
    product, weight = 1.0, 1.0
    for now, old, advantage, w in zip(x, r.old, r.advantages, r.weights, strict=True):
        bounded = clip(now - old, -r.numbers.clip_low, r.numbers.clip_high)
        held = min(now - old, bounded) if advantage > 0 else max(now - old, bounded)
        product, weight = product * math.exp(held), weight * w
    size = len(x)
    return -sum(r.advantages) / size * product ** (1 / size) * weight ** (1 / size)


def dro(r: Response, t: int, x: list[float]) -> float:
    return -(r.advantages[t] * x[t] - r.numbers.dro_beta / 2 * (x[t] - r.old[t]) ** 2) * r.weights[t]


def dppo(r: Response, t: int, x: list[float], *, divergence: Callable[[float, float], float]) -> float:
    now, old = math.exp(r.logprobs[t]), math.exp(r.old[t])
    rises, positive = now > old, r.advantages[t] > 0
    bound = r.numbers.clip_high if positive else r.numbers.clip_low
    if rises == positive and divergence(old, now) > bound:
        return 0.0
    ratio = min(now / old, r.numbers.clip_dual or math.inf)
    return -r.advantages[t] * ratio * x[t] * r.weights[t]


def dppo_tv(r: Response, t: int, x: list[float]) -> float:
    return dppo(r, t, x, divergence=lambda old, now: abs(old - now))


def dppo_kl(r: Response, t: int, x: list[float]) -> float:
    return dppo(
        r, t, x, divergence=lambda p, q: p * math.log(p / q) + (1 - p) * math.log((1 - p + 1e-8) / (1 - q + 1e-8))
    )


FORMULAS: dict[str, Formula] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "gpg": reinforce,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "geo_mean": geo_mean,
    "dro": dro,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "reinforce": reinforce,
}


def responses_of(inputs: PolicyLossInputs) -> list[tuple[int, list[int], Response]]:
    """For every row that has tokens: its number, their columns, and the response."""
    rows = []
    for b in range(len(inputs.response_mask)):
        columns = inputs.response_mask[b].nonzero().flatten().tolist()

        def of(x: Tensor | None, default: float, b: int = b, columns: list[int] = columns) -> list:
            return [default] * len(columns) if x is None else x[b, columns].tolist()

        if columns:
            response = Response(
                logprobs=of(inputs.logprobs.detach(), 0.0),
                old=of(inputs.old_logprobs, 0.0),
                advantages=of(inputs.advantages, 0.0),
                weights=of(inputs.weights, 1.0),
                selected=of(inputs.selection, False),
                numbers=inputs.numbers,
            )
            rows.append((b, columns, response))
    return rows
