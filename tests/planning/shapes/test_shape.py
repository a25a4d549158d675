"""Shapes read from configurations, against the models that transformers builds from the same ones."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from fakes.machines import QWEN_05B
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rl_compat.errors import ModelError
from rl_compat.planning.shapes.known import KNOWN_SHAPES
from rl_compat.planning.shapes.shape import KNOWN_FAMILIES, ModelShape, family_defaults

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
    ("gemma", {}),
    ("gemma", {"tie_word_embeddings": False}),
    ("gemma2", {"head_dim": 16}),
    ("cohere", {}),
    ("mixtral", {"num_local_experts": 4}),
    ("qwen2_moe", {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}),
    ("qwen2_moe", {"num_experts": 4, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0]}),
    ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 16, "mlp_only_layers": [1]}),
    ("granitemoe", {"num_local_experts": 4}),
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


@pytest.mark.parametrize("family", sorted(KNOWN_FAMILIES - {"gemma3"}))
def test_what_a_configuration_leaves_out_is_what_the_family_assumes(family, tmp_path: Path) -> None:
    """A `config.json` with the sizes alone, also without the key-value heads: ties, heads, experts and biases."""
    given = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(given | {"model_type": family}))

    shape = ModelShape.from_folder(tmp_path)

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert shape.exact
    assert shape.num_parameters == model.num_parameters()
    assert shape.tie_word_embeddings == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)


def test_the_table_of_defaults_is_that_of_the_installed_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the families that are computed exactly; `scripts/family_defaults.py` writes the table for all of them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    installed = importlib.import_module("family_defaults").family_defaults()

    assert {name: family_defaults().get(name) for name in KNOWN_FAMILIES} == {
        name: installed.get(name) for name in KNOWN_FAMILIES
    }


@pytest.mark.parametrize("family", sorted({*family_defaults(), "llama", "qwen2", "olmo2", "granite"}))
def test_every_family_is_tied_as_transformers_ties_it(family) -> None:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no `{family}`")
    assert ModelShape.from_config({**SMALL, "model_type": family}).tie_word_embeddings == bool(
        getattr(CONFIG_MAPPING[family], "tie_word_embeddings", False)
    )


def test_an_explicit_tie_beats_the_default_of_the_family_in_both_places() -> None:
    text = {**SMALL, "model_type": "gemma3_text"}
    assert not ModelShape.from_config(
        {**SMALL, "model_type": "gemma", "tie_word_embeddings": False}
    ).tie_word_embeddings
    assert not ModelShape.from_config(
        {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False}
    ).tie_word_embeddings


def test_a_mixture_of_experts_computes_with_its_active_experts() -> None:
    shape = ModelShape.from_config({**SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})

    assert shape.intermediate_size == 2 * 80
    assert shape.expert_parameters == 3 * (4 * 3 * 48 * 80 + 4 * 48)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        *((family, ("all-linear",)) for family in ("llama", "qwen2", "phi3", "phi")),
        *((family, ("o_proj", "down_proj")) for family in ("llama", "qwen2", "phi3")),
        ("phi", ("dense", "fc1")),
        ("llama", ("q_proj", "lm_head", "embed_tokens")),
    ],
)
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
    ("change", "literals"),
    [
        ({"hidden_size": None}, ("`hidden_size`",)),
        ({"vocab_size": "many"}, ("`vocab_size`", "`many`")),
        ({"num_hidden_layers": 0}, ("`num_hidden_layers`", "`0`")),
        ({"head_dim": -4}, ("`head_dim`", "`-4`")),
        ({"num_key_value_heads": "two"}, ("`num_key_value_heads`", "`two`")),
    ],
)
def test_a_wrong_dimension_is_refused_by_file_and_key(change, literals, tmp_path: Path) -> None:
    config = {**SMALL, "model_type": "llama", **change}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    with pytest.raises(ModelError, match=r"config\.json") as caught:
        ModelShape.from_folder(tmp_path)

    assert all(literal in caught.value.message for literal in literals)


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_folder_without_a_usable_configuration_is_refused(text, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(ModelError, match=r"config\.json"):
        ModelShape.from_folder(tmp_path)
