"""The critic's model: from a language model, a reward model or a saved critic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from fakes.engines import role_plan, value_model
from fakes.part_settings import lora_of
from safetensors.torch import save_file

from rl_compat.errors import ModelError
from rl_compat.models.lora import LoraSettings, trainable_parameters
from rl_compat.models.scalar import HEAD_FILE

IDS = torch.arange(6, 30)[None]
ROLE = role_plan("critic")


def test_first_values_are_zero_and_the_trunk_is_that_of_the_language_model(llama_folder: Path) -> None:
    model = value_model(llama_folder, role=ROLE)
    language_model = transformers.AutoModelForCausalLM.from_pretrained(llama_folder)
    assert model(IDS).shape == IDS.shape
    assert model(IDS).abs().sum() == 0
    hidden = model.trunk(IDS).last_hidden_state
    torch.testing.assert_close(hidden, language_model.model(IDS).last_hidden_state)
    assert not any("lm_head" in name for name, _ in model.named_parameters())


def test_values_are_fp32_under_autocast(llama_folder: Path) -> None:
    model = value_model(llama_folder, role=ROLE)
    torch.nn.init.normal_(model.head.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(IDS).dtype == torch.float32


@pytest.mark.parametrize("lora", [None, lora_of(rank=4)], ids=["all weights", "adapters"])
def test_a_saved_critic_gives_the_same_values(llama_folder: Path, tmp_path: Path, lora: LoraSettings | None) -> None:
    model = value_model(llama_folder, role=ROLE, lora=lora)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    again = value_model(tmp_path, role=ROLE)
    torch.testing.assert_close(again(IDS), model(IDS))
    assert again(IDS).abs().sum() > 0


def test_adapters_train_beside_the_head(llama_folder: Path) -> None:
    names = set(trainable_parameters(value_model(llama_folder, role=ROLE, lora=lora_of(rank=4))))
    assert {"head.weight", "head.bias"} < names
    assert all(name.startswith("head.") or "lora_" in name for name in names)


def test_a_reward_models_score_is_the_first_head(tmp_path: Path, llama_folder: Path) -> None:
    torch.manual_seed(0)
    reward_model = transformers.AutoModelForSequenceClassification.from_pretrained(llama_folder, num_labels=1)
    reward_model.save_pretrained(tmp_path)
    score = reward_model.eval()(IDS).logits[0, 0]
    torch.testing.assert_close(value_model(tmp_path, role=ROLE)(IDS)[0, -1], score)


def test_a_head_of_another_size_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    value_model(llama_folder, role=ROLE).save_pretrained(tmp_path)
    save_file({"weight": torch.zeros(1, 7), "bias": torch.zeros(1)}, tmp_path / HEAD_FILE)
    with pytest.raises(ModelError) as error:
        value_model(tmp_path, role=ROLE)
    assert "(1, 7)" in error.value.message
    assert "(1, 32)" in error.value.message
