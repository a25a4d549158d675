"""The rl_compat side of the TRL comparison: steps of a workload with the classes that `rlc train` uses.

    python scripts/bench_trl_ours.py WORKLOAD.json

A step is what `rlc train` does between two checkpoints, including metrics, which are not written.
`bench_trl.py` starts it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from bench_trl import BenchWorkload, WorkCounter, report, wait_for_device

import rl_compat
from rl_compat.config.types import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PlanConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from rl_compat.data.order.batches import PromptOrder
from rl_compat.distributed.pool import ResourcePool
from rl_compat.models.tokenizer import load_tokenizer
from rl_compat.trainer.online.reinforcement import Reinforcement
from rl_compat.trainer.phases import Phases
from rl_compat.trainer.reporter import SilentReporter
from rl_compat.trainer.setup.online import Prepared, start_reward
from rl_compat.trajectory import Prompt
from rl_compat.workers.setup import applied, prepare

REWARD = f"{Path(__file__).with_name('bench_trl.py')}:digit_reward"


def run_config(workload: BenchWorkload, *, longest_prompt: int) -> RunConfig:
    """The workload as settings. Whatever the peer cannot choose is set to the behaviour of the peer."""
    ppo = workload.algorithm == "ppo"
    with_kl_loss = not ppo and workload.kl_coef > 0
    num_prompts = len(workload.prompts[0])
    return RunConfig(
        model=ModelConfig(path=workload.model),
        data=DataConfig(
            max_prompt_length=longest_prompt, max_response_length=workload.new_tokens, shuffle=False, val_files=()
        ),
        reward=RewardConfig(functions=(REWARD,)),
        algorithm=AlgorithmConfig(
            name="ppo" if ppo else "grpo",
            gae_lambda=0.95,
            group_size=workload.group,
            clip_dual=None,
            clip_value=0.2,
            kl_in_reward="k1" if ppo else "none",
            kl_coef=workload.kl_coef,
            kl_loss="k3" if with_kl_loss else "none",
            kl_loss_coef=workload.kl_coef,
            num_epochs=workload.epochs,
        ),
        rollout=RolloutConfig(engine=cast(Any, workload.engine)),
        optimizer=OptimizerConfig(
            actor_lr=workload.learning_rate,
            critic_lr=workload.learning_rate,
            weight_decay=0.0,
            max_grad_norm=0.0 if ppo else 1.0,
        ),
        trainer=TrainerConfig(batch_size=num_prompts, mini_batch_size=num_prompts // workload.mini_batches),
        plan=plan_config(workload, longest_prompt=longest_prompt),
    )


def plan_config(workload: BenchWorkload, *, longest_prompt: int) -> PlanConfig:
    """On a GPU only the dtype is set, on a CPU also the micro-batches of the peer."""
    dtypes: Any = {"compute_dtype": workload.dtype, "rollout_dtype": workload.dtype}
    if workload.on_gpu:
        return PlanConfig(device="cuda", **dtypes)
    rows = workload.responses_per_step if workload.algorithm == "ppo" else workload.mini_batch_responses
    return PlanConfig(
        device="cpu",
        **dtypes,
        frozen_storage_dtype="fp32",
        attention="sdpa",
        gradient_checkpointing=False,
        micro_batch_size=rows,
        max_tokens_per_micro_batch=rows * (longest_prompt + workload.new_tokens),
    )


def prepared_run(workload: BenchWorkload) -> Prepared:
    """The preparation of `rlc train`, with the prompts of the workload instead of those of a data file."""
    tokenizer = load_tokenizer(Path(workload.model)).tokenizer
    prompts = tuple(
        Prompt(token_ids=tuple(tokenizer(text)["input_ids"]), text=text) for step in workload.prompts for text in step
    )
    config = run_config(workload, longest_prompt=max(len(prompt.token_ids) for prompt in prompts))
    setup = prepare(config, ResourcePool(gpus=[0] if workload.on_gpu else []).hardware)
    return Prepared(
        setup=setup,
        checkpoint_bytes=0,
        prompts=prompts,
        validation_prompts=(),
        reward=start_reward(setup, prompts),
        cost=None,
        order=PromptOrder(len(prompts), config.trainer.batch_size, shuffle=False, seed=0),
        total_steps=len(workload.prompts),
        notes=(),
    )


class Steps:
    """Runs steps, one after the other."""

    def __init__(self, workload: BenchWorkload) -> None:
        self.method = Reinforcement(prepared_run(workload))
        reporter = SilentReporter()
        phases = Phases.of_setup(self.method.prepared.setup, reporter)
        self.timer, self.memory = phases.timer, phases.memory
        self.peak_gib = 0.0
        self.method.load(phases, step=0)
        self.method.roles.actor.chat.stop_token_ids = ()
        self.counter = WorkCounter()
        torch.set_num_threads(workload.threads)

    def step(self, number: int) -> dict[str, float]:
        """One step; returns its metrics."""
        started = time.perf_counter()
        sampled = self.method.sample(next(self.method.prepared.order), draw=number, more=lambda count: ())
        parts = [part for part, _ in self.method.divide(sampled)]
        collected = self.method.collect(parts, dropped=(), step=number)
        metrics = self.method.learn(collected, step=number)
        seconds = self.timer.take() | {"step": time.perf_counter() - started}
        metrics |= self.method.describe(collected, seconds) | self.memory.take_metrics()
        self.peak_gib = max(self.peak_gib, metrics.get("actor/perf/max_memory_allocated_gb", 0.0))
        if number == 1:
            batch = collected.experience.batch
            self.counter.counts["prompt_tokens"] += sum(len(ids) for ids in batch.prompt_ids)
            self.counter.counts["response_tokens"] += int(batch.response_lengths.sum())
        return metrics

    def run(self) -> tuple[list[float], list[float]]:
        """Seconds of each step and of its rollout. The first step counts the work and is not timed."""
        seconds, rollout = [], []
        self.counter.start()
        for number in range(1, self.method.prepared.total_steps + 1):
            start = time.perf_counter()
            metrics = self.step(number)
            wait_for_device()
            seconds.append(time.perf_counter() - start)
            rollout.append(metrics["timing_s/gen"])
            self.counter.stop()
        return seconds, rollout


def main(arguments: Sequence[str]) -> None:
    workload = BenchWorkload.load(Path(arguments[0]))
    steps = Steps(workload)
    setup = steps.method.prepared.setup
    with applied(setup.plan, setup.pools):
        seconds, rollout = steps.run()
    steps.method.prepared.close()
    versions = {
        "rl_compat": rl_compat.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "engine": steps.method.prepared.setup.plan.rollout.engine,
    }
    report(
        versions=versions,
        step_seconds=seconds,
        rollout_seconds=rollout,
        work=steps.counter.counts,
        peak_device_bytes=int(steps.peak_gib * 2**30) if workload.on_gpu else None,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
