"""Parse the rules that reject tokens and responses whose policy is too far from the current one.

A rule is `name:bounds`, such as `token_k1:0.8_1.25` or `seq_mean_k3:0.02`. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Scope = Literal["token", "seq_sum", "seq_mean", "seq_max"]
Statistic = Literal["k1", "k2", "k3"]

RULE_NAMES: dict[str, tuple[Scope, Statistic]] = {
    f"{scope}_{statistic}": (scope, statistic)
    for scope in get_args(Scope)
    for statistic in get_args(Statistic)
    if (scope, statistic) != ("seq_max", "k1")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionRule:
    """Keep tokens or responses whose statistic is between low and high, inclusive.

    With x the log-ratio of the probabilities under the current policy and the one that sampled, the statistic of a
    token is k1 = -x, k2 = x^2 / 2 or k3 = exp(x) - x - 1. The statistic of a response is the sum, mean or maximum over
    its tokens.
    """

    name: str
    scope: Scope
    statistic: Statistic
    low: float | None
    "in the units of the statistic; None for k2 and k3, which are never negative"
    high: float


def parse_rejection_rule(text: str) -> RejectionRule:
    """Parse a rule such as `token_k1:0.8_1.25`.

    The bounds of k1 are ratios `low_high`, and a single `u` means `1/u_u`. k2 and k3 have one bound. Raises ValueError.
    """
    name, separator, bounds = text.strip().partition(":")
    if name not in RULE_NAMES:
        raise ValueError(f"unknown rejection rule `{name}`; the rules are {', '.join(RULE_NAMES)}")
    if not separator:
        raise ValueError(f"`{name}` has no bounds: write `{name}:{'0.8_1.25' if name.endswith('k1') else '0.02'}`")
    scope, statistic = RULE_NAMES[name]
    numbers = [_positive(part, text) for part in bounds.split("_")]
    if statistic != "k1":
        if len(numbers) != 1:
            raise ValueError(f"`{text}` has {len(numbers)} bounds, `{name}` takes one")
        return RejectionRule(name=name, scope=scope, statistic=statistic, low=None, high=numbers[0])
    if len(numbers) > 2:
        raise ValueError(f"`{text}` has {len(numbers)} bounds, `{name}` takes one or two")
    low, high = numbers if len(numbers) == 2 else (1 / numbers[0], numbers[0])
    if low > high:
        raise ValueError(f"`{text}` keeps nothing: {low:g} is above {high:g}")
    return RejectionRule(name=name, scope=scope, statistic=statistic, low=math.log(low), high=math.log(high))


def parse_rejection_rules(texts: Iterable[str]) -> tuple[RejectionRule, ...]:
    """Parse rules. Raises ValueError if one is invalid or given twice."""
    rules = tuple(parse_rejection_rule(text) for text in texts)
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"`{name}` is given {names.count(name)} times")
    return rules


def _positive(text: str, rule: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"`{text}` in `{rule}` is not a number") from None
    if not 0 < number < math.inf:
        raise ValueError(f"`{text}` in `{rule}` must be above 0 and finite")
    return number
