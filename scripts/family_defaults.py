"""Write `rl_compat/planning/shapes/family_defaults.json`: what a family's configuration class assumes for keys that a
`config.json` leaves out, from the installed transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

PATH = Path(__file__).parent.parent / "rl_compat" / "planning" / "shapes" / "family_defaults.json"
KEYS = (
    "tie_word_embeddings",
    "num_key_value_heads",
    "head_dim",
    "attention_bias",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
)
"those that decide how many parameters a model has"


def family_defaults() -> dict[str, dict[str, bool | int]]:
    """The defaults that are neither absent, zero nor false, by `model_type` of a causal language model."""
    found = {name: _defaults(CONFIG_MAPPING[name]) for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    return {name: defaults for name, defaults in found.items() if defaults}


def _defaults(kind: type) -> dict[str, bool | int]:
    declared = {key: getattr(kind, key, None) for key in KEYS}
    return {key: value for key, value in declared.items() if isinstance(value, int) and value}


def as_text(defaults: Mapping[str, Mapping[str, bool | int]]) -> str:
    """One line for each family."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(values)}" for name, values in defaults.items())
    return f"{{\n{lines}\n}}\n"


if __name__ == "__main__":
    PATH.write_text(as_text(family_defaults()), encoding="utf-8")
