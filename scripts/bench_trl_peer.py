"""The TRL side of the comparison: the same workload with TRL's PPO (1.12 or older) or GRPO trainer.

    TRL_PYTHON scripts/bench_trl_peer.py WORKLOAD.json generate|vllm

Runs in an environment with TRL and without rl_compat; `bench_trl.py` starts it. TRL 1.16 supports vLLM 0.22 to 0.31.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import transformers
import trl  # type: ignore[import-not-found]
from bench_trl import BenchWorkload, WorkCounter, digit_reward, report, wait_for_device
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback


class Watch(TrainerCallback):  # type: ignore[misc]
    """Seconds from the end of one step to the end of the next. A step may have several optimizer steps."""

    def __init__(self, updates_per_step: int) -> None:
        self.counter = WorkCounter()
        self.step_seconds: list[float] = []
        self.rollout_seconds: list[float] = []
        self._updates_per_step = updates_per_step
        self._updates = 0
        self._rollout = 0.0
        self._last = 0.0

    def start(self) -> None:
        self.counter.start()
        self._last = time.perf_counter()

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        self._updates += 1
        if self._updates % self._updates_per_step:
            return
        wait_for_device()
        now = time.perf_counter()
        self.step_seconds.append(now - self._last)
        self.rollout_seconds.append(self._rollout)
        self._last, self._rollout = now, 0.0
        self.counter.stop()

    def timed(self, rollout: Callable[..., Any], sizes: Callable[..., tuple[int, int]]) -> Callable[..., Any]:
        """Wrap the rollout function: measure its time and count the prompt and response tokens of the first step."""

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = rollout(*arguments, **keywords)
            self._rollout += time.perf_counter() - start
            if not self.step_seconds:
                num_prompt, num_response = sizes(arguments, result)
                self.counter.counts["prompt_tokens"] += num_prompt
                self.counter.counts["response_tokens"] += num_response
            return result

        return wrapped


class DigitScorer(nn.Module):
    """Replaces the reward model that TRL's PPO requires: a lookup table of digit counts, which takes no time."""

    base_model_prefix = "backbone"

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        super().__init__()
        texts = tokenizer.batch_decode([[token_id] for token_id in range(len(tokenizer))])
        table = torch.zeros(max(vocab_size, len(texts)))
        table[: len(texts)] = torch.tensor([digit_reward(text) for text in texts])
        self.table = table
        self.score = nn.Identity()

    def backbone(self, input_ids: Tensor, **keywords: Any) -> SimpleNamespace:
        """The number of digits up to each position, [B, L, 1], in place of hidden states."""
        return SimpleNamespace(hidden_states=[self.table[input_ids].cumsum(1)[:, :, None]])


def load(auto: Any, folder: str, **options: Any) -> Any:
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa", **options)


def shared_settings(workload: BenchWorkload) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "learning_rate": workload.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "gradient_checkpointing": False,
        "gradient_accumulation_steps": 1,
        "temperature": 1.0,
        "bf16": workload.dtype == "bf16",
        "fp16": False,
        "use_cpu": not workload.on_gpu,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "seed": 0,
    }


def ppo_trainer(workload: BenchWorkload, tokenizer: Any, watch: Watch) -> Any:
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer  # type: ignore[import-not-found]

    batch_size = workload.responses_per_step
    actor = load(AutoModelForCausalLM, workload.model)
    rows = [
        {"input_ids": tokenizer(text)["input_ids"]}
        for step in workload.prompts
        for text in step
        for _ in range(workload.group)
    ]
    data = Dataset.from_list(rows)
    settings = PPOConfig(
        **shared_settings(workload),
        per_device_train_batch_size=batch_size,
        total_episodes=len(rows),
        local_rollout_forward_batch_size=batch_size,
        num_ppo_epochs=workload.epochs,
        num_mini_batches=workload.mini_batches,
        num_sample_generations=0,
        response_length=workload.new_tokens,
        stop_token=None,
        kl_coef=workload.kl_coef,
        kl_estimator="k1",
        cliprange=0.2,
        cliprange_value=0.2,
        gamma=1.0,
        lam=0.95,
    )

    def sizes(arguments: tuple[Any, ...], result: tuple[Tensor, Tensor]) -> tuple[int, int]:
        queries, (sequences, _) = arguments[1], result
        return int((queries != tokenizer.pad_token_id).sum()), sequences.numel() - queries.numel()

    ppo_trainer.batch_generation = watch.timed(ppo_trainer.batch_generation, sizes)
    trainer = PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=actor,
        ref_model=load(AutoModelForCausalLM, workload.model),
        value_model=load(AutoModelForSequenceClassification, workload.model, num_labels=1),
        reward_model=DigitScorer(tokenizer, actor.config.vocab_size),
        train_dataset=data,
        eval_dataset=data.select(range(batch_size)),
        callbacks=[watch],
    )
    in_order = DataLoader(data, batch_size=batch_size, collate_fn=trainer.data_collator)  # type: ignore[var-annotated, arg-type]
    trainer.dataloader = trainer.accelerator.prepare(in_order)
    return trainer


def grpo_rollout(workload: BenchWorkload, tokenizer: Any, rollout: str) -> dict[str, Any]:
    """TRL's generation settings: every response has its full length, since no end token is sampled or ends it.

    TRL has no setting for the dtype of vLLM, which is bf16 by itself wherever weights are fp32.
    """
    if rollout == "generate":
        return {"generation_kwargs": {"min_new_tokens": workload.new_tokens}}
    from trl.generation import vllm_generation  # type: ignore[import-not-found]

    dtype = {"fp32": "float32", "bf16": "bfloat16"}[workload.dtype]
    vllm_generation.LLM = partial(vllm_generation.LLM, dtype=dtype)
    longest = max(len(tokenizer(text)["input_ids"]) for step in workload.prompts for text in step)
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": longest + workload.new_tokens,
        "generation_kwargs": {"ignore_eos": True},
    }


def grpo_trainer(workload: BenchWorkload, tokenizer: Any, watch: Watch, rollout: str) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        **shared_settings(workload),
        **grpo_rollout(workload, tokenizer, rollout),
        per_device_train_batch_size=workload.mini_batch_responses,
        steps_per_generation=workload.mini_batches,
        num_iterations=workload.epochs,
        max_steps=len(workload.prompts) * workload.epochs * workload.mini_batches,
        num_generations=workload.group,
        max_completion_length=workload.new_tokens,
        beta=workload.kl_coef,
        epsilon=0.2,
        loss_type="dapo",
        scale_rewards="group",
        max_grad_norm=1.0,
        shuffle_dataset=False,
        model_init_kwargs=None,
    )

    def reward(completions: list[str], **columns: Any) -> list[float]:
        return [digit_reward(text) for text in completions]

    def sizes(arguments: tuple[Any, ...], result: tuple[list[list[int]], Any]) -> tuple[int, int]:
        return sum(map(len, arguments[0])), sum(map(len, result[0]))

    trainer = GRPOTrainer(
        model=load(AutoModelForCausalLM, workload.model),
        args=settings,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [text for step in workload.prompts for text in step]}),
        callbacks=[watch],
    )
    trainer._generate_single_turn = watch.timed(trainer._generate_single_turn, sizes)
    return trainer


def versions(rollout: str) -> dict[str, str]:
    found = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return found | ({"vllm": import_module("vllm").__version__} if rollout == "vllm" else {})


def main(arguments: Sequence[str]) -> None:
    workload, rollout = BenchWorkload.load(Path(arguments[0])), arguments[1]
    ppo = workload.algorithm == "ppo"
    watch = Watch(1 if ppo else workload.epochs * workload.mini_batches)
    tokenizer = AutoTokenizer.from_pretrained(workload.model, padding_side="left")
    trainer = ppo_trainer(workload, tokenizer, watch) if ppo else grpo_trainer(workload, tokenizer, watch, rollout)
    models = [trainer.model, trainer.ref_model] if trainer.ref_model is not None else [trainer.model]
    assert {p.dtype for model in models for p in model.parameters()} == {torch.float32}
    torch.set_num_threads(workload.threads)
    if workload.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    watch.start()
    trainer.train()
    report(
        versions=versions(rollout),
        step_seconds=watch.step_seconds,
        rollout_seconds=watch.rollout_seconds,
        work=watch.counter.counts,
        peak_device_bytes=torch.cuda.max_memory_allocated() if workload.on_gpu else None,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
