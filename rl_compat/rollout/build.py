"""Builds the engine of a RolloutPlan, with `transformers` as the fallback, whose reason is logged."""

from __future__ import annotations

import logging

from torch import nn

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.rollout.session import RolloutSession
from rl_compat.rollout.support import native_unsupported_reason, own_forward_reason
from rl_compat.rollout.transformers import TransformersEngine
from rl_compat.rollout.types import Decode
from rl_compat.rollout.vllm.engine import VllmEngine

_logger = logging.getLogger(__name__)


def build_rollout_engine(
    model: nn.Module,
    *,
    plan: RolloutPlan,
    pad_token_id: int,
    num_valid_tokens: int | None = None,
    decode: Decode | None = None,
) -> RolloutSession:
    """The engine of the plan, over `model`.

    Ids from `num_valid_tokens` on, which the tokenizer does not have, are never drawn. `decode` gives the text of
    token ids, for stop strings. A model of a family that the native engine does not describe runs its own forward; if
    that fails, `transformers` is used. A warning gives the reason.
    """
    assert plan.engine in ("native", "transformers", "vllm"), f"no rollout engine `{plan.engine}`"
    if plan.engine == "vllm":
        return VllmEngine(model, plan=plan, num_valid_tokens=num_valid_tokens, decode=decode)
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
