"""The best division of devices between generation and learning, and whether asynchronous learning pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from rl_compat.planning.simulation.flow import Flow, FlowResult, simulate
from rl_compat.units import counted

STALENESS = (1, 2, 4)
"bounds that are compared"
NEARLY = 0.97
"of the most steps per hour: the rest is not worth a larger staleness"
PAYS = 1.05
"times the steps per hour of the synchronous run"
NUM_STEPS = 24
MOST_ROWS = 2048
"of a step; of more, only a part of the engines and rows is simulated"
SEARCH_ROWS = 512
MOST_DIVISIONS = 32
COLUMNS = (
    "devices: generate + learn",
    "staleness",
    "steps/h",
    "generating",
    "slots filled",
    "learning",
    "staleness: mean, most",
    "tokens lost",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A run and what it does."""

    flow: Flow
    outcome: FlowResult

    def row(self) -> tuple[str, ...]:
        """Of a table with `COLUMNS`."""
        flow, found = self.flow, self.outcome
        return (
            f"{flow.generating} in turn" if flow.in_turn else f"{flow.generating} + {flow.learning}",
            "synchronous" if flow.in_turn else f"at most {flow.max_staleness}, {flow.on_update}",
            _rate(found),
            f"{found.generating:.0%}",
            f"{found.slots_filled:.0%}",
            f"{found.learning:.0%}",
            f"{found.mean_staleness:.2f}, {found.max_staleness}",
            f"{found.tokens_lost:.1%}",
        )

    def as_json(self) -> dict[str, Any]:
        names = ("generating", "learning", "in_turn", "max_staleness", "on_update")
        return {
            f"{name}_devices" if name.endswith("ing") else name: getattr(self.flow, name) for name in names
        } | asdict(self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisions:
    """The synchronous run on all devices, and asynchronous runs on divided ones."""

    mean_length: float
    longest: int
    "response"
    synchronous: Simulated
    best: Simulated | None
    "None where the devices cannot be divided"
    others: tuple[Simulated, ...]
    "other bounds with their best divisions, and the best with other treatment of unfinished responses"

    @property
    def gain(self) -> float:
        """Steps per hour of the best asynchronous run, as a multiple of the synchronous run's."""
        best = 0.0 if self.best is None else self.best.outcome.steps_per_hour
        return best / self.synchronous.outcome.steps_per_hour

    @property
    def pays(self) -> bool:
        return self.gain >= PAYS

    @property
    def verdict(self) -> str:
        """Whether asynchronous learning pays."""
        everything, rate = self.synchronous.flow, _rate(self.synchronous.outcome)
        if self.best is None:
            needs = f"{everything.num_shards} of {counted(everything.learning, 'device')}"
            return f"asynchronous learning cannot pay: learning needs {needs}, and none is left to generate"
        flow, word = self.best.flow, "pays" if self.pays else "does not pay"
        return (
            f"asynchronous learning {word}: {everything.generating} devices, {flow.generating} for generation and "
            f"{flow.learning} for learning, make {_rate(self.best.outcome)} steps an hour at staleness "
            f"{flow.max_staleness}, {self.gain:.2f} times the {rate} of all devices in turn"
        )

    def as_json(self) -> dict[str, Any]:
        times = {name: value for name, value in asdict(self.synchronous.flow).items() if name.endswith("_seconds")}
        return {
            "lengths": {"mean": self.mean_length, "longest": self.longest},
            "times": times | {"source": self.synchronous.flow.source, "num_slots": self.synchronous.flow.num_slots},
            "synchronous": self.synchronous.as_json(),
            "best": None if self.best is None else self.best.as_json(),
            "others": [other.as_json() for other in self.others],
            "gain": self.gain,
            "pays": self.pays,
            "verdict": self.verdict,
        }


def compare(flow: Flow, lengths: Sequence[int], *, num_devices: int) -> Divisions:
    """Simulate a run on all devices in turn, and on divisions of them. `flow` has the times of one device."""

    def run(generating: int, staleness: int, rows: int = MOST_ROWS) -> Simulated:
        divided = replace(flow, generating=generating, learning=num_devices - generating, max_staleness=staleness)
        return _simulated(divided, lengths, rows)

    divisions = range(num_devices - flow.num_shards, 0, -flow.num_shards)
    divisions = divisions[:: -(-len(divisions) // MOST_DIVISIONS) or 1]
    found = []
    for staleness in STALENESS if divisions else ():

        def speed(generating: int, staleness: int = staleness) -> float:
            return run(generating, staleness, SEARCH_ROWS).outcome.steps_per_hour

        found.append(run(_highest(divisions, speed), staleness))
    most = max((item.outcome.steps_per_hour for item in found), default=0.0)
    best = next((item for item in found if item.outcome.steps_per_hour >= NEARLY * most), None)
    others = [item for item in found if item is not best]
    if best is not None:
        others += [
            _simulated(replace(best.flow, on_update="wait"), lengths),
            _simulated(replace(best.flow, on_update="abort"), lengths),
        ]
    together = replace(flow, generating=num_devices, learning=num_devices, in_turn=True)
    return Divisions(
        mean_length=sum(lengths) / len(lengths),
        longest=max(lengths),
        synchronous=_simulated(together, lengths),
        best=best,
        others=tuple(others),
    )


def _rate(found: FlowResult) -> str:
    return f"{found.steps_per_hour:,.0f}" if found.steps_per_hour >= 100 else f"{found.steps_per_hour:.3g}"


def _simulated(flow: Flow, lengths: Sequence[int], rows: int = MOST_ROWS) -> Simulated:
    """A run; if a step has more rows than `rows`, by a part of its engines with as many rows each."""
    part = max(1, min(flow.batch_rows // rows, flow.generating))
    simulated = replace(
        flow,
        generating=round(flow.generating / part),
        batch_rows=round(flow.batch_rows / part),
        row_seconds=flow.row_seconds * part,
    )
    return Simulated(flow=flow, outcome=simulate(simulated, lengths, num_steps=NUM_STEPS))


def _highest(candidates: Sequence[int], value: Callable[[int], float]) -> int:
    """The candidate with the highest value, if the values rise and then fall."""
    value = cache(value)
    while len(candidates) > 4:
        third = len(candidates) // 3
        if value(candidates[third]) < value(candidates[-third - 1]):
            candidates = candidates[third:]
        else:
            candidates = candidates[:-third]
    return max(candidates, key=value)
