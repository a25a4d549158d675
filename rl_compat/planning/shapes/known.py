"""Shapes of models that can be planned before they are downloaded, from their published `config.json`.

The string below each shape gives the source of its dimensions and the published number of parameters in billions, with
and without embeddings. The instruct and base models of a size have the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.planning.shapes.shape import ModelShape


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
"the model's own config.json; 0.135"
SMOLLM2_360M = _smollm2(960, 2560, 32, 15, 5)
"phanerozoic/8bit-threshold-computer SMOLLM2_ARCHITECTURE.md, read from the weights; 0.362"
SMOLLM2_1_7B = _smollm2(2048, 8192, 24, 32, 32)
"arXiv:2502.02737, without groups of heads; 1.71"
QWEN25_0_5B = _qwen2(896, 4864, 24, 14, 2, tied=True)
"pytorch/torchtune qwen2_5_0_5b; 0.49 and 0.36"
QWEN25_1_5B = _qwen2(1536, 8960, 28, 12, 2, tied=True)
"pytorch/torchtune qwen2_5_1_5b_instruct; 1.54 and 1.31"
QWEN25_3B = _qwen2(2048, 11008, 36, 16, 2, tied=True)
"pytorch/torchtune qwen2_5_3b; 3.09 and 2.77"
QWEN25_7B = _qwen2(3584, 18944, 28, 28, 4, tied=False)
"pytorch/torchtune qwen2_5_7b_instruct; 7.61 and 6.53"
QWEN25_14B = _qwen2(5120, 13824, 48, 40, 8, tied=False)
"pytorch/torchtune qwen2_5_14b_instruct; 14.7 and 13.1 on the card, its weights are 14.77"
QWEN25_32B = _qwen2(5120, 27648, 64, 40, 8, tied=False)
"pytorch/torchtune qwen2_5_32b_instruct; 32.5 and 31.0 on the card, its weights are 32.76"
QWEN3_0_6B = _qwen3(1024, 3072, 28, 16, 8, tied=True)
"pytorch/torchtune qwen3_0_6b_instruct; 0.6 and 0.44"
QWEN3_1_7B = _qwen3(2048, 6144, 28, 16, 8, tied=True)
"pytorch/torchtune qwen3_1_7b_instruct; 1.7 and 1.4"
QWEN3_4B = _qwen3(2560, 9728, 36, 32, 8, tied=True)
"pytorch/torchtune qwen3_4b_instruct; 4.0 and 3.6"
QWEN3_8B = _qwen3(4096, 12288, 36, 32, 8, tied=False)
"pytorch/torchtune qwen3_8b_instruct; 8.2 and 6.95"
QWEN3_14B = _qwen3(5120, 17408, 40, 40, 8, tied=False)
"pytorch/torchtune qwen3_14b_instruct; 14.8 and 13.2"
QWEN3_32B = _qwen3(5120, 25600, 64, 64, 8, tied=False)
"pytorch/torchtune qwen3_32b; 32.8 and 31.2"

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
"by the name in `rlc models` or on the hub, in the order of their parameters"
