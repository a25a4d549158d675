"""Frozen weights in 8 bits with exact products."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, role_plan
from fakes.part_settings import lora_of
from torch import Tensor, nn

from rl_compat.models.files.storage import Int8Linear, keep_in_int8
from rl_compat.models.lora import merge_for_export


def layers(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(sizes))).requires_grad_(False)


def quantized(*sizes: int) -> nn.Sequential:
    model = layers(*sizes)
    keep_in_int8(model, device="cpu")
    return model


def test_a_weight_is_off_by_half_a_step_of_its_row_at_most() -> None:
    plain, kept = layers(32, 8)[0], quantized(32, 8)[0]
    assert isinstance(kept, Int8Linear) and kept.weight.dtype == torch.int8 and not kept.weight.requires_grad
    step = plain.weight.abs().amax(dim=1, keepdim=True) / 127
    assert torch.all((kept.dequantized() - plain.weight).abs() <= step / 2 + 1e-7)
    assert kept.weight.abs().amax(dim=1).eq(127).all()


def test_a_row_of_zeros_stays_zero() -> None:
    model = layers(4, 2)
    model[0].weight[1] = 0
    keep_in_int8(model, device="cpu")
    assert torch.equal(model[0].dequantized()[1], torch.zeros(4))


def test_only_the_weights_are_rounded() -> None:
    kept = quantized(32, 8)[0]
    x = torch.randn(3, 32)
    torch.testing.assert_close(kept(x), x @ kept.dequantized().T + kept.bias)


def test_gradients_pass_through_to_the_input() -> None:
    kept = quantized(8, 4)[0]
    x = torch.randn(3, 8, requires_grad=True)
    kept(x).square().sum().backward()
    weight = kept.dequantized()
    torch.testing.assert_close(x.grad, 2 * (x.detach() @ weight.T + kept.bias) @ weight)


def test_backward_keeps_no_unpacked_copy() -> None:
    model = quantized(64, 64, 64)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model(torch.randn(2, 64, requires_grad=True))
    assert saved
    assert {tensor.dtype for tensor in saved if tensor.numel() == 64 * 64} == {torch.int8}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_it_multiplies_in_the_autocast_dtype(dtype: torch.dtype) -> None:
    kept = quantized(8, 4)[0]
    with torch.autocast("cpu", dtype=dtype):
        assert kept(torch.randn(2, 8)).dtype == dtype
    with torch.autocast("cpu", dtype=dtype):
        x = torch.randn(2, 8, requires_grad=True)
        kept(x).float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
def test_embeddings_norms_and_the_output_layer_stay_as_the_plan_says(llama_folder: Path, storage: str) -> None:
    role = role_plan(quantization="int8", storage_dtype=storage)
    model = causal_lm(llama_folder, role=role, lora=lora_of(rank=4))
    half = torch.float16 if storage == "fp16" else torch.float32
    assert model.model.embed_tokens.weight.dtype == half and model.lm_head.weight.dtype == half
    assert model.model.norm.weight.dtype == torch.float32
    assert not isinstance(model.lm_head, Int8Linear)
    assert isinstance(model.model.layers[0].mlp.down_proj.base_layer, Int8Linear)
    assert model(torch.arange(6, 16)[None]).logits.dtype == torch.float32
    assert {tensor.dtype for tensor in merge_for_export(model).values() if tensor.dim() == 2} == {half}
