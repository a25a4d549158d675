"""A whole run: steps, validation, checkpoints, and every way it can end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl_compat.algorithms.kl import KLController
from rl_compat.data.order import PromptOrder
from rl_compat.errors import RewardError, RLCompatError
from rl_compat.tracking.build import Trackers, build_trackers
from rl_compat.trainer.build import (
    Prepared,
    build_roles,
    kl_controller,
    step_settings,
)
from rl_compat.trainer.checkpoints import Found, prune, write_checkpoint
from rl_compat.trainer.interrupt import Interrupted, StopSignals
from rl_compat.trainer.loop import Collected, Roles, collect, learn
from rl_compat.trainer.memory import PhaseMemory
from rl_compat.trainer.metrics import data_metrics, mismatch_metrics, timing_metrics
from rl_compat.trainer.reporter import Reporter, Timer
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.trainer.state import RngState, RunState, load_run_state, save_run_state, seed_everything
from rl_compat.trainer.validate import Validation, validate
from rl_compat.workers.actor import ActorWorker
from rl_compat.workers.critic import CriticWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    step: int
    "the one that the newest checkpoint holds"
    rewards: tuple[float, ...]
    "mean reward of each step of this process"
    before: Validation | None
    after: Validation | None
    checkpoint: Path | None
    interrupted: Interrupted | None = None


class Run:
    """A run from its first or resumed step to its end."""

    def __init__(self, prepared: Prepared, *, resumed: Found, reporter: Reporter) -> None:
        self.prepared = prepared
        self.config = prepared.setup.config
        self.folder = RunFolder(Path(self.config.trainer.output_dir))
        self.reporter = reporter
        self.resumed = resumed
        self.order: PromptOrder = prepared.order
        self.kl: KLController = kl_controller(self.config.algorithm)
        self.timer = Timer(reporter)
        self.signals = StopSignals(reporter.say)
        self.started = time.monotonic()
        self.elapsed_before = 0.0
        self.rewards: list[float] = []
        self.saved_step = resumed.step
        self.saved = resumed.path
        self.before: Validation | None = None
        self.after: Validation | None = None
        self.updating = False
        "the weights are between two steps"
        self.roles: Roles
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
        trainer = self.config.trainer
        with self._writing("the settings of the run"):
            self.folder.begin(self.config, self.prepared.plan, self.prepared.setup.hardware)
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
            self.prepared.reward.close()
        return Outcome(
            step=self.saved_step,
            rewards=tuple(self.rewards),
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
        trainer, total = self.config.trainer, self.prepared.total_steps
        while self.boundary.step < total and not self._out_of_time():
            step = self.boundary.step + 1
            self._step(step)
            if trainer.validate_every and step % trainer.validate_every == 0 and step < total:
                self._validate(step)
            if trainer.save_every and step % trainer.save_every == 0:
                self._save()

    def _step(self, step: int) -> None:
        """One step with its record. The first signal waits from the first changed weight to the end of the record."""
        config = self.config
        self.reporter.phase("step", done=step - 1, total=self.prepared.total_steps)
        prompts = [self.prepared.prompts[row] for row in next(self.order)]
        started = time.perf_counter()
        collected = collect(
            self.roles,
            prompts,
            step_settings(config),
            kl_coef=self.kl.coef,
            seed=config.rollout.seed * 1_000_003 + step,
            timer=self.timer,
            memory=self.memory,
        )
        with self.signals.protected(f"step {step}"):
            metrics = self._learn(step, collected)
            seconds = self.timer.take() | {"step": time.perf_counter() - started}
            self._record(step, collected, metrics, seconds)

    def _learn(self, step: int, collected: Collected) -> dict[str, float]:
        """Update the models and move the boundary."""
        self.updating = True
        metrics = learn(
            self.roles,
            collected.experience,
            update_actor=step > self.config.algorithm.critic_warmup_steps,
            seed=self.config.trainer.seed * 1_000_003 + step,
            timer=self.timer,
            memory=self.memory,
        )
        metrics |= self._kl_metrics(collected)
        self.boundary = self._state(step)
        self.updating = False
        return metrics

    def _record(self, step: int, collected: Collected, metrics: dict[str, float], seconds: dict[str, float]) -> None:
        """Write the step's metrics and samples, and say what its roles noticed."""
        batch = collected.experience.batch
        metrics |= (
            data_metrics(batch, scored=collected.experience.scored)
            | mismatch_metrics(batch)
            | dict(collected.scores.metrics)
            | timing_metrics(seconds, batch)
            | self.memory.metrics()
        )
        metrics["training/global_step"] = float(step)
        metrics["training/epoch"] = float(self.order.position[0])
        self.rewards.append(metrics.get("critic/score/mean", math.nan))
        count = self.config.trainer.num_sample_generations
        with self._writing(f"step {step}"):
            self.folder.write_samples(step, collected.sequences, collected.scores.rewards, count)
            self.trackers.log(step, metrics)
        self._say_notes(collected.scores.notes)

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

    def _kl_metrics(self, collected: Collected) -> dict[str, float]:
        """Move the KL controller and say where it stood."""
        if self.config.algorithm.kl_in_reward == "none":
            return {}
        coef, kl = self.kl.coef, collected.experience.reward_kl
        self.kl.update(kl=kl, num_sequences=len(collected.sequences))
        return {"actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": coef}

    def _validate(self, step: int) -> Validation | None:
        """Test the actor and log what was found, under the step's number; None without held-out prompts."""
        trainer = self.config.trainer
        prompts = self.prepared.validation_prompts
        if not prompts:
            return None
        with self.timer("testing", items=len(prompts)) as on_progress:
            found = validate(
                self.roles.actor,
                self.roles.reward,
                prompts,
                max_new_tokens=self.config.data.max_response_length,
                temperature=trainer.validation_temperature,
                seed=trainer.seed,
                on_progress=on_progress,
            )
        seconds = self.timer.take()["testing"]
        for accuracy in found.headline:
            self.reporter.say(f"step {step} {accuracy}")
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
        self.roles = build_roles(self.prepared, self.reporter)
        self.memory = PhaseMemory(self.prepared.plan)
        self._say_notes()
        if checkpoint is None or state is None:
            self.boundary = self._state(0)
        else:
            self._resume(state, checkpoint)

    def _resume(self, state: RunState, checkpoint: Path) -> None:
        self.reporter.phase("loading the checkpoint")
        actor, critic = self.roles.actor, self.roles.critic
        actor.group.run(
            ActorWorker.load_state, folder=checkpoint / "actor", policy_version=state.policy_version
        ).result()
        if critic is not None:
            critic.group.run(CriticWorker.load_state, folder=checkpoint / "critic").result()
        self.kl.load_state_dict(state.kl)
        state.rng.restore()
        self.elapsed_before = state.elapsed_seconds
        self.boundary = state
        self.folder.forget_samples_after(state.step)
        self.reporter.say(f"resumed at step {state.step} from `{checkpoint}`")
        total = self.prepared.total_optimizer_steps
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
            total_optimizer_steps=self.prepared.total_optimizer_steps,
            order=self.order.state_dict(),
            kl=dict(self.kl.state_dict()),
            rng=RngState.take(),
        )

    def _save(self) -> None:
        """Checkpoint the boundary, once per step, and prune older ones."""
        step = self.boundary.step
        if step == self.saved_step:
            return

        def write(folder: Path) -> None:
            for name, save in self._savers():
                (folder / name).mkdir()
                save(folder / name)
            save_run_state(self.boundary, folder)

        self.reporter.phase(f"saving step {step}")
        self.saved = write_checkpoint(self.folder.checkpoints, step, write)
        self.saved_step = step
        prune(self.folder.checkpoints, self.config.trainer.keep_checkpoints)

    def _savers(self) -> list[tuple[str, Callable[[Path], None]]]:
        actor, critic = self.roles.actor.group, None if self.roles.critic is None else self.roles.critic.group
        savers: list[tuple[str, Callable[[Path], None]]] = [
            ("actor", lambda folder: actor.run(ActorWorker.save_state, folder=folder).result())
        ]
        if critic is not None:
            savers.append(("critic", lambda folder: critic.run(CriticWorker.save_state, folder=folder).result()))
        return savers

    def _say_notes(self, more: Sequence[str] = ()) -> None:
        """Say what the roles noticed since the last time, after what others did."""
        notes = list(more)
        notes += self.roles.actor.group.run(ActorWorker.take_notes).result()
        if self.roles.critic is not None:
            notes += self.roles.critic.group.run(CriticWorker.take_notes).result()
        for note in notes:
            self.reporter.say(f"warning: {note}")

    def _elapsed(self) -> float:
        return self.elapsed_before + time.monotonic() - self.started

    def _out_of_time(self) -> bool:
        limit = self.config.trainer.max_seconds
        return limit is not None and time.monotonic() - self.started >= limit
