"""The models of a prepared run, loaded onto their pools."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rl_compat.planning.types import CRITIC_ROLES
from rl_compat.trainer.loop import Roles
from rl_compat.trainer.reporter import Reporter
from rl_compat.trainer.setup.online import Prepared
from rl_compat.workers.actor import ActorModel, actor_settings
from rl_compat.workers.critic import CriticModel, critic_settings
from rl_compat.workers.reference import ReferenceModel, reference_settings
from rl_compat.workers.setup import Setup


def build_roles(prepared: Prepared, reporter: Reporter) -> Roles:
    """Load the models the algorithm needs onto the planned device."""
    setup = prepared.setup
    config = setup.config
    actor = load_actor(setup, reporter, num_batches=max(0, prepared.total_steps - config.algorithm.critic_warmup_steps))
    critics = {}
    for role in [role for role in CRITIC_ROLES if role in setup.plan.roles]:
        reporter.phase(f"loading the {role.replace('_', ' ')}")
        settings = partial(critic_settings, setup, role=role, num_batches=prepared.total_steps)
        critics[role] = CriticModel(settings, pool=setup.pool_of(role)).start()
    reference = None
    if "reference" in {phase.name for phase in setup.workload.phases}:
        reporter.phase("loading the reference")
        reference = (
            ReferenceModel(partial(reference_settings, setup), pool=setup.pool_of("reference")).start()
            if "reference" in setup.plan.roles
            else ReferenceModel.of_adapter(actor)
        )
    if config.reward.model is not None:
        reporter.phase("loading the reward model")
        prepared.reward.load()
    if prepared.cost is not None and config.cost.model is not None:
        reporter.phase("loading the cost model")
        prepared.cost.load()
    return Roles(
        actor=actor,
        reward=prepared.reward,
        critic=critics.get("critic"),
        reference=reference,
        cost=prepared.cost,
        cost_critic=critics.get("cost_critic"),
    )


def load_actor(setup: Setup, reporter: Reporter, *, num_batches: int | None = None, trains: bool = True) -> ActorModel:
    """The actor alone; without an optimizer if it only generates."""
    reporter.phase("loading the actor")
    settings = actor_settings(setup, num_batches=num_batches)
    settings = settings if trains else replace(settings, policy=replace(settings.policy, optimizer=None))
    rollout_pool = setup.pool_of("rollout")
    return ActorModel(lambda: settings, pool=setup.pool_of("actor"), chat=setup.chat, rollout_pool=rollout_pool).start()
