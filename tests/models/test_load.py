"""Folders become models by plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from fakes.engines import causal_lm, role_plan
from fakes.models import save_random_model
from fakes.reward_models import save_reward_model
from safetensors.torch import load_file, save_file

from rl_compat.errors import ModelError
from rl_compat.models.load import check_reward_head, check_targets

IDS = torch.arange(6, 30)[None]


def test_a_trained_model_is_fp32_whatever_the_file_holds(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = causal_lm(folder, role=role_plan(storage_dtype="fp16"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_a_frozen_model_needs_no_gradients(llama_folder: Path) -> None:
    model = causal_lm(llama_folder, role=role_plan("reference"))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_checkpointing_follows_the_plan_and_only_trained_roles(llama_folder: Path) -> None:
    flags = [
        causal_lm(llama_folder, role=role_plan(role, gradient_checkpointing=True)).model.gradient_checkpointing
        for role in ("actor", "reference")
    ]
    assert flags == [True, False]


def test_dropout_is_off(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    model = causal_lm(folder, role=role_plan()).train()
    assert torch.equal(model(IDS).logits, model(IDS).logits)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """A-CKPT-05: save, load, compare logits."""
    folder = save_random_model(tmp_path / "model")
    model = causal_lm(folder, role=role_plan())
    model.save_pretrained(tmp_path / "again")
    again = causal_lm(tmp_path / "again", role=role_plan())
    assert list(load_file(tmp_path / "again" / "model.safetensors")).count("lm_head.weight") == 0
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(model(IDS).logits, again(IDS).logits)


def test_a_model_that_caps_attention_logits_is_loaded_with_eager_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.warns(RuntimeWarning, match="`eager`"):
        model = causal_lm(tmp_path, role=role_plan(repeat_kv=True))
    assert model.config._attn_implementation == "eager"


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        causal_lm(tmp_path, role=role_plan())
    assert "`config.json`" in error.value.message


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError) as error:
        causal_lm(folder, role=role_plan())
    assert f"`{folder}`" in error.value.message


def test_weights_in_a_pickle_are_refused(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError) as error:
        causal_lm(folder, role=role_plan())
    assert f"`{folder}`" in error.value.message


def test_missing_tensors_are_refused_and_not_made_up(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as error:
        causal_lm(folder, role=role_plan())
    assert "`model.layers.1.mlp.up_proj.weight`" in error.value.message


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    folder = save_random_model(tmp_path)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(ModelError) as error:
        causal_lm(folder, role=role_plan())
    assert f"`{folder}`" in error.value.message


def test_a_reward_model_is_checked_for_its_output_without_weights(llama_folder: Path, tmp_path: Path) -> None:
    """A language model; weights of one whose configuration says that it has one output; the real thing."""
    for family in ("llama", "bert"):
        check_reward_head(save_reward_model(tmp_path / family, family=family), trust_remote_code=False)
    with pytest.raises(ModelError, match="2"):
        check_reward_head(llama_folder, trust_remote_code=False)
    with pytest.raises(ModelError, match="3"):
        check_reward_head(save_reward_model(tmp_path / "three", num_labels=3), trust_remote_code=False)
    headless = shutil.copytree(llama_folder, tmp_path / "headless")
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps(config | {"id2label": {"0": "LABEL_0"}}))
    with pytest.raises(ModelError, match=r"`score\.weight`"):
        check_reward_head(headless, trust_remote_code=False)


@pytest.mark.parametrize(
    ("targets", "headless", "missing"),
    [
        (("nosuch",), False, "nosuch"),
        (("q_proj", "nosuch"), False, "nosuch"),
        (("lm_head",), True, "lm_head"),
        (("input_layernorm",), False, "input_layernorm"),
        (("lm_head", "q_proj"), True, None),
        (("lm_head", "embed_tokens"), False, None),
        (("all-linear",), True, None),
    ],
)
def test_adapter_targets_are_checked_without_weights(
    llama_folder: Path, targets: tuple[str, ...], headless: bool, missing: str | None
) -> None:
    def check() -> None:
        check_targets(llama_folder, targets, headless=headless, trust_remote_code=False)

    if missing is None:
        check()
        return
    with pytest.raises(ModelError, match=f"`{missing}`"):
        check()
