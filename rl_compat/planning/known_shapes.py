"""Shapes of models that can be planned for before they are fetched, from the `config.json` that each is published with.

Sources: huggingface.co/HuggingFaceTB (SmolLM2) and huggingface.co/Qwen (Qwen2.5, Qwen3); the instruct and the base
model of a size share their shape. The parameters they add up to are those that the model cards give.
"""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.planning.model_shape import ModelShape


def _smollm2(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> ModelShape:
    return _shape("llama", (hidden, intermediate, layers, heads, kv_heads), vocab=49152, positions=8192, tied=True)


def _qwen2(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, *, tied: bool) -> ModelShape:
    vocab = 151936 if hidden < 3584 else 152064
    return _shape("qwen2", (hidden, intermediate, layers, heads, kv_heads), vocab=vocab, positions=32768, tied=tied)


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, *, tied: bool) -> ModelShape:
    sizes = (hidden, intermediate, layers, heads, kv_heads)
    return _shape("qwen3", sizes, vocab=151936, positions=40960, tied=tied, head_dim=128)


def _shape(
    family: str,
    sizes: tuple[int, int, int, int, int],
    *,
    vocab: int,
    positions: int,
    tied: bool,
    head_dim: int | None = None,
) -> ModelShape:
    hidden, intermediate, layers, heads, kv_heads = sizes
    return ModelShape.from_config(
        {
            "model_type": family,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": vocab,
            "max_position_embeddings": positions,
            "tie_word_embeddings": tied,
        }
    )


SMOLLM2_135M = _smollm2(576, 1536, 30, 9, 3)
SMOLLM2_360M = _smollm2(960, 2560, 32, 15, 5)
SMOLLM2_1_7B = _smollm2(2048, 8192, 24, 32, 32)
QWEN25_0_5B = _qwen2(896, 4864, 24, 14, 2, tied=True)
QWEN25_1_5B = _qwen2(1536, 8960, 28, 12, 2, tied=True)
QWEN25_3B = _qwen2(2048, 11008, 36, 16, 2, tied=True)
QWEN25_7B = _qwen2(3584, 18944, 28, 28, 4, tied=False)
QWEN25_14B = _qwen2(5120, 13824, 48, 40, 8, tied=False)
QWEN25_32B = _qwen2(5120, 27648, 64, 40, 8, tied=False)
QWEN3_0_6B = _qwen3(1024, 3072, 28, 16, 8, tied=True)
QWEN3_1_7B = _qwen3(2048, 6144, 28, 16, 8, tied=True)
QWEN3_4B = _qwen3(2560, 9728, 36, 32, 8, tied=True)
QWEN3_8B = _qwen3(4096, 12288, 36, 32, 8, tied=False)
QWEN3_14B = _qwen3(5120, 17408, 40, 40, 8, tied=False)
QWEN3_32B = _qwen3(5120, 25600, 64, 64, 8, tied=False)

KNOWN_SHAPES: Mapping[str, ModelShape] = {
    "smollm2-135m": SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-360M-Instruct": SMOLLM2_360M,
    "Qwen/Qwen2.5-0.5B-Instruct": QWEN25_0_5B,
    "Qwen/Qwen3-0.6B": QWEN3_0_6B,
    "Qwen/Qwen2.5-1.5B-Instruct": QWEN25_1_5B,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": SMOLLM2_1_7B,
    "Qwen/Qwen3-1.7B": QWEN3_1_7B,
    "Qwen/Qwen2.5-3B-Instruct": QWEN25_3B,
    "Qwen/Qwen3-4B": QWEN3_4B,
    "Qwen/Qwen2.5-7B-Instruct": QWEN25_7B,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "Qwen/Qwen3-14B": QWEN3_14B,
    "Qwen/Qwen2.5-14B-Instruct": QWEN25_14B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "Qwen/Qwen2.5-32B-Instruct": QWEN25_32B,
}
"by the name that `rlc models` gives them or the hub has, in the order of their parameters"
