"""Helpers that all engines share: unwrap adapters, check prompts and numbers, switch to generation and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.errors import DataError, NotFiniteError, not_finite_hint
from rl_compat.planning.types import DType


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


def not_finite(where: str, *, dtype: DType) -> NotFiniteError:
    """The error for log-probabilities that are NaN or infinite, while `where` was generated."""
    fact = f"the model's log-probabilities in `{dtype}` are not finite at {where}"
    return NotFiniteError(fact, hint=not_finite_hint(dtype, setting="plan.rollout_dtype"))


def autocast(device: torch.device, dtype: torch.dtype | None, *, caches: bool = True) -> torch.autocast:
    """Matrix products in `dtype`; None leaves them alone. `caches` keeps lowered weights until the context ends."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=caches)


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


PROBE_SIXTEENTHS = ((5, 3, 4, 6, 2), (2, 7))
"of token ids"
PROBE_STEPS = 3
_NEUTRAL: Mapping[str, float | None] = {
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty"), 1),
    **dict.fromkeys(("num_beams", "num_beam_groups", "length_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty", "penalty_alpha"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("remove_invalid_values", "renormalize_logits", "low_memory", "token_healing"), 0),
    **dict.fromkeys(("max_length", "max_new_tokens", "max_time", "stop_strings", "bad_words_ids", "force_words_ids")),
    **dict.fromkeys(("constraints", "sequence_bias", "suppress_tokens", "begin_suppress_tokens", "dola_layers")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("watermarking_config", "prompt_lookup_num_tokens")),
}
"settings of a `generation_config` that change the sampling, with the value that does not"


def ignored_generation_settings(model: nn.Module) -> dict[str, Any]:
    """Settings of the model's `generation_config` that would change the sampling and that no engine uses."""
    settings = hugging_face_model(model).generation_config
    found = {name: getattr(settings, name, None) for name in _NEUTRAL} if settings is not None else {}
    return {name: value for name, value in found.items() if value not in (None, [], _NEUTRAL[name])}


@contextmanager
def neutral_generation_config(model: Any) -> Iterator[None]:
    """A Hugging Face model with an empty `generation_config`, so that `generate` takes no values from it."""
    from transformers import GenerationConfig

    before = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before


def probe_prompts(model: nn.Module) -> list[list[int]]:
    """Two short prompts of ordinary tokens.

    The lowest ids are often special ones: over those the log-probabilities of SmolLM2 are off by 0.4 in bf16, over
    others by 0.1.
    """
    num_ids = num_embeddings(model)
    return [[num_ids * part // 16 for part in parts] for parts in PROBE_SIXTEENTHS]


def plain_logprobs(model: Any, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """Log-probabilities [tokens] of a response by a plain forward of the model, in fp32."""
    ids = torch.tensor([[*prompt, *response]], device=model.get_input_embeddings().weight.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    logprobs: Tensor = logits.log_softmax(dim=-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)
    return logprobs
