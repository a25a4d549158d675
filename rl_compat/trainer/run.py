"""A whole run: steps, validation, checkpoints, and every way it can end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_compat.errors import RewardError, RLCompatError
from rl_compat.tracking.build import Trackers, build_trackers
from rl_compat.trainer.checkpoints import Found, prune, write_checkpoint
from rl_compat.trainer.interrupt import Interrupted, StopSignals
from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.recipe import Instruments, Measure, Measured, Recipe
from rl_compat.trainer.reporter import Reporter, Timer
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.state import RngState, RunState, load_run_state, save_run_state, seed_everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    step: int
    "the one that the newest checkpoint holds"
    measure: Measure
    curve: tuple[float, ...]
    "the measure of each step of this process"
    before: Measured | None
    after: Measured | None
    checkpoint: Path | None
    interrupted: Interrupted | None = None


class Run:
    """A run from its first or resumed step to its end, whatever is trained."""

    def __init__(self, method: Recipe[Any], *, resumed: Found, reporter: Reporter) -> None:
        self.method = method
        self.config = method.setup.config
        self.order = method.order
        self.folder = RunFolder(Path(self.config.trainer.output_dir))
        self.reporter = reporter
        self.resumed = resumed
        self.timer = Timer(reporter)
        self.memory = PhaseMemory(method.setup.plan.pool_of("actor"))
        self.signals = StopSignals(reporter.say)
        self.started = time.monotonic()
        self.elapsed_before = 0.0
        self.curve: list[float] = []
        self.saved_step = resumed.step
        self.saved = resumed.path
        self.before: Measured | None = None
        self.after: Measured | None = None
        self.updating = False
        "the weights are between two steps"
        self.trackers: Trackers
        self.boundary: RunState

    def run(self) -> Outcome:
        """Train to the end, or until a signal; either way the newest step is in a checkpoint afterwards.

        A second signal stops at once: the newest checkpoint is then an earlier one.
        """
        with self._writing("the settings of the run"):
            lock = self.folder.lock()
        with closing(lock):
            return self._run_alone()

    def _run_alone(self) -> Outcome:
        trainer, setup = self.config.trainer, self.method.setup
        with self._writing("the settings of the run"):
            self.folder.begin(self.config, setup.plan, setup.hardware)
        self.trackers = build_trackers(
            trainer.loggers,
            folder=self.folder.path,
            project=trainer.project,
            experiment=trainer.experiment or self.folder.path.name,
            resume_step=self.resumed.step,
            warn=lambda text: self.reporter.say(f"warning: {text}"),
        )
        interrupted = None
        try:
            with self.signals.installed():
                interrupted = self._run()
        except Interrupted as stop:
            interrupted = stop
        finally:
            self.trackers.close()
            self.method.close()
        return Outcome(
            step=self.saved_step,
            measure=self.method.measure,
            curve=tuple(self.curve),
            before=self.before,
            after=self.after,
            checkpoint=self.saved,
            interrupted=interrupted,
        )

    def _run(self) -> Interrupted | None:
        self._load()
        interrupted = None
        try:
            if self.config.trainer.validate_before and self.boundary.step == 0:
                self.before = self._validate(0)
            self._train()
            if self.config.trainer.validate_after and self.boundary.step > 0:
                self.after = self._validate(self.boundary.step)
        except Interrupted as stop:
            interrupted = stop
            self.reporter.say(f"{stop}: {self._what_becomes_of_the_step()}")
        except RewardError:
            self._save()
            raise
        if not self.updating:
            self._save()
        return interrupted

    def _what_becomes_of_the_step(self) -> str:
        if self.updating:
            return f"step {self.boundary.step + 1} is lost in the middle of its update"
        if self.boundary.step == self.saved_step:
            return f"step {self.saved_step} is saved already" if self.saved_step else "no step is done yet"
        return f"saving step {self.boundary.step}"

    def _train(self) -> None:
        trainer, total = self.config.trainer, self.method.total_steps
        while self.boundary.step < total and not self._out_of_time():
            step = self.boundary.step + 1
            self._step(step)
            if trainer.validate_every and step % trainer.validate_every == 0 and step < total:
                self._validate(step)
            if trainer.save_every and step % trainer.save_every == 0:
                self._save()

    def _step(self, step: int) -> None:
        """One step with its record. The first signal waits from the first changed weight to the end of the record."""
        self.reporter.phase("step", done=step - 1, total=self.method.total_steps)
        started = time.perf_counter()
        collected = self.method.collect(next(self.order), step=step)
        with self.signals.protected(f"step {step}"):
            metrics = self._learn(step, collected)
            seconds = self.timer.take() | {"step": time.perf_counter() - started}
            self._record(step, collected, metrics | self.method.describe(collected, seconds))

    def _learn(self, step: int, collected: object) -> dict[str, float]:
        """Update the models and move the boundary."""
        self.updating = True
        metrics = self.method.learn(collected, step=step)
        self.boundary = self._state(step)
        self.updating = False
        return metrics

    def _record(self, step: int, collected: object, metrics: dict[str, float]) -> None:
        """Write the step's metrics and samples, and say what the method noticed."""
        metrics |= self.memory.metrics()
        metrics["training/global_step"] = float(step)
        metrics["training/epoch"] = float(self.order.position[0])
        self.curve.append(metrics.get(self.method.measure.metric, math.nan))
        with self._writing(f"step {step}"):
            self.folder.write_samples(step, self.method.samples(collected, self.config.trainer.num_sample_generations))
            self.trackers.log(step, metrics)
        self._say_notes()

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Turns the system's refusal to write into an error that names the folder."""
        try:
            yield
        except OSError as error:
            raise RLCompatError(
                f"{what} could not be written to `{self.folder.path}`: {(error.strerror or str(error)).lower()}",
                hint="checkpoints are untouched; free some space and start again",
            ) from error

    def _validate(self, step: int) -> Measured | None:
        """Measure on held-out data and log what was found, under the step's number; None without such data."""
        found = self.method.validate()
        if found is None:
            return None
        seconds = self.timer.take()["testing"]
        for sentence in found.headline:
            self.reporter.say(f"step {step} {sentence}")
        with self._writing(f"the validation of step {step}"):
            self.trackers.log(step, found.metrics() | {"timing_s/testing": seconds})
        return found

    def _load(self) -> None:
        """The models, as they were at the start or at the resumed step."""
        checkpoint = self.resumed.path
        state = None if checkpoint is None else load_run_state(checkpoint)
        if state is not None:
            self.order.load_state_dict(state.order)
        seed_everything(self.config.trainer.seed)
        instruments = Instruments(reporter=self.reporter, timer=self.timer, memory=self.memory)
        self.method.load(instruments, step=0 if state is None else state.step)
        self.timer.take()
        self._say_notes()
        if checkpoint is None or state is None:
            self.boundary = self._state(0)
        else:
            self._resume(state, checkpoint)

    def _resume(self, state: RunState, checkpoint: Path) -> None:
        self.reporter.phase("loading the checkpoint")
        self.method.restore(checkpoint, policy_version=state.policy_version)
        self.method.load_state_dict(state.method)
        state.rng.restore()
        self.elapsed_before = state.elapsed_seconds
        self.boundary = state
        self.folder.forget_samples_after(state.step)
        self.reporter.say(f"resumed at step {state.step} from `{checkpoint}`")
        total = self.method.total_optimizer_steps
        if self.config.optimizer.schedule != "constant" and state.total_optimizer_steps != total:
            self.reporter.say(
                f"warning: the schedule was made for {state.total_optimizer_steps} optimizer steps and now runs over "
                f"{total}: the learning rate continues at this step of the new schedule, without a new warm-up"
            )

    def _state(self, step: int) -> RunState:
        return RunState(
            step=step,
            policy_version=step,
            elapsed_seconds=self._elapsed(),
            total_optimizer_steps=self.method.total_optimizer_steps,
            order=self.order.state_dict(),
            method=self.method.state_dict(),
            rng=RngState.take(),
        )

    def _save(self) -> None:
        """Checkpoint the boundary, once per step, and prune older ones."""
        step = self.boundary.step
        if step == self.saved_step:
            return

        def write(folder: Path) -> None:
            for name, save in self.method.savers().items():
                (folder / name).mkdir()
                save(folder / name)
            save_run_state(self.boundary, folder)

        self.reporter.phase(f"saving step {step}")
        self.saved = write_checkpoint(self.folder.checkpoints, step, write)
        self.saved_step = step
        prune(self.folder.checkpoints, self.config.trainer.keep_checkpoints)

    def _say_notes(self) -> None:
        """Say what the method noticed since the last time."""
        for note in self.method.take_notes():
            self.reporter.say(f"warning: {note}")

    def _elapsed(self) -> float:
        return self.elapsed_before + time.monotonic() - self.started

    def _out_of_time(self) -> bool:
        limit = self.config.trainer.max_seconds
        return limit is not None and time.monotonic() - self.started >= limit
