"""Rules between the settings of batches, data and memory."""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.report import Problem
from rl_compat.config.types import RunConfig


def batch_sizes(config: RunConfig) -> Iterator[Problem]:
    """The mini-batch size divides the batch size; both count prompts."""
    batch, mini, group = config.trainer.batch_size, config.trainer.mini_batch_size, config.algorithm.group_size
    if batch < 1 or mini < 1 or batch % mini == 0:
        return
    fitting = [size for size in range(1, batch + 1) if batch % size == 0]
    near = sorted(fitting, key=lambda size: (abs(size - mini), size))[:2]
    message = (
        f"`trainer.mini_batch_size` is {_prompts(mini, group)} "
        f"and does not divide `trainer.batch_size`, {_prompts(batch, group)}"
    )
    hint = "set `trainer.mini_batch_size` to " + " or ".join(str(size) for size in sorted(near))
    if group > 1 and mini % group == 0 and batch % (mini // group) == 0:
        hint = f"it counts prompts: {mini} responses are `trainer.mini_batch_size={mini // group}`"
    yield Problem(key="trainer.mini_batch_size", message=message, hint=hint)


def _prompts(count: int, group_size: int) -> str:
    return f"{count} prompts" + (f" ({count * group_size} responses)" if group_size > 1 else "")


def quantized_base(config: RunConfig) -> Iterator[Problem]:
    """A quantized base needs adapters."""
    if config.plan.quantization != "none" and config.model.lora_rank == 0:
        yield Problem(
            key="plan.quantization",
            message=f"`plan.quantization={config.plan.quantization}` freezes the base and `model.lora_rank` is 0",
            hint="set `model.lora_rank=16`, or `plan.quantization=none`",
        )


def token_budget(config: RunConfig) -> Iterator[Problem]:
    """The longest sequence, or pair, fits into one micro-batch."""
    pairs = ALGORITHMS[config.algorithm.name].learns_from == "preference"
    longest = (config.data.max_prompt_length + config.data.max_response_length) * (2 if pairs else 1)
    budget = config.plan.max_tokens_per_micro_batch
    if isinstance(budget, int) and 1 <= budget < longest:
        what = "the longest pair" if pairs else "the longest sequence"
        yield Problem(
            key="plan.max_tokens_per_micro_batch",
            message=f"`plan.max_tokens_per_micro_batch` is {budget} and {what} has {longest} tokens",
            hint=f"set it to {longest} or more, or shorten `data.max_prompt_length` or `data.max_response_length`",
        )


def pairs(config: RunConfig) -> Iterator[Problem]:
    """A micro-batch holds a pair, and a mini-batch of KTO has several rows."""
    name = config.algorithm.name
    if ALGORITHMS[name].learns_from == "preference" and config.plan.micro_batch_size == 1:
        yield Problem(
            key="plan.micro_batch_size",
            message=f"`plan.micro_batch_size` is 1 and `algorithm.name={name}` compares two sequences",
            hint="set `plan.micro_batch_size=2`, or remove it",
        )
    if name == "kto" and config.trainer.mini_batch_size == 1:
        yield Problem(
            key="trainer.mini_batch_size",
            message="`trainer.mini_batch_size` is 1 and `algorithm.name=kto` estimates a mean over a mini-batch",
            hint="set `trainer.mini_batch_size=8`, or more",
        )
