"""Which models the native rollout engine can run, judged by their `config.json`."""

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
"`model_type` of the families with a forward of this project"
LAYER_TYPES = ("full_attention", "sliding_attention")
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
"rotary scalings whose angles depend only on the position"
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu")


def native_obstacle(config: Mapping[str, Any]) -> str | None:
    """Why the native engine cannot run a model, from its text configuration; None if it can.

    Obstacles that the configuration does not show are found when the engine is built; it then falls back to
    `transformers` and reports it.
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
    """Why the native engine must call the model's own forward, which is slower; None if it need not."""
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
    """The rotary kinds of all layers; older files say `rope_scaling`, `type` for `rope_parameters`, `rope_type`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    each = rope.values() if rope and all(isinstance(value, dict) for value in rope.values()) else [rope]
    return [parameters.get("rope_type") or parameters.get("type") or "default" for parameters in each]
