"""Shapes of models that can be planned for before they are fetched."""

from __future__ import annotations

from collections.abc import Mapping

from rl_compat.planning.model_shape import ModelShape

SMOLLM2_135M = ModelShape.from_config(
    {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
)

KNOWN_SHAPES: Mapping[str, ModelShape] = {"smollm2-135m": SMOLLM2_135M}
"by the name that `rlc models` gives them"
