"""The actor: generates responses, gives their log-probabilities, and learns from their advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_compat import seeds
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.batch import Batch
from rl_compat.config.types import OffPolicyConfig
from rl_compat.distributed.dispatch import dispatch
from rl_compat.distributed.group import WorkerGroup
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import ConfigError
from rl_compat.models.chat import ChatEncoder
from rl_compat.models.load import load_causal_lm
from rl_compat.models.lora import LoraSettings, adapter_disabled
from rl_compat.objectives.actor_critic import LossSettings, policy_loss, policy_loss_inputs
from rl_compat.objectives.off_policy import correct, corrects
from rl_compat.planning.types import RolePlan, RolloutPlan
from rl_compat.resharding.source import SharedStorage
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.generation_config import ignored_generation_settings
from rl_compat.rollout.types import Decode, SamplingParams
from rl_compat.training.engine import PolicyEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.trajectory import Prompt, Trajectory
from rl_compat.workers.means import mean_metrics
from rl_compat.workers.mini_batches import over_ranks, own_share
from rl_compat.workers.role_options import RoleOptions
from rl_compat.workers.sequences import Sequences
from rl_compat.workers.setup import Setup, lora_settings, loss_settings, optimizer_settings
from rl_compat.workers.trained import TrainedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSettings:
    """What an actor worker is built from."""

    model_folder: Path
    role: RolePlan
    rollout: RolloutPlan
    pad_token_id: int
    num_valid_tokens: int
    "entries of the tokenizer; token ids from there on are never drawn"
    optimizer: OptimizerSettings | None = None
    "None for an actor that only generates"
    lora: LoraSettings | None = None
    loss: LossSettings = field(default_factory=LossSettings)
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    temperature: float
    "of the sampling and of every log-probability"
    stop_strings: tuple[str, ...] = ()
    "a response ends with the token that completes any of them"
    decode: Decode | None = None
    "token ids to their text, which stop strings are looked for in"
    num_epochs: int
    mini_batch_size: int | None = None
    "prompts per optimizer step; the whole batch when not set"
    trust_remote_code: bool


def actor_settings(setup: Setup, *, num_batches: int | None = None) -> ActorSettings:
    """The learning-rate schedule spans `num_batches` batches; None is a constant rate."""
    config, plan = setup.config, setup.plan
    algorithm = config.algorithm
    assert plan.rollout is not None, "an actor generates"
    return ActorSettings(
        model_folder=setup.source.folder,
        role=plan.roles["actor"],
        rollout=plan.rollout,
        pad_token_id=setup.tokenizer.pad_token_id,
        num_valid_tokens=setup.tokenizer.num_tokens,
        optimizer=optimizer_settings(config, config.optimizer.actor_lr, num_batches),
        lora=lora_settings(config.model),
        loss=loss_settings(config),
        off_policy=config.off_policy,
        temperature=config.rollout.temperature,
        stop_strings=config.rollout.stop_strings,
        decode=partial(setup.tokenizer.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        num_epochs=algorithm.num_epochs,
        mini_batch_size=config.trainer.mini_batch_size,
        trust_remote_code=config.model.trust_remote_code,
    )


class ActorWorker(TrainedWorker):
    """The actor on one device. Its `version` is the policy version."""

    engine: PolicyEngine

    def __init__(self, settings: ActorSettings, ranks: Ranks = Solo()) -> None:
        self.settings = settings
        model = load_causal_lm(
            settings.model_folder,
            role=settings.role,
            lora=settings.lora,
            trust_remote_code=settings.trust_remote_code,
        )
        self.engine = PolicyEngine(model, role=settings.role, optimizer=settings.optimizer, ranks=ranks)
        self.rollout = build_rollout_engine(
            model,
            plan=settings.rollout,
            pad_token_id=settings.pad_token_id,
            num_valid_tokens=settings.num_valid_tokens,
            decode=settings.decode,
        )
        ignored = ignored_generation_settings(model)
        if ignored:
            listed = ", ".join(f"`{name}={value}`" for name, value in ignored.items())
            self.engine.notes.append(f"the model's generation_config is not used for sampling: {listed}")

    @dispatch(split=("prompts", "groups"))
    def generate(
        self,
        *,
        prompts: Sequence[Prompt],
        groups: Sequence[int],
        params: SamplingParams,
        group_size: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Trajectory]:
        """`group_size` trajectories for each prompt, group by group."""
        with self.engine.onloaded():
            responses = self.rollout.generate(
                [prompt.token_ids for prompt in prompts], params, group_size=group_size, on_progress=on_progress
            )
        if self.settings.rollout.sleep_between:
            self.rollout.sleep()
        return [
            Trajectory(
                prompt=prompt,
                group=group,
                response_ids=response.token_ids,
                rollout_logprobs=response.logprobs,
                finish_reason=response.finish_reason,
                policy_versions=response.policy_versions,
            )
            for prompt, group, candidates in zip(prompts, groups, responses, strict=True)
            for response in candidates
        ]

    @dispatch(split=("batch",))
    def logprobs(self, *, batch: Batch) -> Tensor:
        """Log-probability of each response token under the current weights, [B, T]."""
        with self.engine.onloaded():
            return self._current_logprobs(batch)

    @dispatch(split=("batch",))
    def token_outputs(self, *, batch: Batch) -> dict[str, Tensor]:
        """`logprobs` and `sum_pi_squared` of each response token under the current weights, [B, T]."""
        with self.engine.onloaded():
            outputs = self.engine.logprobs(batch, temperature=self.settings.temperature, wanted=("sum_pi_squared",))
        assert outputs.sum_pi_squared is not None
        return {"logprobs": outputs.logprobs, "sum_pi_squared": outputs.sum_pi_squared}

    @dispatch(split=("batch",))
    def reference_logprobs(self, *, batch: Batch) -> Tensor:
        """The same with the adapters switched off: the base model, which is the reference under LoRA."""
        with self.engine.onloaded(), adapter_disabled(self.engine.model):
            return self._current_logprobs(batch)

    @dispatch()
    def update(self, *, batch: Batch, seed: int) -> dict[str, float]:
        """Train on all epochs and mini-batches of the batch. Returns the mean of their metrics.

        Every rank gets the whole batch and trains on its share of each mini-batch. Raises ConfigError for a batch
        without `old_logprobs` that takes more than one optimizer step.
        """
        settings = self.settings
        if batch.old_logprobs is None and not self._takes_one_step(batch):
            raise ConfigError(
                "the batch has no `old_logprobs`, and the update takes more than one optimizer step",
                hint="set them: `batch.with_(old_logprobs=actor.compute_logprobs(sequences).result())`",
            )
        loss = partial(policy_loss, settings=settings.loss)
        batches = self.mini_batches(
            batch,
            prompts_per_mini_batch=settings.mini_batch_size or len(batch),
            num_epochs=settings.num_epochs,
            seed=seed,
        )
        steps = []
        with self.engine.onloaded():
            for number, whole in enumerate(batches):
                mini_batch, metrics = self._prepared(
                    whole, seed=seeds.derive(seed, "selection", number), first=number == 0
                )
                metrics |= self.engine.update(
                    own_share(mini_batch, self.engine.ranks),
                    loss=loss,
                    temperature=settings.temperature,
                    wanted=("entropy",) if settings.loss.algorithm.entropy_coef != 0.0 else (),
                )
                steps.append(metrics)
            self._hand_over()
        return mean_metrics(steps, prefix="actor/")

    def _prepared(self, mini_batch: Batch, *, seed: int, first: bool) -> tuple[Batch, dict[str, float]]:
        """A whole mini-batch with the fields that depend on all of it, and metrics.

        These are the tokens that the loss selects, and under `off_policy.bypass` importance weights and rejection by
        the current weights. Before the first optimizer step the old log-probabilities are the current ones, unless
        they are those of the sampler.
        """
        settings = self.settings
        select = POLICY_LOSSES[settings.loss.policy_loss].select
        bypass = settings.off_policy.bypass
        corrected_here = bypass and corrects(settings.off_policy)
        if select is None and not corrected_here:
            return mini_batch, {}
        logprobs = mini_batch.old_logprobs if first and not bypass else None
        if logprobs is None:
            logprobs = over_ranks(self._current_logprobs, mini_batch, self.engine.ranks)
        metrics: dict[str, float] = {}
        if corrected_here:
            corrected, metrics = correct(mini_batch.with_(old_logprobs=logprobs), settings.off_policy)
            mini_batch = corrected.with_(old_logprobs=mini_batch.old_logprobs)
        if select is not None:
            selection = select(policy_loss_inputs(mini_batch, logprobs, settings.loss), seed)
            mini_batch = mini_batch.with_(selection=selection)
        return mini_batch, metrics

    def _current_logprobs(self, batch: Batch) -> Tensor:
        return self.engine.logprobs(batch, temperature=self.settings.temperature).logprobs

    def _takes_one_step(self, batch: Batch) -> bool:
        num_groups = len(batch.groups.unique())
        return self.settings.num_epochs == 1 and num_groups <= (self.settings.mini_batch_size or num_groups)

    def _hand_over(self) -> None:
        self.rollout.load(SharedStorage(self.engine.model, version=self.version))

    def load_state(self, *, folder: Path) -> None:
        super().load_state(folder=folder)
        self._hand_over()

    def load_weights(self, *, folder: Path) -> None:
        super().load_weights(folder=folder)
        self._hand_over()


class ActorModel:
    """The actor of a run, wherever its workers are."""

    def __init__(self, settings: ActorSettings, *, pool: ResourcePool, chat: ChatEncoder) -> None:
        self.settings = settings
        self.chat = chat
        self.next_group = 0
        "number of the next prompt: those of a run are never given twice"
        self.group: WorkerGroup[ActorWorker] = pool.start(partial(ActorWorker, settings))

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
    ) -> Sequences:
        """`group_size` responses to each prompt. The temperature is the settings' unless given (0 is greedy)."""
        ready = [p if isinstance(p, Prompt) else self.encode([p])[0] for p in prompts]
        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=self.settings.temperature if temperature is None else temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop_token_ids=self.chat.stop_token_ids,
            stop_strings=self.settings.stop_strings,
            seed=seed,
        )
        first, self.next_group = self.next_group, self.next_group + len(ready)
        trajectories = self.group.run(
            ActorWorker.generate,
            prompts=ready,
            groups=list(range(first, self.next_group)),
            params=params,
            group_size=group_size,
            on_progress=on_progress,
        ).result()
        texts = [self.chat.decode(trajectory.response_ids) for trajectory in trajectories]
        return Sequences.from_trajectories(trajectories, texts)

    def compute_logprobs(self, sequences: Sequences) -> Future[Tensor]:
        """Log-probability of each response token under the current weights, [B, T]."""
        return self.group.run(ActorWorker.logprobs, batch=sequences.batch)

    def compute_token_outputs(self, sequences: Sequences) -> Future[dict[str, Tensor]]:
        """The same as `logprobs`, with `sum_pi_squared`: the sum of the squared probabilities of all tokens, [B, T]."""
        return self.group.run(ActorWorker.token_outputs, batch=sequences.batch)

    def update(self, batch: Batch, *, seed: int = 0) -> dict[str, float]:
        """Learn from a batch with `advantages` and, for several steps, `old_logprobs`; returns the metrics."""
        return self.group.run(ActorWorker.update, batch=batch, seed=seed).result()
