"""A discrete-event model of a run: engines that generate, and a learner that waits for them and they for it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from rl_compat.config.types import OnUpdate
from rl_compat.errors import UsageError

if TYPE_CHECKING:
    from simpy import Environment, Event

Events = Generator["Event", Any, None]

WARM_UP = 0.25
"of the steps, which the rates leave out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A run: what its devices do, and how long that takes. Rows are trained in the order in which they start."""

    generating: int = 1
    "devices, each with an engine"
    learning: int = 1
    "devices"
    in_turn: bool = False
    "the same devices generate and learn"
    max_staleness: int = 0
    on_update: OnUpdate
    "what unfinished responses do when new weights arrive; with `wait`, a step starts when the one before is generated"
    batch_rows: int
    "responses of a step"
    num_slots: int
    "sequences that a device generates at the same time"
    decode_seconds: float
    "of one token of all sequences of a device"
    sequence_seconds: float = 0.0
    "in addition, for each of them"
    prefill_seconds: float = 0.0
    "of a prompt, in which its device decodes nothing"
    reward_seconds: float = 0.0
    "of a response; rewards are computed side by side"
    row_seconds: float = 0.0
    "of learning from a response of mean length on one device"
    step_seconds: float = 0.0
    "of learning, in addition, on any number of devices"
    handover_seconds: float = 0.0
    "between devices, which do nothing else meanwhile"
    num_shards: int = 1
    "devices that hold the weights that learn together: a multiple of them learns"
    source: str = "given"
    "of the times"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    """What a simulated run did. All but `seconds` leave out the warm-up."""

    seconds: float
    "of all steps"
    steps_per_hour: float
    generating: float
    "share of the time in which an engine has a sequence, mean of all engines"
    slots_filled: float
    "share of the slots that hold a sequence, mean over the time"
    learning: float
    "share of the time in which the learner computes"
    mean_staleness: float
    "trained version minus the oldest version in a row"
    max_staleness: int
    tokens_lost: float
    "share of the generated tokens that aborts throw away"


def simulate(flow: Flow, lengths: Sequence[int], *, num_steps: int) -> FlowResult:
    """Train `num_steps` steps. Row `i` has `lengths[i]` tokens and starts at version `i // batch_rows - S` or later.

    `lengths` is repeated as often as needed. Raises UsageError if simpy is not installed.
    """
    try:
        from simpy import Environment
    except ImportError as error:
        raise UsageError(
            "a simulation needs the package `simpy`, which is not installed", hint="pip install 'rl_compat[cluster]'"
        ) from error

    return _Simulation(Environment(), flow, lengths, num_steps).run()


@dataclass(slots=True)
class _Totals:
    """Sums since the warm-up."""

    since: float = 0.0
    generating: float = 0.0
    filled: float = 0.0
    learning: float = 0.0
    staleness: int = 0
    max_staleness: int = 0
    rows: int = 0
    tokens: float = 0.0
    lost: float = 0.0


class _Simulation:
    """The learner, and which row starts where."""

    def __init__(self, environment: Environment, flow: Flow, lengths: Sequence[int], num_steps: int) -> None:
        self.environment, self.flow, self.num_steps, self._lengths = environment, flow, num_steps, lengths
        self.totals = _Totals()
        self._version = 0
        self._handing_over = False
        "no row starts"
        self._next_row = 0
        self._aborted: list[int] = []
        "rows that start again, a heap"
        self._versions: dict[int, int] = {}
        "at the start of each row that is not trained yet"
        self._unfinished = [flow.batch_rows] * num_steps
        self._finished = [environment.event() for _ in range(num_steps)]
        self._handover_seconds = 0.0 if flow.in_turn else flow.handover_seconds
        self._engines = [_Engine(self) for _ in range(flow.generating)]

    def run(self) -> FlowResult:
        self._start_rows()
        self.environment.run(until=self.environment.process(self._learn()))
        self._advance()
        totals, engines, now = self.totals, self.flow.generating, self.environment.now
        seconds = now - totals.since
        return FlowResult(
            seconds=now,
            steps_per_hour=3600 * totals.rows / self.flow.batch_rows / seconds,
            generating=totals.generating / seconds / engines,
            slots_filled=totals.filled / seconds / engines / self.flow.num_slots,
            learning=totals.learning / seconds,
            mean_staleness=totals.staleness / totals.rows,
            max_staleness=totals.max_staleness,
            tokens_lost=totals.lost / max(1.0, totals.tokens + totals.lost),
        )

    def _learn(self) -> Events:
        flow, wait = self.flow, self.environment.timeout
        mean_tokens = flow.batch_rows * sum(self._lengths) / len(self._lengths)
        for step in range(self.num_steps):
            if step == int(self.num_steps * WARM_UP):
                self._advance()
                self.totals = _Totals(since=self.environment.now)
            yield self._finished[step]
            yield wait(flow.reward_seconds)
            rows = range(step * flow.batch_rows, (step + 1) * flow.batch_rows)
            self._count([self._version - self._versions.pop(row) for row in rows])
            on_one = flow.row_seconds * flow.batch_rows * sum(map(self.length, rows)) / mean_tokens
            seconds = on_one / flow.learning + flow.step_seconds
            yield wait(seconds)
            self.totals.learning += seconds
            yield from self._hand_over()

    def _count(self, staleness: Sequence[int]) -> None:
        self.totals.rows += len(staleness)
        self.totals.staleness += sum(staleness)
        self.totals.max_staleness = max(self.totals.max_staleness, *staleness)

    def _hand_over(self) -> Events:
        """Give the engines the weights of the next version; with `wait` they take them when they begin a step."""
        self._handing_over = self.flow.on_update != "wait"
        if self._handing_over:
            self._advance()
            for engine in self._engines:
                if self.flow.on_update == "abort":
                    self._abort(engine)
                engine.stall += self._handover_seconds if engine.running else 0.0
                engine.wake()
        yield self.environment.timeout(self._handover_seconds)
        self._version += 1
        self._handing_over = False
        self._start_rows()

    def _abort(self, engine: _Engine) -> None:
        for end, row in engine.running:
            self.totals.lost += self.length(row) - (end - engine.decodes)
            heappush(self._aborted, row)
        engine.running.clear()
        engine.stall = 0.0

    def _advance(self) -> None:
        for engine in self._engines:
            engine.advance()

    def _start_rows(self) -> None:
        """Start rows on the engines with the fewest sequences."""
        slots = self.flow.num_slots
        free = [(len(engine.running), n) for n, engine in enumerate(self._engines) if len(engine.running) < slots]
        heapify(free)
        started = set()
        while free and (row := self.take_row()) is not None:
            running, number = heappop(free)
            engine = self._engines[number]
            if number not in started:
                engine.advance()
                engine.stall += self._handover_seconds if self.flow.on_update == "wait" and self._version else 0.0
                started.add(number)
            engine.start(row)
            if running + 1 < slots:
                heappush(free, (running + 1, number))
        for number in sorted(started):
            self._engines[number].wake()

    def take_row(self) -> int | None:
        """The row that starts now; None if all have to wait."""
        waits, step = self.flow.on_update == "wait", self._next_row // self.flow.batch_rows
        if self._handing_over:
            return None
        if self._aborted:
            row = heappop(self._aborted)
        elif step - self.flow.max_staleness > self._version or (waits and not self._is_generated(step - 1)):
            return None
        else:
            row, self._next_row = self._next_row, self._next_row + 1
        first = row - row % self.flow.batch_rows if waits else row
        self._versions[row] = self._versions.get(first, self._version)
        return row

    def _is_generated(self, step: int) -> bool:
        return step < 0 or (step < self.num_steps and self._finished[step].processed)

    def finish(self, row: int) -> None:
        self.totals.tokens += self.length(row)
        step = row // self.flow.batch_rows
        if step < self.num_steps:
            self._unfinished[step] -= 1
            if not self._unfinished[step]:
                self._finished[step].succeed()
                if self.flow.on_update == "wait":
                    self._finished[step].callbacks.append(lambda _: self._start_rows())

    def length(self, row: int) -> int:
        return self._lengths[row % len(self._lengths)]


class _Engine:
    """Continuous batching: every decode gives each sequence a token, and a free slot takes the next row at once."""

    def __init__(self, simulation: _Simulation) -> None:
        self.running: list[tuple[float, int]] = []
        "the decode that ends a row, and the row: a heap"
        self.decodes = 0.0
        "so far; the sequences of the engine share them"
        self.stall = 0.0
        "seconds until the next decode begins"
        self._since = 0.0
        self._simulation = simulation
        self._process = simulation.environment.process(self._generate())

    def start(self, row: int) -> None:
        heappush(self.running, (self.decodes + self._simulation.length(row), row))
        self.stall += self._simulation.flow.prefill_seconds

    def wake(self) -> None:
        """Look again at what is running."""
        self._process.interrupt()

    def advance(self) -> None:
        """Account for the time since the last call."""
        now, totals, running = self._simulation.environment.now, self._simulation.totals, len(self.running)
        elapsed, self._since = now - self._since, now
        if running and elapsed:
            totals.generating += elapsed
            totals.filled += elapsed * running
            stalled = min(self.stall, elapsed)
            self.stall -= stalled
            self.decodes += (elapsed - stalled) / self._decode_seconds

    @property
    def _decode_seconds(self) -> float:
        flow = self._simulation.flow
        return flow.decode_seconds + flow.sequence_seconds * len(self.running)

    def _generate(self) -> Events:
        from simpy import Interrupt

        simulation, slots = self._simulation, self._simulation.flow.num_slots
        while True:
            try:
                if self.running:
                    left = self.running[0][0] - self.decodes
                    yield simulation.environment.timeout(self.stall + max(0.0, left) * self._decode_seconds)
                else:
                    yield simulation.environment.event()
            except Interrupt:
                continue
            self.advance()
            self.decodes = max(self.decodes, self.running[0][0])
            while self.running and self.running[0][0] <= self.decodes:
                simulation.finish(heappop(self.running)[1])
            while len(self.running) < slots and (row := simulation.take_row()) is not None:
                self.start(row)
