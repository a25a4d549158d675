"""The actor of a run: the public handle over a policy worker and a rollout worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.distributed.group import WorkerGroup, then
from rl_compat.distributed.pool import ResourcePool
from rl_compat.models.chat import ChatEncoder
from rl_compat.rollout.types import SamplingParams
from rl_compat.trajectory import Prompt, Trajectory
from rl_compat.workers.policy import PolicySettings, PolicyWorker
from rl_compat.workers.role_options import RoleOptions
from rl_compat.workers.rollout import RolloutSettings, RolloutWorker
from rl_compat.workers.sequences import Sequences
from rl_compat.workers.setup import Setup, lora_settings, loss_settings, optimizer_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    """The settings of an actor's workers."""

    policy: PolicySettings
    rollout: RolloutSettings
    stop_strings: tuple[str, ...] = ()
    "a response ends with the token that completes one of them"


def actor_settings(setup: Setup, *, num_batches: int | None = None) -> ActorSettings:
    """The learning-rate schedule spans `num_batches` batches; None is a constant rate."""
    config, plan = setup.config, setup.plan
    decode = partial(setup.tokenizer.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert plan.rollout is not None, "an actor generates"
    policy = PolicySettings(
        model_folder=setup.source.folder,
        role=plan.roles["actor"],
        optimizer=optimizer_settings(config, config.optimizer.actor_lr, num_batches),
        lora=lora_settings(config.model),
        loss=loss_settings(config),
        off_policy=config.off_policy,
        temperature=config.rollout.temperature,
        num_epochs=config.algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
        trust_remote_code=config.model.trust_remote_code,
    )
    rollout = RolloutSettings(
        model_folder=policy.model_folder,
        role=policy.role,
        plan=plan.rollout,
        pad_token_id=setup.tokenizer.pad_token_id,
        num_valid_tokens=setup.tokenizer.num_tokens,
        decode=decode,
        lora=policy.lora,
        trust_remote_code=policy.trust_remote_code,
    )
    return ActorSettings(policy=policy, rollout=rollout, stop_strings=config.rollout.stop_strings)


class ActorModel:
    """The actor of a run: a policy that learns and a rollout that generates with its weights."""

    def __init__(self, settings: ActorSettings, *, pool: ResourcePool, chat: ChatEncoder) -> None:
        self.settings = settings
        self.chat = chat
        self.next_group = 0
        "group id of the next prompt; ids are unique over a run"
        self.policy: WorkerGroup[PolicyWorker] = pool.start(partial(PolicyWorker, settings.policy))
        source = self.policy.run(PolicyWorker.weight_source).result()
        self.rollout: WorkerGroup[RolloutWorker] = pool.start(partial(RolloutWorker, settings.rollout, source))

    @classmethod
    def from_pretrained(cls, path: str, *, pool: ResourcePool, **options: Any) -> ActorModel:
        """An actor for the model `path` (a name, folder, GGUF file or hub id), planned for the pool's device.

        Options: `lr`, `lora_rank`, `max_prompt_length`, `max_new_tokens`, `temperature`, `stop_strings`, `num_epochs`,
        `mini_batch_size`, `policy_loss`, `clip_low`, `clip_high`, `entropy_coef`, `kl_loss`, `kl_loss_coef`, `rollout`,
        `max_num_seqs`. Raises ModelError, HardwareError or DoesNotFitError.
        """
        setup = RoleOptions(path=path, **options).on(pool)
        return cls(actor_settings(setup), pool=pool, chat=setup.chat)

    def encode(
        self,
        prompts: Sequence[str | list[dict[str, str]]],
        *,
        ground_truths: Sequence[Any] | None = None,
        data_source: str = "",
    ) -> list[Prompt]:
        """Texts or chat messages as prompts, template applied; `ground_truths` are what a reward compares with."""
        truths = [None] * len(prompts) if ground_truths is None else ground_truths
        encoded = [self.chat.encode(prompt) for prompt in prompts]
        return [
            Prompt(token_ids=tuple(ids), text=text, data_source=data_source, ground_truth=truth, row=row)
            for row, ((text, ids), truth) in enumerate(zip(encoded, truths, strict=True))
        ]

    def generate(
        self,
        prompts: Sequence[Prompt | str | list[dict[str, str]]],
        *,
        max_new_tokens: int,
        group_size: int = 1,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Future[Sequences]:
        """`group_size` responses to each prompt. The temperature is that of the settings unless given; 0 is greedy."""
        ready = [p if isinstance(p, Prompt) else self.encode([p])[0] for p in prompts]
        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=self.settings.policy.temperature if temperature is None else temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop_token_ids=self.chat.stop_token_ids,
            stop_strings=self.settings.stop_strings,
            seed=seed,
        )
        first, self.next_group = self.next_group, self.next_group + len(ready)
        trajectories = self.rollout.run(
            RolloutWorker.generate,
            prompts=ready,
            groups=list(range(first, self.next_group)),
            params=params,
            group_size=group_size,
            on_progress=on_progress,
        )
        return then(trajectories, self._with_texts)

    def compute_logprobs(self, sequences: Sequences) -> Future[Tensor]:
        """Log-probability of each response token under the current weights, [B, T]."""
        return self.policy.run(PolicyWorker.logprobs, batch=sequences.batch)

    def compute_token_outputs(self, sequences: Sequences) -> Future[dict[str, Tensor]]:
        """The same as `logprobs`, with `sum_pi_squared`: the sum of the squared probabilities of all tokens, [B, T]."""
        return self.policy.run(PolicyWorker.token_outputs, batch=sequences.batch)

    def update(self, batch: Batch, *, seed: int = 0) -> Future[dict[str, float]]:
        """Learn from a batch with `advantages` and, for several steps, `old_logprobs`; returns the metrics."""
        return self.policy.run(PolicyWorker.update, batch=batch, seed=seed)

    def _with_texts(self, trajectories: Sequence[Trajectory]) -> Sequences:
        texts = [self.chat.decode(trajectory.response_ids) for trajectory in trajectories]
        return Sequences.from_trajectories(trajectories, texts)
