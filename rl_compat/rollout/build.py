"""Builds the engine of a RolloutPlan, with `transformers` as the fallback, whose reason is logged.

Whether the native engine can run a model is read from its configuration, then checked on a few tokens.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.errors import ModelError
from rl_compat.planning.shapes.decoder_families import native_obstacle
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.inference import (
    PROBE_STEPS,
    attention_set_to,
    exact_products,
    generating,
    hugging_face_model,
    is_quantized,
    plain_logprobs,
    probe_prompts,
)
from rl_compat.rollout.native.decoder import decoder_over
from rl_compat.rollout.native.decoder_spec import UnknownDecoderError, read_spec
from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.rollout.native.hf_forward import attention_name, attention_windows
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.session import RolloutSession
from rl_compat.rollout.transformers import TransformersEngine
from rl_compat.rollout.types import Decode, SamplingParams
from rl_compat.rollout.vllm.engine import VllmEngine
from rl_compat.rollout.weights import SharedWeights

_logger = logging.getLogger(__name__)
_EXACT_TOLERANCE = 0.01
_ROUNDED_TOLERANCE = 0.3
"for half precision, and for int8 products, whose rounding depends on the rest of the batch"
_REFUSALS = (ModelError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError)


def build_rollout_engine(
    model: nn.Module,
    *,
    plan: RolloutPlan,
    pad_token_id: int,
    num_valid_tokens: int | None = None,
    decode: Decode | None = None,
    device: str | None = None,
    together: Ranks = Solo(),
) -> RolloutSession:
    """The engine of the plan, over `model`; vLLM computes on `device`, by default that of the model.

    With `plan.tensor_parallel`, the processes `together` are one engine of vLLM and make the same calls. Ids from
    `num_valid_tokens` on, which the tokenizer does not have, are never drawn. `decode` gives the text of token ids, for
    stop strings. A model of a family that the native engine does not describe runs its own forward; if that fails,
    `transformers` is used. A warning gives the reason.
    """
    assert plan.engine in ("native", "transformers", "vllm"), f"no rollout engine `{plan.engine}`"
    if plan.engine == "vllm":
        return VllmEngine(
            model, plan, num_valid_tokens=num_valid_tokens, decode=decode, device=device, together=together
        )
    if plan.engine == "native":
        own_reason = own_forward_reason(model)
        reason = None if own_reason is None else native_unsupported_reason(model)
        if reason is None:
            if own_reason is not None:
                _logger.warning(
                    "rollout engine `native` calls the model's own forward, which is slower: %s", own_reason
                )
            return NativeEngine(
                model, plan=plan, num_valid_tokens=num_valid_tokens, decode=decode, own_forward=own_reason is None
            )
        _logger.warning("rollout engine `native` cannot run this model: %s; using `transformers`", reason)
    return TransformersEngine(
        model, plan=plan, pad_token_id=pad_token_id, num_valid_tokens=num_valid_tokens, decode=decode
    )


def own_forward_reason(model: nn.Module) -> str | None:
    """Why this project's own forward cannot replace the model's, None when it can."""
    inner = hugging_face_model(model)
    try:
        read_spec(inner)
    except UnknownDecoderError as error:
        return str(error)
    return _reason_in_numbers(inner, own=True)


def native_unsupported_reason(model: nn.Module) -> str | None:
    """Why the native engine cannot generate through the model's own forward, None when it can."""
    inner = hugging_face_model(model)
    config = inner.config.get_text_config()
    layers = list(attention_windows(config))
    return native_obstacle(config.to_dict() | {"layer_types": layers}) or _reason_in_numbers(inner, own=False)


def _reason_in_numbers(model: Any, *, own: bool) -> str | None:
    """Greedy decoding of a few tokens, compared with one plain forward over the same tokens."""
    try:
        with exact_products():
            ours, plain = _decoded_and_plain(model, own=own)
    except torch.OutOfMemoryError:
        raise
    except _REFUSALS as error:
        return f"its forward fails with the slot cache ({type(error).__name__}: {error})"
    if not bool(plain.isfinite().all()):
        return None  # generation names the prompt
    gap = float((ours - plain).abs().max())
    exact = model.get_input_embeddings().weight.dtype == torch.float32 and not is_quantized(model)
    if not gap <= (_EXACT_TOLERANCE if exact else _ROUNDED_TOLERANCE):
        return f"its log-probabilities with the slot cache differ from the model's by {gap:.2g}"
    return None


def _decoded_and_plain(model: Any, *, own: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities [prompts, steps] of greedily decoded tokens, over the slot cache and by a plain forward."""
    prompts = probe_prompts(model)
    count, longest = len(prompts), max(map(len, prompts)) + PROBE_STEPS
    params = SamplingParams(max_new_tokens=PROBE_STEPS, temperature=0.0)
    attention = nullcontext() if own else attention_set_to(model.config, attention_name(model))
    with generating(model):
        with attention:
            # fp32 if any layer, such as a norm over half-precision weights, uses it
            floating = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
            states = torch.float32 if torch.float32 in floating else next(iter(floating))
            memory = SlotMemory(num_slots=count, capacity=longest)
            decoder = decoder_over(memory, SharedWeights(model, compute_dtype=states), own=own)
            decoder.prefill([prompt[:-1] for prompt in prompts], [[slot] for slot in range(count)])
            decoder.set_state(
                tokens=[prompt[-1] for prompt in prompts],
                positions=[len(prompt) - 1 for prompt in prompts],
                keys=range(count),
                seeds=[0] * count,
                drawn=[0] * count,
            )
            tokens, ours, _ = decoder.steps(count, count=PROBE_STEPS, length=longest, params=params)
        plain = [plain_logprobs(model, prompt, row) for prompt, row in zip(prompts, tokens.T.tolist(), strict=True)]
    return ours.T, torch.stack(plain)
