"""The dimensions of a model, read from its folder's `config.json` without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from rl_compat.errors import ModelError
from rl_compat.planning.shapes.decoder_families import native_obstacle, own_forward_obstacle


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One linear layer of a block: module name, input and output width, whether it has a bias."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def num_parameters(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions of a decoder-only language model that determine its memory."""

    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_positions: int | None
    linears: tuple[Linear, ...]
    "of one block, in order"
    expert_parameters: int = 0
    "of all blocks: experts, their routers, and the feed-forward parts of blocks without experts"
    norms_per_layer: int = 2
    query_key_norm: bool = False
    exact: bool = True
    "False for an unknown family, which is estimated as llama"
    native_obstacle: str | None = field(default=None, compare=False)
    "why the native rollout engine cannot run the model"
    own_forward_obstacle: str | None = field(default=None, compare=False)
    "why it must call the model's own forward"
    linear_parameters: int = field(init=False, repr=False, compare=False)
    "of all blocks: the weights that autocast copies, adapters attach to and quantization compresses"

    def __post_init__(self) -> None:
        each = sum(linear.num_parameters for linear in self.linears)
        object.__setattr__(self, "linear_parameters", self.num_layers * each)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `config.json`. Raises ModelError, naming the file and the missing key."""
        path = folder / "config.json"
        if not path.is_file():
            raise ModelError(f"`{folder}` has no `config.json`", hint="give a folder saved by `save_pretrained`")
        try:
            config = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ModelError(f"`{path}` is not JSON: {error}") from error
        return cls.from_config(config, source=str(path))

    @classmethod
    def from_config(cls, config: dict[str, Any], *, source: str = "config.json") -> Self:
        """The shape that a Hugging Face configuration describes; the text part of a multimodal one."""
        if not isinstance(config, dict):
            raise ModelError(f"`{source}` is not a configuration: it holds a {type(config).__name__}")
        given = config.get("text_config") or config
        family = str(given.get("model_type") or config.get("model_type") or "")
        defaults = family_defaults()
        text = {**defaults.get(family, {}), **given}
        ties = (config, given, defaults.get(str(config.get("model_type")), {}), text)
        tied = next((values[TIE] for values in ties if values.get(TIE) is not None), False)
        hidden = _number(text, "hidden_size", source)
        num_heads = _number(text, "num_attention_heads", source)
        num_kv_heads = _number(text, "num_key_value_heads", source, otherwise=num_heads)
        head_dim = _number(text, "head_dim", source, otherwise=max(1, hidden // num_heads))
        num_layers = _number(text, "num_hidden_layers", source)
        intermediate = _number(text, "intermediate_size", source)
        experts = _experts(text, num_layers, hidden, intermediate)
        dense = experts.shared_width if experts else intermediate
        return cls(
            model_type=family,
            num_layers=num_layers,
            hidden_size=hidden,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=experts.active_width if experts else intermediate,
            vocab_size=_number(text, "vocab_size", source),
            tie_word_embeddings=bool(tied),
            max_positions=text.get("max_position_embeddings"),
            linears=_linears(family, text, hidden, num_heads * head_dim, num_kv_heads * head_dim, dense),
            expert_parameters=experts.num_parameters if experts else 0,
            norms_per_layer=NORMS_PER_LAYER.get(family, 2),
            query_key_norm=family in QUERY_KEY_NORM,
            exact=family in KNOWN_FAMILIES,
            native_obstacle=native_obstacle(text),
            own_forward_obstacle=own_forward_obstacle(text | {"model_type": family}),
        )

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def norm_parameters(self) -> int:
        per_layer = self.norms_per_layer * self.hidden_size + (2 * self.head_dim if self.query_key_norm else 0)
        return self.num_layers * per_layer + self.hidden_size

    @property
    def trunk_parameters(self) -> int:
        """All parameters except the language-model head."""
        return self.embedding_parameters + self.linear_parameters + self.expert_parameters + self.norm_parameters

    @property
    def num_parameters(self) -> int:
        """Parameters of the language model; a tied head counts once."""
        return self.trunk_parameters + (0 if self.tie_word_embeddings else self.embedding_parameters)

    def divided(self, width: int) -> Self:
        """What one of `width` devices computes that divide each layer. Fused layers are gathered where they end."""
        if width == 1 or self.model_type in FUSED:
            return self
        return replace(
            self,
            num_heads=self.num_heads // width,
            num_kv_heads=self.num_kv_heads // width,
            intermediate_size=self.intermediate_size // width,
        )

    def lora_parameters(self, rank: int, targets: tuple[str, ...] = ("all-linear",)) -> int:
        """Parameters of adapters: inputs x rank and rank x outputs for each target, embedding and head included."""
        chosen = [item for item in self.linears if targets == ("all-linear",) or item.name in targets]
        ends = len({"embed_tokens", "lm_head"}.intersection(targets))
        blocks = self.num_layers * sum(rank * (item.inputs + item.outputs) for item in chosen)
        return blocks + ends * rank * (self.vocab_size + self.hidden_size)


KNOWN_FAMILIES = frozenset(
    {
        "cohere",
        "cohere2",
        "ernie4_5",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "granite",
        "granitemoe",
        "llama",
        "ministral3",
        "mistral",
        "mixtral",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
    }
)
"whose parameters are counted exactly"
NORMS_PER_LAYER = {"gemma2": 4, "gemma3": 4, "gemma3_text": 4, "cohere": 1, "cohere2": 1, "phi": 1}
"2 in other families"
QUERY_KEY_NORM = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text"})
QKV_BIAS_ALWAYS = frozenset({"qwen2", "qwen2_moe"})
FUSED = frozenset({"phi3"})
UNGATED = {"phi": ("dense", "fc1", "fc2"), "starcoder2": ("o_proj", "c_fc", "c_proj")}
"families of two feed-forward layers, all layers with biases: the names of the output of attention and of the two"
TIE = "tie_word_embeddings"


@cache
def family_defaults() -> Mapping[str, Mapping[str, Any]]:
    """What transformers assumes by `model_type` for keys that a `config.json` leaves out."""
    text = files("rl_compat.planning.shapes").joinpath("family_defaults.json").read_text(encoding="utf-8")
    defaults: dict[str, dict[str, Any]] = json.loads(text)
    return defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The feed-forward parts of a mixture of experts."""

    num_parameters: int
    "of all blocks, without the shared expert of each block"
    shared_width: int
    "of the expert that computes every token; 0 without one"
    active_width: int
    "of all experts that compute a token"


def _experts(text: Mapping[str, Any], num_layers: int, hidden: int, intermediate: int) -> Experts | None:
    """The experts that a configuration describes; None without any."""
    count = next((text[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if text.get(key)), 1)
    if count == 1:
        return None
    width = text.get("moe_intermediate_size") or intermediate
    shared = text.get("shared_expert_intermediate_size") or width * (text.get("n_shared_experts") or 0)
    dense_layers = text.get("first_k_dense_replace") or len(text.get("mlp_only_layers") or ())
    expert_layers = num_layers - dense_layers
    gate = hidden if text.get("shared_expert_intermediate_size") else 0
    each = count * (3 * hidden * width + hidden) + gate
    return Experts(
        num_parameters=expert_layers * each + dense_layers * 3 * hidden * (intermediate - shared),
        shared_width=shared,
        active_width=shared + (text.get("num_experts_per_tok") or 1) * width,
    )


def _linears(
    family: str, config: Mapping[str, Any], hidden: int, query: int, kv: int, intermediate: int
) -> tuple[Linear, ...]:
    """Of one block, with a feed-forward part of width `intermediate`; none if it is 0."""
    if family in FUSED:
        return (
            Linear(name="qkv_proj", inputs=hidden, outputs=query + 2 * kv),
            Linear(name="o_proj", inputs=query, outputs=hidden),
            Linear(name="gate_up_proj", inputs=hidden, outputs=2 * intermediate),
            Linear(name="down_proj", inputs=intermediate, outputs=hidden),
        )
    plain = family in UNGATED
    attention_bias, mlp_bias = bool(config.get("attention_bias", plain)), bool(config.get("mlp_bias", plain))
    qkv_bias = attention_bias or family in QKV_BIAS_ALWAYS
    output, *entries, down = UNGATED.get(family, ("o_proj", "gate_proj", "up_proj", "down_proj"))
    attention = (
        Linear(name="q_proj", inputs=hidden, outputs=query, bias=qkv_bias),
        Linear(name="k_proj", inputs=hidden, outputs=kv, bias=qkv_bias),
        Linear(name="v_proj", inputs=hidden, outputs=kv, bias=qkv_bias),
        Linear(name=output, inputs=query, outputs=hidden, bias=attention_bias),
    )
    if intermediate == 0:
        return attention
    return (
        *attention,
        *(Linear(name=name, inputs=hidden, outputs=intermediate, bias=mlp_bias) for name in entries),
        Linear(name=down, inputs=intermediate, outputs=hidden, bias=mlp_bias),
    )


def _number(config: Mapping[str, Any], key: str, source: str, *, otherwise: int | None = None) -> int:
    value = config.get(key)
    if value is None and otherwise is not None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "is missing" if value is None else f"is `{value}`, not a positive whole number"
        raise ModelError(
            f"`{source}`: `{key}` {found}",
            hint="rl_compat trains decoder-only language models in the Hugging Face format",
        )
    return value
