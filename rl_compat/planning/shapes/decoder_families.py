"""Which models the native rollout engine can run, as far as their `config.json` tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

DESCRIBED_FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
)
"`model_type` of the models that this project computes itself, without their own forward"
LAYER_TYPES = ("full_attention", "sliding_attention")
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
"rotary scalings whose angles depend on the position alone"
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu")


def native_obstacle(config: Mapping[str, Any]) -> str | None:
    """Why the native engine cannot run a model, from its text configuration; None when nothing speaks against it.

    What the configuration does not tell is found when the engine is built, which then says so and takes `transformers`.
    """
    if config.get("is_encoder_decoder"):
        return "it is an encoder-decoder model"
    strange = [kind for kind in sorted(set(config.get("layer_types") or ())) if kind not in LAYER_TYPES]
    if strange:
        return f"it has layers of kind `{strange[0]}`"
    if config.get("num_kv_shared_layers"):
        return "its layers share keys and values"
    return None


def own_forward_obstacle(config: Mapping[str, Any]) -> str | None:
    """Why the native engine must call the model's own forward, which is slower; None when nothing speaks for that."""
    family = config.get("model_type")
    if family not in DESCRIBED_FAMILIES:
        return f"`{family}` is not among the families that it describes"
    for kind in _rotary_kinds(config):
        if kind not in FIXED_ROTARY:
            return f"its rotary angles are of kind `{kind}`, which depend on the length"
    if config.get("use_bidirectional_attention"):
        return "its attention looks ahead"
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    return None if activation in ACTIVATIONS else f"its activation is `{activation}`"


def _rotary_kinds(config: Mapping[str, Any]) -> Iterable[str]:
    """Of all kinds of layers; `rope_scaling` and `type` are what older files call `rope_parameters` and `rope_type`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    each = rope.values() if rope and all(isinstance(value, dict) for value in rope.values()) else [rope]
    return [parameters.get("rope_type") or parameters.get("type") or "default" for parameters in each]
