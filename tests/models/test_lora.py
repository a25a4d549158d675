"""Adapters: where they sit, what they train, and how they leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, role_plan
from fakes.models import save_random_model
from fakes.part_settings import lora_of
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rl_compat.errors import ModelError
from rl_compat.models.lora import (
    LoraSettings,
    adapter_disabled,
    add_adapters,
    merge_for_export,
    trainable_parameters,
)

IDS = torch.arange(6, 30)[None]


def _with_adapters(folder: Path, *, settings: LoraSettings | None = None, **plan) -> nn.Module:
    """A model whose adapters were moved away from zero."""
    torch.manual_seed(0)
    model = causal_lm(folder, role=role_plan(**plan), lora=settings or lora_of(rank=4, alpha=8.0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    return model


def test_new_adapters_change_nothing(llama_folder: Path) -> None:
    base = causal_lm(llama_folder, role=role_plan())
    adapted = causal_lm(llama_folder, role=role_plan(), lora=lora_of(rank=4))
    assert torch.equal(base(IDS).logits, adapted(IDS).logits)


def test_switched_off_adapters_give_the_base(llama_folder: Path) -> None:
    base, adapted = causal_lm(llama_folder, role=role_plan()), _with_adapters(llama_folder)
    trained = set(trainable_parameters(adapted))
    with adapter_disabled(adapted):
        assert torch.equal(adapted(IDS).logits, base(IDS).logits)
    assert not torch.allclose(adapted(IDS).logits, base(IDS).logits, atol=1e-2)
    assert set(trainable_parameters(adapted)) == trained


def test_adapters_come_back_on_after_an_error(llama_folder: Path) -> None:
    adapted = _with_adapters(llama_folder)
    before = adapted(IDS).logits
    with pytest.raises(KeyboardInterrupt), adapter_disabled(adapted):
        raise KeyboardInterrupt
    assert torch.equal(adapted(IDS).logits, before)


def test_all_linear_is_every_layer_but_the_head_and_only_adapters_train(llama_folder: Path) -> None:
    """A-CKPT-07."""
    model = _with_adapters(llama_folder)
    names = set(trainable_parameters(model))
    assert len(names) == 2 * 7 * 2
    assert all("lora_" in name and "lm_head" not in name for name in names)


def test_named_targets_get_the_adapters(llama_folder: Path) -> None:
    model = _with_adapters(llama_folder, settings=lora_of(rank=2, targets=("q_proj", "v_proj")))
    assert {name.split(".")[4] for name in trainable_parameters(model)} == {"q_proj", "v_proj"}


def test_targets_that_the_model_lacks_are_refused(llama_folder: Path) -> None:
    with pytest.raises(ModelError) as error:
        _with_adapters(llama_folder, settings=lora_of(rank=2, targets=("query",)))
    assert "`query`" in error.value.message


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
@pytest.mark.parametrize("tied", [True, False])
def test_merged_weights_give_the_adapted_logits_under_plain_names(tmp_path: Path, storage: str, tied: bool) -> None:
    """A-CKPT-05: also after a merge, one copy of tied weights, tied after load."""
    folder = save_random_model(tmp_path / "base", tie_word_embeddings=tied)
    adapted = _with_adapters(folder, storage_dtype=storage)
    expected = adapted(IDS).logits
    plain = causal_lm(folder, role=role_plan())
    merged = merge_for_export(adapted)
    assert ("lm_head.weight" in merged) is not tied
    assert set(merged) == {name for name, _ in plain.named_parameters()}
    plain.save_pretrained(tmp_path / "merged", state_dict=merged)
    exported = causal_lm(tmp_path / "merged", role=role_plan())
    assert (exported.lm_head.weight is exported.model.embed_tokens.weight) is tied
    torch.testing.assert_close(exported(IDS).logits, expected, atol=1e-4 if storage == "fp32" else 0.05, rtol=1e-3)
    assert torch.equal(adapted(IDS).logits, expected)


@pytest.mark.parametrize(
    ("quantization", "dtype", "most_off", "tolerance"),
    [("nf4", torch.uint8, 0.5, 1e-3), ("int8", torch.int8, 0.05, 1e-4)],
)
def test_adapters_over_a_quantized_base_train_and_merge(
    quantization: str, dtype: torch.dtype, most_off: float, tolerance: float, tmp_path: Path
) -> None:
    if quantization == "nf4":
        pytest.importorskip("bitsandbytes")
    folder = save_random_model(tmp_path, hidden_size=64)
    base, model = (
        causal_lm(folder, role=role_plan()),
        _with_adapters(folder, quantization=quantization),
    )
    assert {p.dtype for name, p in model.named_parameters() if "base_layer.weight" in name} == {dtype}
    with adapter_disabled(model):
        distance = (model(IDS).logits - base(IDS).logits).abs().mean()
        assert 0 < distance < most_off * base(IDS).logits.abs().mean()
    parameter = trainable_parameters(model)["model.layers.0.self_attn.q_proj.lora_B.default.weight"]
    model(IDS).logits.square().mean().backward()
    numeric = []
    for step in (1e-2, -1e-2):
        with torch.no_grad():
            parameter[0, 0] += step
            numeric.append(model(IDS).logits.square().mean().item() / (2 * step))
            parameter[0, 0] -= step
    assert parameter.grad[0, 0].item() == pytest.approx(sum(numeric), rel=0.05)
    merged = merge_for_export(model)
    assert set(merged) == {name for name, _ in base.named_parameters()}
    base.load_state_dict(merged, strict=False)
    torch.testing.assert_close(base(IDS).logits, model(IDS).logits, atol=tolerance, rtol=tolerance)


def test_merging_leaves_an_8_bit_base_of_bitsandbytes_as_it_was(llama_folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    settings = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(llama_folder, quantization_config=settings, device_map={"": "cpu"})
    add_adapters(model, lora_of(rank=4))
    before = model(IDS).logits
    merge_for_export(model)
    assert torch.equal(model(IDS).logits, before)


def test_full_training_cannot_be_quantized(llama_folder: Path) -> None:
    with pytest.raises(ModelError) as error:
        causal_lm(llama_folder, role=role_plan(quantization="nf4"))
    assert "`nf4`" in error.value.message
    assert "`model.lora_rank`" in str(error.value.hint)


def test_the_first_weights_depend_on_the_seed_alone(llama_folder: Path) -> None:
    """Each of several processes makes its own copy of them."""

    def first(seed: int, state: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(state)
        model = causal_lm(llama_folder, role=role_plan(), lora=replace(lora_of(rank=4), seed=seed))
        assert torch.initial_seed() == state
        return {name: tensor for name, tensor in model.named_parameters() if "lora_A" in name}

    one, same, other = first(1, 5), first(1, 6), first(2, 5)
    assert all(tensor.equal(same[name]) and not tensor.equal(other[name]) for name, tensor in one.items())
