"""Keeps a model's `generation_config` out of sampling and reports what it would have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from rl_compat.rollout.inference import hugging_face_model

_NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "max_length": None,
    "max_new_tokens": None,
    "max_time": None,
    "stop_strings": None,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "length_penalty": 1.0,
    "penalty_alpha": 0.0,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "remove_invalid_values": False,
    "renormalize_logits": False,
    "guidance_scale": 1.0,
    "low_memory": False,
    "watermarking_config": None,
    "token_healing": False,
    "prompt_lookup_num_tokens": None,
    "dola_layers": None,
}


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
