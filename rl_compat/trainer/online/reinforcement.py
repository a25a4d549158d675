"""The recipe of reinforcement learning: generate, score, learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_compat import seeds
from rl_compat.algorithms.kl import KLController
from rl_compat.algorithms.lagrangian import LagrangeMultiplier
from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.types import AlgorithmConfig, RunConfig
from rl_compat.data.encode.training_data import left_out
from rl_compat.distributed.group import WorkerGroup
from rl_compat.trainer.loop import Collected, Roles, Rollout, collect, learn, roll_out
from rl_compat.trainer.online.groups import Loads, dropped_metrics, joined, num_groups
from rl_compat.trainer.online.metrics import data_metrics, mismatch_metrics, staleness_metrics, timing_metrics
from rl_compat.trainer.online.reuse import SampleStore
from rl_compat.trainer.online.step_warnings import StepWarnings, empty_fraction
from rl_compat.trainer.online.validate import Validation, validate
from rl_compat.trainer.phases import Phases
from rl_compat.trainer.recipe import Measure
from rl_compat.trainer.setup.online import Prepared
from rl_compat.trainer.setup.roles import build_roles
from rl_compat.trajectory import Prompt
from rl_compat.workers.trained import TrainedWorker


class Reinforcement:
    """The models of a prepared run, with the KL controller and the Lagrange multiplier."""

    measure = Measure(metric="critic/score/mean", title="mean reward", key="rewards")

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.config = prepared.setup.config
        algorithm = self.config.algorithm
        controller = algorithm.kl_controller
        target = controller.target if controller.type == "adaptive" else None
        self.kl = KLController(coef=algorithm.kl_coef, target=target, horizon=controller.horizon)
        self.multiplier = lagrange_multiplier(algorithm)
        self.staleness = self.config.trainer.max_staleness if self.config.trainer.flow == "async" else 0
        self.calls = 1 if algorithm.dynamic_sampling else self.staleness + 1
        self.store = SampleStore(self.config)
        self.prompts = {"trained": 0, "filtered": 0, "dropped": 0}
        "how many prompts of the order were learned from, replaced by dynamic sampling, or dropped as too old"
        self._loads = Loads(self.config)
        self._dropped: Sequence[Rollout] = ()
        "what the step does not learn from"
        self._notes: list[str] = []
        self._warnings = StepWarnings(algorithm)
        self.roles: Roles
        self.phases: Phases

    def summary(self) -> str:
        plan, config = self.prepared.setup.plan, self.config
        pool, rollout = plan.pool_of("actor"), plan.rollout
        assert rollout is not None, "reinforcement learning generates"
        return (
            f"{config.algorithm.name} on {pool.device_name} with profile `{pool.profile}`: "
            f"{plan.roles['actor'].compute_dtype} training, {rollout.compute_dtype} rollout by "
            f"`{rollout.engine}`, {self.prepared.total_steps} steps of {config.trainer.batch_size} prompts x "
            f"{config.algorithm.group_size}"
        )

    def load(self, phases: Phases, *, step: int) -> None:
        self.phases = phases
        self.roles = build_roles(self.prepared, phases.reporter)
        self.store.forget_after(step)

    def start_earlier(self, step: int) -> None:
        self.store.forget_after(step)

    @property
    def draw_size(self) -> int:
        return self._loads.num_prompts

    def sample(self, rows: Sequence[int], *, draw: int, more: Callable[[int], Sequence[int]]) -> Rollout:
        """Generate responses to these rows, and to further rows where prompts are replaced, and start scoring them.

        Where generation goes on until the step learns, scores are waited for here.
        """
        seed = seeds.derive(self.config.rollout.seed, "rollout", draw)
        rollout = roll_out(
            self.roles,
            self._prompts(rows),
            self.config,
            replace(self.phases, seed=seed, step=None if self.config.trainer.draws_more else draw),
            more=lambda count: self._prompts(more(count)),
        )
        if self.roles.actor.gives_way:
            rollout.scores.result()
        return rollout

    def learning(self) -> AbstractContextManager[None]:
        return self.roles.actor.learning()

    def divide(self, sampled: Rollout) -> list[tuple[Rollout, float]]:
        return self._loads.divided(sampled)

    def collect(self, parts: Sequence[Rollout], *, dropped: Sequence[Rollout], step: int) -> Collected:
        collected = self._collect(joined(parts), self.config)
        version = self._version(step)
        collected = replace(collected, replayed=self.store.draw(collected, self._collect, version=version))
        self._dropped = dropped
        if self.staleness == 0:
            return collected
        stale = staleness_metrics(collected.experience.batch, version=version)
        if self.config.trainer.on_stale == "drop":
            stale |= dropped_metrics(dropped)
        return replace(collected, metrics=collected.metrics | stale)

    def _collect(self, rollout: Rollout, config: RunConfig) -> Collected:
        multiplier = 0.0 if self.multiplier is None else self.multiplier.value
        return collect(self.roles, rollout, config, self.phases, kl_coef=self.kl.coef, multiplier=multiplier)

    def _version(self, step: int) -> int:
        """Of the policy that a step updates."""
        return max(0, step - 1 - self.config.algorithm.critic_warmup_steps)

    def _prompts(self, rows: Sequence[int]) -> list[Prompt]:
        return [self.prepared.prompts[row] for row in rows]

    def learn(self, collected: Collected, *, step: int) -> dict[str, float]:
        """Update the models, then the KL controller and the Lagrange multiplier."""
        update_actor = step > self.config.algorithm.critic_warmup_steps
        metrics = learn(
            self.roles,
            collected.batch,
            replace(self.phases, seed=seeds.derive(self.config.trainer.seed, "update", step)),
            update_actor=update_actor,
        )
        if self.config.trainer.flow == "async":
            with self.phases.timer("handover"):
                self.roles.actor.hand_over()
        metrics |= self._kl_metrics(collected, metrics) | self._cost_metrics(collected, moves=update_actor)
        metrics |= self.store.learned(step, collected, version=self._version(step))
        self._notes += [*collected.scores.notes, *self._warnings.take_notes(step, collected, metrics)]
        self._count(collected)
        return metrics

    def _count(self, collected: Collected) -> None:
        """Add up what became of prompts by the end of a step."""
        replaced = [collected.filtered, *(part.filtered for part in self._dropped)]
        self.prompts["trained"] += num_groups(collected.sequences)
        self.prompts["filtered"] += sum(num_groups(part.sequences) for part in replaced if part is not None)
        self.prompts["dropped"] += sum(num_groups(part.sequences) for part in self._dropped)
        self._dropped = ()

    def _kl_metrics(self, collected: Collected, update: Mapping[str, float]) -> dict[str, float]:
        """Update the KL controller; the coefficients that the step used, and each KL with the name of its estimator."""
        algorithm = self.config.algorithm
        metrics = {}
        if algorithm.kl_loss != "none":
            metrics["actor/kl_coef"] = algorithm.kl_loss_coef
            if "actor/kl_loss" in update:
                metrics[f"actor/kl_loss/{algorithm.kl_loss}"] = update["actor/kl_loss"]
        if algorithm.kl_in_reward != "none":
            kl = collected.experience.reward_kl
            metrics |= {"actor/reward_kl_penalty": kl, f"actor/reward_kl_penalty/{algorithm.kl_in_reward}": kl}
            metrics["actor/reward_kl_penalty_coeff"] = self.kl.coef
            self.kl.update(kl=kl, num_sequences=len(collected.sequences))
        return metrics

    def _cost_metrics(self, collected: Collected, *, moves: bool) -> dict[str, float]:
        """Return the multiplier that the step used, and update it unless the actor waits for its critics."""
        if self.multiplier is None or collected.costs is None:
            return {}
        used = self.multiplier.value
        costs = [cost for cost in collected.costs.rewards if cost is not None]
        if moves and costs:
            self.multiplier.update(sum(costs) / len(costs))
        self._notes += collected.costs.notes
        of_functions = {f"cost/{name.removeprefix('reward/')}": n for name, n in collected.costs.metrics.items()}
        return of_functions | {"cost/multiplier": used, "cost/limit": self.multiplier.limit}

    def describe(self, collected: Collected, seconds: Mapping[str, float]) -> dict[str, float]:
        batch = collected.experience.batch
        return (
            data_metrics(batch, scored=collected.experience.scored)
            | {"response_length/empty_ratio": empty_fraction(collected)}
            | mismatch_metrics(batch)
            | dict(collected.experience.metrics)
            | collected.metrics
            | dict(collected.scores.metrics)
            | timing_metrics(seconds, batch)
            | self.store.count_time(collected, seconds)
        )

    def samples(self, collected: Collected, count: int) -> list[dict[str, Any]]:
        if self.config.samples.keep:
            return []
        sequences = collected.sequences
        rows = zip(sequences.trajectories[:count], sequences.texts, collected.scores.rewards, strict=False)
        costs = None if collected.costs is None else collected.costs.rewards
        return [
            {
                "prompt": trajectory.prompt.text,
                "response": text,
                "reward": reward,
                "ground_truth": trajectory.prompt.ground_truth,
                "finish_reason": trajectory.finish_reason,
                "num_tokens": len(trajectory.response_ids),
                "num_policy_tokens": trajectory.num_policy_tokens,
                "policy_versions": sorted(set(trajectory.policy_versions)),
                "group": trajectory.group,
            }
            | ({} if costs is None else {"cost": costs[row]})
            for row, (trajectory, text, reward) in enumerate(rows)
        ]

    def validate(self) -> Validation | None:
        prompts = self.prepared.validation_prompts
        if not prompts:
            return None
        with self.phases("testing", items=len(prompts)) as on_progress:
            return validate(
                self.roles.actor,
                self.roles.reward,
                prompts,
                self.config,
                cost=self.roles.cost,
                on_progress=on_progress,
            )

    @property
    def trained(self) -> dict[str, WorkerGroup[TrainedWorker]]:
        return {"actor": self.roles.actor.policy, **{role: critic.group for role, critic in self.roles.critics.items()}}

    def state_dict(self) -> dict[str, Any]:
        multiplier = {} if self.multiplier is None else {"multiplier": self.multiplier.state_dict()}
        own = {"kl": dict(self.kl.state_dict()), "next_group": self.roles.actor.next_group}
        return own | {"prompts": dict(self.prompts)} | multiplier | self.store.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl.load_state_dict(state["kl"])
        if self.multiplier is not None:
            self.multiplier.load_state_dict(state["multiplier"])
        self.prompts |= state.get("prompts", {})
        self.roles.actor.next_group = state.get("next_group", 0)
        self.store.load_state_dict(state)

    def save_files(self, folder: Path) -> None:
        self.store.save(folder)

    def load_files(self, folder: Path) -> None:
        self.store.load(folder)

    def take_notes(self) -> list[str]:
        """Notes of the rewards, of streaming and of the models."""
        notes, self._notes = [*self._notes, *left_out(self.prepared.prompts)], []
        for group in self.trained.values():
            notes += group.run(TrainedWorker.take_notes).result()
        return notes

    def close(self) -> None:
        self.prepared.close()
        self.store.close()


def lagrange_multiplier(config: AlgorithmConfig) -> LagrangeMultiplier | None:
    """The Lagrange multiplier of the cost constraint, if the algorithm has one."""
    if not ALGORITHMS[config.name].needs_cost:
        return None
    return LagrangeMultiplier(
        limit=config.lagrangian.cost_limit,
        learning_rate=config.lagrangian.lr,
        initial=config.lagrangian.init,
        maximum=config.lagrangian.max,
    )
