"""Shapes of models that can be planned before they are downloaded, from their published `config.json`.

The instruct and base models of a size have the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.planning.shapes.shape import ModelShape

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def _smollm2(*sizes: int) -> ModelShape:
    return _shape("llama", sizes, vocab_size=49152, max_position_embeddings=8192)


def _qwen2(*sizes: int, tied: bool = True) -> ModelShape:
    vocab = 151936 if tied else 152064
    return _shape("qwen2", sizes, vocab_size=vocab, max_position_embeddings=32768, tie_word_embeddings=tied)


def _qwen3(*sizes: int, tied: bool = True) -> ModelShape:
    return _shape(
        "qwen3", sizes, vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=tied, head_dim=128
    )


def _shape(family: str, sizes: tuple[int, ...], **others: int) -> ModelShape:
    given = {"model_type": family, "tie_word_embeddings": True, **others}
    return ModelShape.from_config(given | dict(zip(SIZES, sizes, strict=True)))


# Sources: SmolLM2's 135M from its own config.json, 360M from its weights, 1.7B (without groups of heads) from
# arXiv:2502.02737; Qwen from the builders of pytorch/torchtune.
KNOWN_SHAPES: Mapping[str, ModelShape] = {
    "smollm2-135m": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _smollm2(960, 2560, 32, 15, 5),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, 8),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _smollm2(2048, 8192, 24, 32, 32),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, 8),
    "Qwen/Qwen2.5-3B-Instruct": _qwen2(2048, 11008, 36, 16, 2),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, 8),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(3584, 18944, 28, 28, 4, tied=False),
    "Qwen/Qwen3-8B": _qwen3(4096, 12288, 36, 32, 8, tied=False),
    "Qwen/Qwen3-14B": _qwen3(5120, 17408, 40, 40, 8, tied=False),
    "Qwen/Qwen2.5-14B-Instruct": _qwen2(5120, 13824, 48, 40, 8, tied=False),
    "Qwen/Qwen3-32B": _qwen3(5120, 25600, 64, 64, 8, tied=False),
    "Qwen/Qwen2.5-32B-Instruct": _qwen2(5120, 27648, 64, 40, 8, tied=False),
}
"by the name in `rlc models` or on the hub, in the order of their parameters"
SMOLLM2_135M = KNOWN_SHAPES["smollm2-135m"]
