"""A whole run: steps, validation, checkpoints, and how it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from rl_compat.errors import (
    ConfigError,
    DamagedCheckpointError,
    DataError,
    NotFiniteError,
    RLCompatError,
    WorkerError,
    quoted,
    write_failure,
)
from rl_compat.tracking.build import Trackers, build_trackers
from rl_compat.tracking.jsonl import forget_after
from rl_compat.tracking.timeline import STEP, append_spans
from rl_compat.tracking.types import Destination
from rl_compat.trainer.callbacks import Callback
from rl_compat.trainer.checkpoints import FoundCheckpoint, find_newest, prune, set_aside, write_checkpoint
from rl_compat.trainer.draws import DrawnPart, DrawnRows, Position, Rows, parts_of
from rl_compat.trainer.flow import Buffer, DataFlow, Stage, ahead
from rl_compat.trainer.interrupt import Interrupted, StopSignals
from rl_compat.trainer.phases import Phases, pool_metrics, take_spans
from rl_compat.trainer.recipe import Measure, Measured, Recipe
from rl_compat.trainer.reporter import Reporter
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.state import RngState, RunState, load_run_state, save_run_state, seed_everything
from rl_compat.units import format_bytes
from rl_compat.workers.trained import TrainedWorker

Ending = Literal["finished", "out of time", "stopped by a callback", "interrupted", "nothing to do"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    ending: Ending
    "`nothing to do` is a run whose checkpoint has all its steps"
    step: int
    "the step of the newest checkpoint"
    total_steps: int
    measure: Measure
    curve: tuple[float, ...]
    "the measure of each step of this process"
    before: Measured | None
    "the validation before the first step"
    after: Measured | None
    "the validation after the last step"
    checkpoint: Path | None
    interrupted: Interrupted | None = None


class Run:
    """A run of any recipe, from its first or resumed step to its end."""

    def __init__(
        self,
        recipe: Recipe[Any, Any],
        *,
        resumed: FoundCheckpoint,
        reporter: Reporter,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.recipe = recipe
        self.prepared = recipe.prepared
        self.config = self.prepared.setup.config
        self.order = self.prepared.order
        self.rows = Rows(self.order)
        self.folder = RunFolder(Path(self.config.trainer.output_dir))
        self.reporter = reporter
        self.resumed = resumed
        self.callbacks = callbacks
        self.phases = Phases.of_setup(self.prepared.setup, reporter)
        self.signals = StopSignals(reporter.say)
        self.started = time.monotonic()
        self.elapsed_before = 0.0
        self.flow = DataFlow()
        self.step_started = 0.0
        self.curve: list[float] = []
        self.saved_step = resumed.step
        self.saved = resumed.path
        self.before: Measured | None = None
        self.after: Measured | None = None
        self.stopped = False
        "a callback requested the end of the run"
        self.updating = False
        "the update has begun to change weights"
        self.trackers: Trackers
        self.boundary: RunState

    def run(self) -> RunOutcome:
        """Train to the end or until a signal.

        Afterwards the newest finished step is in a checkpoint, even if the run ends with an error. A second signal
        stops immediately; the newest checkpoint is then an earlier one.
        """
        with self._writing("the settings of the run"):
            lock = self.folder.lock()
        with closing(lock):
            return self._run_alone()

    def _run_alone(self) -> RunOutcome:
        setup = self.prepared.setup
        interrupted = None
        ending: Ending = "interrupted"
        with ExitStack() as closers:
            closers.callback(self.recipe.close)
            with self._writing("the settings of the run"):
                kept = self.folder.start_again() if self.resumed.path is None else []
                self.folder.begin(self.config, setup.plan, setup.hardware)
            for note in kept:
                self.reporter.say(f"warning: {note}")
            self.trackers = self._open_trackers()
            closers.callback(lambda: self.trackers.close())
            try:
                with self.signals.installed():
                    ending = self._run()
            except Interrupted as stop:
                interrupted = stop
        return RunOutcome(
            ending=ending,
            step=self.saved_step,
            total_steps=self.prepared.total_steps,
            measure=self.recipe.measure,
            curve=tuple(self.curve),
            before=self.before,
            after=self.after,
            checkpoint=self.saved,
            interrupted=interrupted,
        )

    def _open_trackers(self) -> Trackers:
        trainer = self.config.trainer
        destination = Destination(
            folder=self.folder.path,
            project=trainer.project,
            experiment=trainer.experiment or self.folder.path.name,
            resume_step=self.resumed.step,
            warn=lambda text: self.reporter.say(f"warning: {text}"),
        )
        return build_trackers(trainer.loggers, destination)

    def _run(self) -> Ending:
        self._load()
        total, trainer = self.prepared.total_steps, self.config.trainer
        nothing_to_do = 0 < total <= self.boundary.step
        try:
            if trainer.validate_before and self.boundary.step == 0:
                self.before = self._validate(0)
            elif not self.folder.has_validation(self.boundary.step):
                self._validate_within(self.boundary.step)
            self._train()
            self._save()
            step = self.boundary.step
            if trainer.validate_after and step > 0 and not (nothing_to_do and self.folder.has_validation(step)):
                self.after = self._validate(step)
            self._write_timeline(step)
        except Interrupted as stop:
            self.reporter.say(f"{stop}: {self._fate_of_the_step()}")
            if not self.updating:
                self._save()
            raise
        except BaseException as error:
            self._save_despite(error)
            if isinstance(error, NotFiniteError):
                raise self._located(error) from error
            raise
        if nothing_to_do:
            return "nothing to do"
        if self.boundary.step >= total:
            return "finished"
        return "stopped by a callback" if self.stopped else "out of time"

    def _located(self, error: NotFiniteError) -> NotFiniteError:
        """The error with the newest finished step and the checkpoint to go back to, which is finite."""
        kept = "there is no checkpoint" if self.saved is None else f"the newest checkpoint is `{self.saved}`"
        return NotFiniteError(f"after step {self.boundary.step}: {error.message}", hint=f"{error.hint}; {kept}")

    def _fate_of_the_step(self) -> str:
        if self.updating:
            return f"step {self.boundary.step + 1} was interrupted during its update and is repeated on resume"
        if self.boundary.step == self.saved_step:
            return f"step {self.saved_step} is already saved" if self.saved_step else "no step is finished yet"
        return f"saving step {self.boundary.step}"

    def _save_despite(self, error: BaseException) -> None:
        """Checkpoint the newest finished step before `error` ends the run; a failure to do so is noted on `error`."""
        step = self.boundary.step
        if isinstance(error, WorkerError) and step != self.saved_step:
            self.reporter.say(f"{error.message.splitlines()[0]}: saving step {step}")
        try:
            if self.updating and step != self.saved_step:
                self._put_back()
            self._save()
        except Exception as failure:
            note = f"step {step} could not be saved: {failure}"
            error.add_note(note)
            self.reporter.say(f"warning: {note}")

    def _train(self) -> None:
        rollout, learner = Stage(self._sample, name="rollout", calls=self.recipe.calls), Stage(self._step)
        buffer = Buffer(load=attrgetter("load"), drops=self.config.trainer.on_stale == "drop")
        self.flow.connect(rollout >> buffer >> learner, staleness=self.recipe.staleness)
        self.flow.run(ahead(self._draws()) if self._draws_whole_steps else self._draws(), goes_on=self._begin_step)

    @property
    def _draws_whole_steps(self) -> bool:
        """Whether each step takes the rows of one draw, so that the next draw does not depend on it."""
        return not (self.config.trainer.draws_more or self.config.algorithm.dynamic_sampling)

    def _begin_step(self) -> bool:
        """Whether the run takes another step, which begins here."""
        step, total = self.boundary.step + 1, self.prepared.total_steps
        if step > total or self.stopped or self._out_of_time():
            return False
        self.reporter.phase("step", done=step - 1, total=total)
        self.step_started = time.perf_counter()
        return True

    def _draws(self) -> Iterator[DrawnRows]:
        steps = range(self.boundary.step, self.prepared.total_steps)
        for _ in count() if self.config.trainer.draws_more else steps:
            yield self.rows.draw(self.recipe.draw_size)

    def _sample(self, draw: DrawnRows) -> list[DrawnPart]:
        """The rollout of a draw. Where it may have taken further rows, nothing else has taken any since."""
        sampled = self.recipe.sample(draw.rows, draw=draw.number, more=self.rows.take)
        position = self.rows.position if self.config.algorithm.dynamic_sampling else draw.position
        return parts_of(draw, self.recipe.divide(sampled), position)

    def _step(self, parts: Sequence[DrawnPart]) -> None:
        """Run and record one step. The first signal waits from the first changed weight until the step is recorded."""
        step, trainer, position = self.boundary.step + 1, self.config.trainer, parts[-1].position
        dropped = [part.sampled for part in self.flow.dropped]
        saves = trainer.save_every > 0 and step % trainer.save_every == 0
        validates = trainer.validate_every > 0 and step % trainer.validate_every == 0
        with ExitStack() as protected:
            with self.recipe.learning():
                collected = self.recipe.collect([part.sampled for part in parts], dropped=dropped, step=step)
                protected.enter_context(self.signals.protected(f"step {step}"))
                metrics = self._learn(step, collected, position)
            metrics["training/epoch"] = float(position.epoch)
            seconds = self._seconds()
            metrics |= self._waits(seconds) | self.phases.memory.take_metrics()
            if not (saves or validates or self.callbacks):
                self.flow.advance()
            self._record(step, collected, metrics | self.recipe.describe(collected, seconds))
        self.phases.timer.record(STEP, start=time.time() - time.perf_counter() + self.step_started, step=step)
        if saves:
            self._save()
        self._validate_within(step)
        self._write_timeline(step)

    def _seconds(self) -> dict[str, float]:
        """The times of the step by phase: `wait` is that in which it waited for the rollout."""
        waited, self.flow.wait_seconds = self.flow.wait_seconds, 0.0
        step = time.perf_counter() - self.step_started
        return self.phases.timer.take() | {"step": step, "wait": min(waited, step)}

    def _validate_within(self, step: int) -> None:
        """Validate after a step, where `trainer.validate_every` says so and it is not the last one."""
        every = self.config.trainer.validate_every
        if every and 0 < step < self.prepared.total_steps and step % every == 0:
            self._validate(step)

    def _waits(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """How long the learner waited for the rollout, where they work at the same time."""
        if self.recipe.staleness == 0 or self.config.trainer.flow == "sync":
            return {}
        return {"async/wait_seconds": seconds["wait"], "async/idle_share": seconds["wait"] / seconds["step"]}

    def _learn(self, step: int, collected: object, position: Position) -> dict[str, float]:
        """Update the models and advance the boundary."""
        self._mark()
        self.updating = True
        metrics = self.recipe.learn(collected, step=step)
        self.boundary = self._state(step, position)
        self.updating = False
        return metrics

    def _mark(self) -> None:
        """Make the boundary restorable after an error in the update, unless a checkpoint has it.

        Models are copied, except to a host where the only optimizer step is the last thing that can fail.
        """
        if self.boundary.step == self.saved_step:
            return
        place = self.prepared.place_of_copies
        changes_last = self.prepared.optimizer_steps_per_step == 1 and len(self.recipe.trained) == 1
        with self.phases.timer("keep"):
            for group in self.recipe.trained.values():
                if place is None or (place == "host" and changes_last):
                    group.run(TrainedWorker.mark_state).result()
                else:
                    group.run(TrainedWorker.keep_state, place=place).result()

    def _put_back(self) -> None:
        for group in self.recipe.trained.values():
            group.run(TrainedWorker.put_back_state).result()
        self.updating = False

    def _record(self, step: int, collected: object, metrics: dict[str, float]) -> None:
        """Write the metrics and samples of the step, and report the recipe's notes."""
        metrics |= pool_metrics(self.prepared.setup.pools)
        metrics["training/global_step"] = float(step)
        self.curve.append(metrics.get(self.recipe.measure.metric, math.nan))
        with self._writing(f"step {step}"):
            self.folder.write_samples(step, self.recipe.samples(collected, self.config.trainer.num_sample_generations))
            self.trackers.log(step, metrics)
        self._say_notes()
        for callback in self.callbacks:
            self.stopped = callback.on_step(step, metrics) is False or self.stopped

    def _write_timeline(self, step: int) -> None:
        with self._writing(f"the timeline of step {step}"):
            append_spans(self.folder.timeline, take_spans(self.phases.timer, self.prepared.setup.pools, step=step))

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Convert an OSError into an error that names the folder."""
        try:
            yield
        except OSError as error:
            cause, remedy = write_failure(error)
            raise RLCompatError(f"{what} could not be written to `{self.folder.path}`: {cause}", hint=remedy) from error

    def _validate(self, step: int) -> Measured | None:
        """Evaluate on held-out data and log the result for the step; None without such data."""
        self.reporter.phase("step", done=step, total=self.prepared.total_steps)
        found = self.recipe.validate()
        if found is None:
            return None
        seconds = self.phases.timer.take()["testing"]
        peaks = {
            name: value for name, value in self.phases.memory.take_metrics().items() if name.startswith("memory_gb/")
        }
        metrics = found.metrics() | peaks | {"timing_s/testing": seconds}
        for sentence in found.headline:
            self.reporter.say(f"step {step} {sentence}")
        for note in found.notes:
            self.reporter.say(f"warning: {note}")
        with self._writing(f"the validation of step {step}"):
            self.trackers.log(step, metrics)
        for callback in self.callbacks:
            callback.on_validation(step, metrics)
        return found

    def _load(self) -> None:
        """Load the models of the first or resumed step."""
        if self.resumed.path is not None:
            self._restore_order(self.resumed.path)
        self._check_shared()
        seed_everything(self.config.trainer.seed)
        self.recipe.load(self.phases, step=self.resumed.step)
        self.phases.timer.take()
        self._say_notes()
        if self.config.trainer.save_every != 1 and self.prepared.place_of_copies is None:
            size = format_bytes(self.prepared.checkpoint_bytes)
            self.reporter.say(
                f"warning: memory has no room for a copy of the {size} that an update changes: an error in an "
                "update loses the steps since the last checkpoint; `trainer.save_every=1` loses none"
            )
        shared = sorted(name for name, role in self.prepared.setup.plan.roles.items() if role.num_shards > 1)
        if shared and self.config.trainer.save_every != 1:
            self.reporter.say(
                f"warning: processes share the weights of {quoted(shared)}: the end of one of them loses the steps "
                "since the last checkpoint; `trainer.save_every=1` loses none"
            )
        if self.resumed.path is None:
            self.boundary = self._state(0, self.rows.position)
        else:
            self._resume(self.resumed.path)

    def _check_shared(self) -> None:
        """Raise ConfigError if a node of the run has a folder of its own under the name of the run's."""
        token = self.folder.path / ".token"
        with self._writing("the settings of the run"):
            token.write_text(uuid4().hex)
        try:
            without = [node for pool in self.prepared.setup.pools.values() for node in pool.nodes_without(token)]
        finally:
            token.unlink()
        if without:
            raise ConfigError(
                f"the folder `{self.folder.path}` of this machine is not there on {quoted(dict.fromkeys(without))}",
                hint="set `trainer.output_dir` to a folder that all nodes share, on a network file system",
            )

    def _restore_order(self, checkpoint: Path) -> None:
        """Continue in the data where a checkpoint was. Raises DataError for changed rows, unless `data.on_change`."""
        try:
            state = load_run_state(checkpoint)
            self.order.load_state_dict(state.order)
            self.rows.pending, self.rows.num_draws = list(state.pending), state.num_draws
        except DataError as error:
            if self.config.data.on_change == "error":
                raise
            self.reporter.say(f"warning: {error.message}: the order of the rows starts at its first epoch")

    def _resume(self, checkpoint: Path) -> None:
        """Continue from a checkpoint, or from the newest older one where a file of it is damaged."""
        state = load_run_state(checkpoint)
        self.reporter.phase("loading the checkpoint")
        try:
            for name, group in self.recipe.trained.items():
                group.run(TrainedWorker.load_state, folder=checkpoint / name).result()
            self.recipe.load_files(checkpoint)
        except DamagedCheckpointError as damage:
            self._resume(self._go_back(checkpoint, damage))
            return
        self.recipe.load_state_dict(state.recipe)
        state.rng.restore()
        self.elapsed_before = state.elapsed_seconds
        self.boundary = state
        forget_after(state.step, self.folder.samples)
        forget_after(state.step, self.folder.timeline)
        self.reporter.say(f"resumed at step {state.step} from `{checkpoint}`")
        total = self.prepared.total_optimizer_steps
        if self.config.optimizer.schedule != "constant" and state.total_optimizer_steps != total:
            self.reporter.say(
                f"warning: the learning-rate schedule was made for {state.total_optimizer_steps} optimizer steps and "
                f"now spans {total}: it continues at this step of the new schedule, without a new warm-up"
            )

    def _go_back(self, checkpoint: Path, damage: DamagedCheckpointError) -> Path:
        """The newest complete checkpoint before a damaged one; the run's record returns to its step.

        Raises DamagedCheckpointError if there is none, or if the settings name the damaged one.
        """
        older = find_newest(checkpoint.parent, before=self.resumed.step)
        if older.path is None:
            hint = (
                f"no other checkpoint is left: to start from step 1, remove `{checkpoint.parent}` "
                "or set another `trainer.output_dir`"
            )
            raise DamagedCheckpointError(damage.message, hint=hint) from damage
        if Path(self.config.trainer.resume).expanduser().resolve() == checkpoint.resolve():
            own = checkpoint.parent.resolve() == self.folder.checkpoints.resolve()
            resume = "auto" if own else older.path
            hint = f"`trainer.resume={resume}` continues from the checkpoint before it, step {older.step}"
            raise DamagedCheckpointError(damage.message, hint=hint) from damage
        self.reporter.say(f"warning: {damage.message}: `{older.path.name}` is used instead")
        set_aside(checkpoint)
        self.resumed, self.saved, self.saved_step = older, older.path, older.step
        self._restore_order(older.path)
        self.recipe.start_earlier(older.step)
        self.trackers.close()
        self.trackers = self._open_trackers()
        return older.path

    def _state(self, step: int, position: Position) -> RunState:
        return RunState(
            step=step,
            elapsed_seconds=self._elapsed(),
            total_optimizer_steps=self.prepared.total_optimizer_steps,
            order=position.order,
            pending=position.pending,
            num_draws=position.num_draws,
            recipe=self.recipe.state_dict(),
            rng=RngState.take(),
        )

    def _save(self) -> None:
        """Checkpoint the boundary, once per step, and prune older ones. Raises NotFiniteError for broken weights."""
        step = self.boundary.step
        if step == self.saved_step:
            return
        groups = self.recipe.trained.items()
        broken = [name for name, group in groups if not group.run(TrainedWorker.is_finite).result()]
        if broken:
            hint = "use a smaller learning rate and resume from an earlier checkpoint"
            raise NotFiniteError(f"the weights of {quoted(broken)} are not finite and are not saved", hint=hint)

        def write(folder: Path) -> None:
            for name, group in self.recipe.trained.items():
                (folder / name).mkdir()
                group.run(TrainedWorker.save_state, folder=folder / name).result()
            self.recipe.save_files(folder)
            save_run_state(self.boundary, folder)

        self.reporter.phase(f"saving step {step}")
        with self.phases.timer.span("save"):
            self.saved = write_checkpoint(self.folder.checkpoints, step, write)
        self.saved_step = step
        with self._writing("the removal of older checkpoints"):
            prune(self.folder.checkpoints, self.config.trainer.keep_checkpoints)
        for callback in self.callbacks:
            callback.on_checkpoint(step, self.saved)

    def _say_notes(self) -> None:
        """Report the recipe's notes since the last call."""
        for note in self.recipe.take_notes():
            self.reporter.say(f"warning: {note}")

    def _elapsed(self) -> float:
        return self.elapsed_before + time.monotonic() - self.started

    def _out_of_time(self) -> bool:
        limit = self.config.trainer.max_seconds
        return limit is not None and time.monotonic() - self.started >= limit
