"""Reinforcement learning as a run sees it: generate, score, learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rl_compat.data.order import Order
from rl_compat.data.training import left_out
from rl_compat.trainer.build import Prepared, build_roles, kl_controller, step_settings
from rl_compat.trainer.loop import Collected, Roles, collect, learn
from rl_compat.trainer.method import Instruments, Measure
from rl_compat.trainer.metrics import data_metrics, mismatch_metrics, timing_metrics
from rl_compat.trainer.rows import Rows
from rl_compat.trainer.validate import Validation, validate
from rl_compat.trajectory import Prompt
from rl_compat.workers.actor import ActorWorker
from rl_compat.workers.critic import CriticWorker
from rl_compat.workers.setup import Setup


class Reinforcement:
    """The models of a prepared run, and the controller that goes with them."""

    measure = Measure(metric="critic/score/mean", title="mean reward", key="rewards")

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.config = prepared.setup.config
        self.kl = kl_controller(self.config.algorithm)
        self.more = Rows(prepared.order)
        self._notes: list[str] = []
        self.roles: Roles
        self.instruments: Instruments

    @property
    def setup(self) -> Setup:
        return self.prepared.setup

    @property
    def order(self) -> Order:
        return self.prepared.order

    @property
    def total_steps(self) -> int:
        return self.prepared.total_steps

    @property
    def total_optimizer_steps(self) -> int:
        return self.prepared.total_optimizer_steps

    @property
    def notes(self) -> tuple[str, ...]:
        return self.prepared.notes

    def summary(self) -> str:
        plan, config = self.prepared.plan, self.config
        return (
            f"{config.algorithm.name} on {plan.device_name} with profile `{plan.profile}`: "
            f"{plan.roles['actor'].compute_dtype} training, {plan.rollout.compute_dtype} rollout by "
            f"`{plan.rollout.engine}`, {self.total_steps} steps of {config.trainer.batch_size} prompts x "
            f"{config.algorithm.group_size}"
        )

    def load(self, instruments: Instruments) -> None:
        self.instruments = instruments
        self.roles = build_roles(self.prepared, instruments.reporter)

    def collect(self, rows: Sequence[int], *, step: int) -> Collected:
        """A step on these rows, and on further ones of the order where prompts are replaced."""
        return collect(
            self.roles,
            self._prompts(rows),
            step_settings(self.config),
            more=lambda count: self._prompts(self.more.take(count)),
            kl_coef=self.kl.coef,
            seed=self.config.rollout.seed * 1_000_003 + step,
            timer=self.instruments.timer,
            memory=self.instruments.memory,
        )

    def _prompts(self, rows: Sequence[int]) -> list[Prompt]:
        return [self.prepared.prompts[row] for row in rows]

    def learn(self, collected: Collected, *, step: int) -> dict[str, float]:
        """Update the models, then the KL controller."""
        metrics = learn(
            self.roles,
            collected.experience,
            update_actor=step > self.config.algorithm.critic_warmup_steps,
            seed=self.config.trainer.seed * 1_000_003 + step,
            timer=self.instruments.timer,
            memory=self.instruments.memory,
        )
        self._notes += collected.scores.notes
        return metrics | self._kl_metrics(collected)

    def _kl_metrics(self, collected: Collected) -> dict[str, float]:
        """Move the KL controller and say where it stood."""
        if self.config.algorithm.kl_in_reward == "none":
            return {}
        coef, kl = self.kl.coef, collected.experience.reward_kl
        self.kl.update(kl=kl, num_sequences=len(collected.sequences))
        return {"actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": coef}

    def describe(self, collected: Collected, seconds: Mapping[str, float]) -> dict[str, float]:
        batch = collected.experience.batch
        return (
            data_metrics(batch, scored=collected.experience.scored)
            | mismatch_metrics(batch)
            | dict(collected.experience.metrics)
            | collected.metrics
            | dict(collected.scores.metrics)
            | timing_metrics(seconds, batch)
        )

    def samples(self, collected: Collected, count: int) -> list[dict[str, Any]]:
        sequences = collected.sequences
        rows = zip(sequences.trajectories[:count], sequences.texts, collected.scores.rewards, strict=False)
        return [
            {
                "prompt": trajectory.prompt.text,
                "response": text,
                "reward": reward,
                "ground_truth": trajectory.prompt.ground_truth,
                "finish_reason": trajectory.finish_reason,
                "num_tokens": len(trajectory.response_ids),
            }
            for trajectory, text, reward in rows
        ]

    def validate(self) -> Validation | None:
        trainer, prompts = self.config.trainer, self.prepared.validation_prompts
        if not prompts:
            return None
        with self.instruments.timer("testing", items=len(prompts)) as on_progress:
            return validate(
                self.roles.actor,
                self.roles.reward,
                prompts,
                max_new_tokens=self.config.data.max_response_length,
                temperature=trainer.validation_temperature,
                seed=trainer.seed,
                on_progress=on_progress,
            )

    def savers(self) -> Mapping[str, Callable[[Path], None]]:
        actor, critic = self.roles.actor.group, None if self.roles.critic is None else self.roles.critic.group
        savers: dict[str, Callable[[Path], None]] = {
            "actor": lambda folder: actor.run(ActorWorker.save_state, folder=folder).result()
        }
        if critic is not None:
            savers["critic"] = lambda folder: critic.run(CriticWorker.save_state, folder=folder).result()
        return savers

    def restore(self, checkpoint: Path, *, policy_version: int) -> None:
        load = partial(self.roles.actor.group.run, ActorWorker.load_state, policy_version=policy_version)
        load(folder=checkpoint / "actor").result()
        if self.roles.critic is not None:
            self.roles.critic.group.run(CriticWorker.load_state, folder=checkpoint / "critic").result()

    def state_dict(self) -> dict[str, Any]:
        return {"kl": dict(self.kl.state_dict()), "left_over": list(self.more.left_over)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl.load_state_dict(state["kl"])
        self.more = Rows(self.order, left_over=state["left_over"])

    def take_notes(self) -> list[str]:
        """What the rewards noticed and streaming left out, then the models."""
        notes, self._notes = [*self._notes, *left_out(self.prepared.prompts)], []
        notes += self.roles.actor.group.run(ActorWorker.take_notes).result()
        if self.roles.critic is not None:
            notes += self.roles.critic.group.run(CriticWorker.take_notes).result()
        return notes

    def close(self) -> None:
        self.prepared.reward.close()
