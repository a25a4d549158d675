from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, role_plan
from fakes.models import save_random_model
from fakes.part_settings import lora_of
from peft import PeftModel
from safetensors import safe_open
from torch import nn
from transformers import AutoModelForCausalLM

from rl_compat.errors import CheckpointError, ModelError
from rl_compat.models.files.export import export_adapter, export_model
from rl_compat.models.lora import add_adapters
from rl_compat.models.tokenizer import load_tokenizer

IDS = torch.tensor([[2, 7, 8, 16, 1, 3]])


def load(folder: Path) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


@torch.no_grad()
def changed(folder: Path) -> nn.Module:
    model = load(folder)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    return model


def test_a_model_comes_back_with_the_same_logits_and_tied_weights_once(llama_folder: Path, tmp_path: Path) -> None:
    """A-CKPT-05."""
    model = changed(llama_folder)
    output = export_model(model, source_folder=llama_folder, output=tmp_path / "out")
    with safe_open(output / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    again = load(output)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=0)


def test_untied_weights_are_both_written(tmp_path: Path) -> None:
    source = save_random_model(tmp_path / "source", tie_word_embeddings=False)
    model = changed(source)
    again = load(export_model(dict(model.state_dict()), source_folder=source, output=tmp_path / "out"))
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=0)
    assert not torch.equal(again.lm_head.weight, again.model.embed_tokens.weight)


def test_adapters_are_merged(llama_folder: Path, tmp_path: Path) -> None:
    """A-CKPT-05, after a LoRA merge."""
    torch.manual_seed(0)
    model = changed(llama_folder)
    add_adapters(model, lora_of(rank=2))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter.data, std=0.1)
    again = load(export_model(model, source_folder=llama_folder, output=tmp_path / "out"))
    torch.testing.assert_close(again(IDS).logits, model.eval()(IDS).logits, rtol=1e-4, atol=1e-4)
    assert not any("lora" in name for name, _ in again.named_parameters())


def test_the_folder_has_the_tokenizer_and_the_dtype_of_the_weights(llama_folder: Path, tmp_path: Path) -> None:
    model = load(llama_folder).half()
    output = export_model(model, source_folder=llama_folder, output=tmp_path / "out")
    assert json.loads((output / "config.json").read_text())["dtype"] == "float16"
    bundle = load_tokenizer(output)
    assert bundle.stop_token_ids == (1,)
    assert bundle.tokenizer.chat_template == load_tokenizer(llama_folder).tokenizer.chat_template


def test_a_folder_with_something_in_it_is_left_alone(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError) as error:
        export_model(load(llama_folder), source_folder=llama_folder, output=tmp_path)
    assert f"`{tmp_path}`" in error.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_filled(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    output = export_model(load(llama_folder), source_folder=llama_folder, output=tmp_path / "out")
    assert (output / "model.safetensors").is_file()


def test_what_cannot_be_written_leaves_nothing(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError) as failed:
        export_model(load(llama_folder), source_folder=llama_folder, output=tmp_path / "file" / "out")
    assert f"`{tmp_path / 'file' / 'out'}`" in failed.value.message
    source = tmp_path / "no-config"
    source.mkdir()
    with pytest.raises(ModelError):
        export_model(load(llama_folder), source_folder=source, output=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "no-config"]


ADAPTED = [("lm_head",), ("lm_head", "q_proj"), ("embed_tokens",), ("embed_tokens", "lm_head"), ("all-linear",)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("targets", ADAPTED, ids=str)
def test_an_adapted_model_is_exported_as_it_was_trained(targets: tuple[str, ...], tied: bool, tmp_path: Path) -> None:
    """Merged, and as an adapter that peft loads: the same logits, also where an adapter unties embedding and head."""
    base = save_random_model(tmp_path / "base", tie_word_embeddings=tied)
    settings = replace(lora_of(rank=4), targets=targets)
    model = causal_lm(base, role=role_plan(), lora=settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
        expected = model(IDS).logits
        merged = load(export_model(model, source_folder=base, output=tmp_path / "merged"))
        adapter = export_adapter(model, settings, base=str(base), output=tmp_path / "adapter")
        loaded = PeftModel.from_pretrained(load(base), adapter)

        assert not torch.allclose(load(base)(IDS).logits, expected, atol=0.1)
        torch.testing.assert_close(merged(IDS).logits, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(loaded(IDS).logits, expected, atol=1e-5, rtol=1e-5)
    is_shared = merged.lm_head.weight is merged.model.embed_tokens.weight
    assert is_shared == (tied and targets == ("all-linear",))
