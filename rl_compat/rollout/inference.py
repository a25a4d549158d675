"""Helpers that all engines share: unwrap adapters, check prompts, switch to generation and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rl_compat.errors import DataError, RLCompatError
from rl_compat.planning.types import DType
from rl_compat.rollout.types import Response


def hugging_face_model(model: nn.Module) -> Any:
    """The Hugging Face model inside an adapter model, with adapters still applied, or the model itself."""
    inner: Any = model
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def num_embeddings(model: nn.Module) -> int:
    """Rows of the input embedding, the upper bound of token ids."""
    return int(hugging_face_model(model).get_input_embeddings().weight.shape[0])


def is_quantized(model: nn.Module) -> bool:
    """Whether any weights are stored as integers."""
    return any(not parameter.is_floating_point() for parameter in model.parameters())


def check_prompts(prompts: Sequence[Sequence[int]], *, num_ids: int) -> None:
    """Raise DataError for a prompt without tokens or with an id beyond the embedding of the model."""
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise DataError(f"prompt {row} has no tokens", hint="generation needs at least one token to start from")
        if min(prompt) < 0 or max(prompt) >= num_ids:
            bad = next(i for i in prompt if not 0 <= i < num_ids)
            raise DataError(
                f"prompt {row} has token id {bad} and the model has {num_ids} embeddings",
                hint="use the tokenizer that belongs to the model",
            )


def check_range(responses: Sequence[Response], *, dtype: DType) -> None:
    """Raise RLCompatError if fp16 activations, whose maximum is 65,504, made log-probabilities not finite."""
    if dtype != "fp16":
        return
    bad = sum(not math.isfinite(sum(response.logprobs)) for response in responses)
    if bad:
        raise RLCompatError(
            f"{bad} of {len(responses)} responses have log-probabilities that are not finite: activations of this "
            "model exceed the range of fp16",
            hint="set `plan.rollout_dtype=fp32`",
        )


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the training flag of each module is restored at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def attention_set_to(config: Any, name: str | None) -> Iterator[None]:
    """The attention function of a Hugging Face configuration replaced by `name`; None leaves it alone."""
    if name is None:
        yield
        return
    configs = [config, *(getattr(config, key) for key in getattr(config, "sub_configs", {}))]
    before = [item._attn_implementation for item in configs if item is not None]
    config._attn_implementation = name
    try:
        yield
    finally:
        for item, value in zip((item for item in configs if item is not None), before, strict=True):
            item._attn_implementation = value


@contextmanager
def exact_products() -> Iterator[None]:
    """Disable TF32, whose rounding is larger than the differences that a comparison looks for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
