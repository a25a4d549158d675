"""Shapes read from configurations, against the models that transformers builds from the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fakes.machines import QWEN_05B
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from rl_compat.errors import ModelError
from rl_compat.planning.shapes.known import KNOWN_SHAPES
from rl_compat.planning.shapes.shape import KNOWN_FAMILIES, ModelShape

SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "pad_token_id": 0,
}
VARIANTS = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 12}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ("gemma3_text", {"head_dim": 16}),
    ("mistral", {"head_dim": 8}),
    ("phi3", {}),
    ("smollm3", {}),
    ("smollm3", {"tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_parameters_are_counted_exactly(family, changes, tmp_path: Path) -> None:
    config = AutoConfig.for_model(family, **SMALL, **changes)
    config.save_pretrained(tmp_path)

    shape = ModelShape.from_folder(tmp_path)

    with torch.device("meta"):
        model, trunk = AutoModelForCausalLM.from_config(config), AutoModel.from_config(config)
    assert shape.exact
    assert shape.num_parameters == model.num_parameters()
    assert shape.trunk_parameters == trunk.num_parameters()


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
@pytest.mark.parametrize("targets", [("all-linear",), ("o_proj", "down_proj")])
def test_adapters_are_counted_as_peft_makes_them(family, targets) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = AutoConfig.for_model(family, **SMALL)
    model = AutoModelForCausalLM.from_config(config)
    modules = "all-linear" if targets == ("all-linear",) else list(targets)
    inject_adapter_in_model(LoraConfig(r=5, target_modules=modules), model)
    added = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)

    assert ModelShape.from_config(config.to_dict()).lora_parameters(5, targets) == added


def test_known_sizes_of_published_models() -> None:
    assert QWEN_05B.num_parameters == 494_032_768
    assert KNOWN_SHAPES["smollm2-135m"].num_parameters == 134_515_008


def test_an_unknown_family_is_counted_as_llama_and_says_that_it_is_not_exact() -> None:
    shape = ModelShape.from_config({**SMALL, "model_type": "novel"})

    assert "novel" not in KNOWN_FAMILIES
    assert not shape.exact
    assert shape.num_parameters == ModelShape.from_config({**SMALL, "model_type": "llama"}).num_parameters


def test_the_text_part_of_a_multimodal_configuration_is_read() -> None:
    shape = ModelShape.from_config({"model_type": "gemma3", "text_config": {**SMALL, "model_type": "gemma3_text"}})

    assert (shape.model_type, shape.hidden_size, shape.tie_word_embeddings) == ("gemma3_text", 48, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "`hidden_size` is missing"),
        ({"vocab_size": "many"}, "`vocab_size` is `many`, not a positive whole number"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` is `0`"),
        ({"head_dim": -4}, "`head_dim` is `-4`"),
        ({"num_key_value_heads": "two"}, "`num_key_value_heads` is `two`"),
    ],
)
def test_a_wrong_dimension_is_refused_by_file_and_key(change, message, tmp_path: Path) -> None:
    config = {**SMALL, "model_type": "llama", **change}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    with pytest.raises(ModelError, match=r"config\.json") as caught:
        ModelShape.from_folder(tmp_path)

    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "has no `config.json`"), ("{", "is not JSON"), ("[1]", "is not a configuration")],
)
def test_a_folder_without_a_usable_configuration_is_refused(text, message, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(ModelError, match=message):
        ModelShape.from_folder(tmp_path)
