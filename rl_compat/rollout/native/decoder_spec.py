"""Description of a decoder-only model, read from its Hugging Face modules and sufficient to run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rl_compat.planning.shapes.decoder_families import native_obstacle, own_forward_obstacle


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of a family's modules. A tuple lists modules whose outputs are concatenated."""

    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    query_norm: str | None = None
    key_norm: str | None = None
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    attention_out_norm: str | None = None
    "norm of the attention output before it is added to the residual stream"
    feed_forward_norm: str | None = "post_attention_layernorm"
    "norm before the feed-forward part; None if it has the same input as attention"
    feed_forward_out_norm: str | None = None
    final_norm: str = "norm"
    norm_offset: float = 0.0
    "added to the stored weight of a norm"


_SANDWICH = Names(
    attention_out_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_out_norm="post_feedforward_layernorm",
    norm_offset=1.0,
)
_NORMED_HEADS = Names(query_norm="q_norm", key_norm="k_norm")
FAMILIES: Mapping[str, Names] = {
    "llama": Names(),
    "mistral": Names(),
    "qwen2": Names(),
    "qwen3": _NORMED_HEADS,
    "smollm3": Names(),
    "gemma": Names(norm_offset=1.0),
    "gemma2": _SANDWICH,
    "gemma3_text": Names(
        query_norm="q_norm",
        key_norm="k_norm",
        attention_out_norm="post_attention_layernorm",
        feed_forward_norm="pre_feedforward_layernorm",
        feed_forward_out_norm="post_feedforward_layernorm",
        norm_offset=1.0,
    ),
    "phi": Names(
        output="dense",
        query_norm="q_layernorm",
        key_norm="k_layernorm",
        gate_up=("fc1",),
        down="fc2",
        feed_forward_norm=None,
        final_norm="final_layernorm",
    ),
    "phi3": Names(qkv=("qkv_proj",), gate_up=("gate_up_proj",)),
}
"by `model_type`"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Norm:
    """A norm over the last dimension. Its weight is read on use, so that it follows training."""

    module: Any
    offset: float
    eps: float
    centred: bool
    "whether it is LayerNorm; otherwise RMSNorm"

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.module.weight
        return weight

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.module, "bias", None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    input_norm: Norm
    qkv: tuple[nn.Module, ...]
    query_norm: Norm | None
    key_norm: Norm | None
    output: nn.Module
    attention_out_norm: Norm | None
    feed_forward_norm: Norm | None
    gate_up: tuple[nn.Module, ...]
    gated: bool
    down: nn.Module
    feed_forward_out_norm: Norm | None
    kind: str
    "type of the layer, for rotary angles"
    window: int | None
    "window in tokens, including the query's own; None is unlimited"
    rotary: bool
    scaling: float
    softcap: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderSpec:
    embedding: nn.Module
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: nn.Module
    logit_softcap: float | None
    activation: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: Any
    "the module that computes cosines and sines"
    rotary_by_kind: bool
    "whether it takes the layer type as an argument"

    @property
    def queries_per_key(self) -> int:
        return self.num_heads // self.num_kv_heads


class UnknownDecoderError(Exception):
    """The model does not belong to a described family; the message names the difference."""


def read_spec(model: Any) -> DecoderSpec:
    """The description of a Hugging Face causal model. Raises UnknownDecoderError with the reason."""
    config = model.config.get_text_config()
    obstacle = own_forward_obstacle(config.to_dict()) or native_obstacle(config.to_dict())
    if obstacle is not None:
        raise UnknownDecoderError(obstacle)
    names = FAMILIES[config.model_type]
    trunk = model.model
    heads = config.num_attention_heads
    try:
        layers = tuple(_layer(layer, index, config, names) for index, layer in enumerate(trunk.layers))
        return DecoderSpec(
            embedding=model.get_input_embeddings(),
            layers=layers,
            final_norm=_norm(getattr(trunk, names.final_norm), names),
            head=model.get_output_embeddings(),
            logit_softcap=getattr(config, "final_logit_softcapping", None),
            activation=str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu")),
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            rotary=trunk.rotary_emb,
            rotary_by_kind=isinstance(getattr(trunk.rotary_emb, "rope_type", None), dict),
        )
    except AttributeError as error:
        raise UnknownDecoderError(f"its modules are not those of `{config.model_type}` ({error})") from error


def _layer(layer: Any, index: int, config: Any, names: Names) -> Layer:
    attention, feed_forward = layer.self_attn, layer.mlp
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    kind = kinds[index] if kinds else ("full_attention" if window is None else "sliding_attention")

    def norm(owner: Any, name: str | None) -> Norm | None:
        module = getattr(owner, name) if name is not None and hasattr(owner, name) else None
        return None if module is None else _norm(module, names)

    feed_forward_norm = norm(layer, names.feed_forward_norm)
    assert (feed_forward_norm is None) == (names.feed_forward_norm is None)
    return Layer(
        input_norm=_norm(layer.input_layernorm, names),
        qkv=tuple(getattr(attention, name) for name in names.qkv),
        query_norm=norm(attention, names.query_norm),
        key_norm=norm(attention, names.key_norm),
        output=getattr(attention, names.output),
        attention_out_norm=norm(layer, names.attention_out_norm),
        feed_forward_norm=feed_forward_norm,
        gate_up=tuple(getattr(feed_forward, name) for name in names.gate_up),
        gated=names.gate_up != ("fc1",),
        down=getattr(feed_forward, names.down),
        feed_forward_out_norm=norm(layer, names.feed_forward_out_norm),
        kind=kind,
        window=window if kind == "sliding_attention" else None,
        rotary=bool(getattr(attention, "use_rope", True)),
        scaling=float(attention.scaling),
        softcap=getattr(attention, "attn_logit_softcapping", None),
    )


def _norm(module: Any, names: Names) -> Norm:
    centred = isinstance(module, nn.LayerNorm)
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    return Norm(module=module, offset=0.0 if centred else names.norm_offset, eps=float(eps), centred=centred)
