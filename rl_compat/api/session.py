"""`Session`: the roles of a Python program under one plan."""

from __future__ import annotations

from types import TracebackType
from typing import Self, Unpack

from rl_compat.config.types import OnUpdate
from rl_compat.distributed.pool import ResourcePool
from rl_compat.planning.types import Plan
from rl_compat.rewards.assemble import RewardFunction
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.critic import CriticModel
from rl_compat.workers.options import ActorOptions, CriticOptions, ReferenceOptions, RewardOptions
from rl_compat.workers.reference import ReferenceModel
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.shared_plan import SharedPlan


class Session:
    """The roles of a program, planned together so that they fit into the memory of their pools at the same time.

    Making a role checks its options and reads its files, but loads no weights. The first call of any role plans all of
    them; each starts with its own first call. Options that are not given for a role, such as lengths, batch sizes and
    the temperature, follow the actor's. Closing the session, or leaving its `with` block, frees all roles.
    """

    def __init__(self) -> None:
        self._shared = SharedPlan()
        self._actor: ActorModel | None = None
        self._roles: list[ActorModel | CriticModel | ReferenceModel | RewardModel] = []

    def actor(
        self,
        path: str,
        *,
        pool: ResourcePool | None = None,
        rollout_pool: ResourcePool | None = None,
        on_update: OnUpdate | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorModel:
        """The model `path` (a name, folder, GGUF file or hub id) as the actor, by default on the first GPU.

        With `rollout_pool` it generates there, with weights of its own, which each `generate` first brings up to date.
        With `on_update` as well, `generate` works while the actor learns: the weights change at `hand_over`, and
        responses that are in progress then `continue`, are waited for (`wait`), or begin again (`abort`).

        Raises ConfigError, also once the session is planned, ModelError or HardwareError.
        """
        self._actor = ActorModel.planned(
            self._shared, path, pool=pool, options=options, rollout_pool=rollout_pool, on_update=on_update
        )
        self._roles.append(self._actor)
        return self._actor

    def critic(self, path: str, *, pool: ResourcePool | None = None, **options: Unpack[CriticOptions]) -> CriticModel:
        """A critic on the trunk of the model `path`, with a value head. Raises the errors of `actor`."""
        critic = CriticModel.planned(self._shared, path, pool=pool, options=options)
        self._roles.append(critic)
        return critic

    def reference(
        self, path: str, *, pool: ResourcePool | None = None, **options: Unpack[ReferenceOptions]
    ) -> ReferenceModel:
        """The frozen model `path`, which takes no memory if the actor trains adapters on the same model and pool.

        Raises the errors of `actor`.
        """
        reference = ReferenceModel.planned(self._shared, path, pool=pool, options=options, actor=self._the_actor)
        self._roles.append(reference)
        return reference

    def reward(
        self, *rewards: str | RewardFunction, pool: ResourcePool | None = None, **options: Unpack[RewardOptions]
    ) -> RewardModel:
        """The weighted sum of `rewards`, each a Python function, a built-in name, a `file.py:function`, or a model.

        At most one is a model: a sequence classification model with one output. Only a model is placed on the pool and
        is part of the plan. `weights` has one number for each, 1 by default. Raises the errors of `actor`, and
        DataError.
        """
        self._shared.check_open()
        reward = RewardModel.planned(self._shared, rewards, pool=pool, options=options)
        self._roles.append(reward)
        return reward

    @property
    def plan(self) -> Plan:
        """The plan of all roles, made now if no call has made it; roles cannot be added afterwards.

        Raises ConfigError without a role, HardwareError, or DoesNotFitError.
        """
        return self._shared.plan

    def close(self) -> None:
        """Free the workers of all roles and end the processes of reward functions."""
        self._shared.close()
        for role in self._roles:
            role.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _the_actor(self) -> ActorModel:
        assert self._actor is not None, "only a session with an actor asks for it"
        return self._actor
