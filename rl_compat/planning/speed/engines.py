"""The rollout engine that was measured to be the fastest, if the user does not set one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rl_compat.capability.choice import Choice, choose
from rl_compat.capability.devices import on_cpu
from rl_compat.capability.rollout_engines import ENGINES, against_engine
from rl_compat.errors import RLCompatError
from rl_compat.planning.decide import Decided
from rl_compat.planning.memory.ladder import CHEAP, LEVERS, Solution, search, shortage_text
from rl_compat.planning.memory.request import Levers
from rl_compat.planning.speed.measurements import Measurement, shipped_measurements

LARGEST_FACTOR = 2.0
"maximum ratio of parameters between two models that rank engines alike"
TIE = 0.05
"a smaller lead does not decide: the preferred engine stays"

Decide = Callable[[Choice], Decided]


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


def with_fastest_engine(
    decided: Decided, found: Solution, *, own: Iterable[Measurement], decide: Decide
) -> tuple[Decided, Solution]:
    """The decisions and sizes with the engine that was measured to be the fastest.

    `own` are measurements of this machine, which take precedence over the shipped ones. `decide` decides again with
    another engine; that engine is used if it fits in memory without additional offload.
    """
    comparison = _comparison(decided, found.sizes.max_num_seqs, own)
    if comparison is None:
        return decided, found
    preferred, speeds = decided.choices["rollout_engine"], comparison.speeds
    fastest = next(iter(speeds))
    slower = {name: _slower(speed, speeds[fastest]) for name, speed in speeds.items() if name != fastest}
    if fastest == preferred.value:
        reason = f"{preferred.reason}; {comparison.figures(fastest)}"
        return _keeping(decided, _chosen(decided, fastest, because=reason, against=slower)), found
    if speeds[fastest] < speeds[preferred.value] * (1 + TIE):
        reason = f"{preferred.reason}; {comparison.figures(preferred.value)}, which differ by less than {TIE:.0%}"
        return _keeping(decided, _chosen(decided, preferred.value, because=reason)), found
    other = _fitting(_chosen(decided, fastest, because=comparison.figures(fastest), against=slower), found, decide)
    if isinstance(other, str):
        reason = f"was measured faster ({comparison.figures(fastest)}), but {other}"
        kept = _chosen(decided, preferred.value, because=preferred.reason, against={fastest: reason})
        return _keeping(decided, kept), found
    return other


def _comparison(decided: Decided, batch: int, own: Iterable[Measurement]) -> Comparison | None:
    """Speeds of the engines that run here, from this machine or else the shipped ones; None if none apply.

    Measurements are of real cards and unquantized weights; the shipped ones are of families with a described forward.
    """
    request, hardware = decided.request, decided.hardware
    preferred = decided.choices["rollout_engine"]
    if (
        preferred.asked
        or not request.workload.generates
        or hardware.emulated is not None
        or request.devices_per_engine > 1
        or request.quantization != "none"
    ):
        return None
    if request.actor.native_obstacle is not None:
        return None
    shipped = () if request.actor.own_forward_obstacle is not None else shipped_measurements()
    for measurements in (own, shipped):
        comparison = compared(
            measurements,
            card=hardware.host.cpu_name if on_cpu(hardware) else hardware.devices[0].name,
            dtype=request.rollout_dtype,
            num_parameters=request.actor.num_parameters,
            batch=batch,
            engines=[name for name in ENGINES if not against_engine(hardware, name)],
        )
        if comparison is not None and preferred.value in comparison.speeds:
            return comparison
    return None


def _fitting(choice: Choice, found: Solution, decide: Decide) -> tuple[Decided, Solution] | str:
    """The decisions with another engine, or why it is not used."""
    try:
        other = decide(choice)
        outcome = search(other.problem)
    except RLCompatError as error:
        return error.message
    if not isinstance(outcome, Solution):
        return f"does not fit: {shortage_text(outcome)}"
    return "fits only with offload" if _moves_more(outcome.levers, found.levers) else (other, outcome)


def _moves_more(levers: Levers, than: Levers) -> bool:
    costly = [name for name in LEVERS if name not in CHEAP]
    return any(getattr(levers, name) > getattr(than, name) for name in costly)


def _slower(speed: float, fastest: float) -> str:
    return f"was measured slower: {speed:,.0f} against {fastest:,.0f} tokens/s"


def _chosen(decided: Decided, engine: str, *, because: str, against: Mapping[str, str] | None = None) -> Choice:
    """An engine that runs here, with the reasons against the others."""
    before = decided.choices["rollout_engine"]
    others = [name for name in (before.value, *(item.value for item in before.rejected)) if name != engine]
    return choose(
        "rollout.engine",
        (engine, *others),
        because=because,
        against=lambda name: against_engine(decided.hardware, name),
        unwise=lambda name: (against[name],) if against and name in against else (),
    )


def _keeping(decided: Decided, choice: Choice) -> Decided:
    return replace(decided, choices=dict(decided.choices) | {"rollout_engine": choice})


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
