"""Measured speeds of rollout engines under the conditions nearest to the planned ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl_compat.planning.speed.measurements import Measurement

LARGEST_FACTOR = 2.0
"maximum ratio of parameters between two models that rank engines alike"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Speeds of engines under the same conditions."""

    speeds: Mapping[str, float]
    "tokens per second by engine, fastest first"
    words: str
    "the card, model, batch size and source of the measurement"

    def figures(self, first: str) -> str:
        """`vllm 18,048 against native 12,607 tokens/s on NVIDIA H200 …`, `first` first."""
        others = [f"{name} {speed:,.0f}" for name, speed in self.speeds.items() if name != first]
        return f"{first} {self.speeds[first]:,.0f} against {' and '.join(others)} tokens/s on {self.words}"


def compared(
    measurements: Iterable[Measurement],
    *,
    card: str,
    dtype: str,
    num_parameters: int,
    batch: int,
    engines: Collection[str],
) -> Comparison | None:
    """At least two of the engines on the same card, in the same dtype, with a model of half to twice the size.

    Of several, the nearest batch size, then the nearest model. None without any.
    """
    groups: dict[tuple[object, ...], dict[str, Measurement]] = {}
    for item in measurements:
        apart = _factor(item.num_parameters, num_parameters)
        if (item.card, item.dtype) == (card, dtype) and item.engine in engines and apart <= LARGEST_FACTOR:
            groups.setdefault(item.conditions, {})[item.engine] = item
    found = [group for group in groups.values() if len(group) > 1]
    if not found:
        return None

    def distance(group: Mapping[str, Measurement]) -> tuple[float, float]:
        any_of_them = next(iter(group.values()))
        return _factor(any_of_them.batch, batch), _factor(any_of_them.num_parameters, num_parameters)

    nearest = sorted(min(found, key=distance).values(), key=lambda item: -item.tokens_per_second)
    return Comparison(
        speeds={item.engine: item.tokens_per_second for item in nearest}, words=_words(nearest[0], nearest)
    )


def _factor(one: int, other: int) -> float:
    return math.exp(abs(math.log(one / other)))


def _words(item: Measurement, group: Sequence[Measurement]) -> str:
    """`NVIDIA H200, measured by … with torch 2.11.0 and vllm 0.24.0: 494 M parameters, bf16, 64 at once`."""
    vllm = next((other.vllm for other in group if other.engine == "vllm"), None)
    software = f"torch {item.torch}" + (f" and vllm {vllm}" if vllm else "")
    size = f"{item.num_parameters / 1e6:,.0f} M parameters"
    return f"{item.card}, measured by {item.measured_by} with {software}: {size}, {item.dtype}, {item.batch} at once"
