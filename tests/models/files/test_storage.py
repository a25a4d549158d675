"""Frozen half-precision weights with fp32 arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, role_plan
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rl_compat.models.files.storage import PIECE_NUMBERS, StoredLinear, keep_in_storage_dtype, linear_in_pieces
from rl_compat.planning.memory import budget as memory


def _reference(folder: Path, storage: str, compute: str = "fp32"):
    return causal_lm(folder, role=role_plan("reference", storage_dtype=storage, compute_dtype=compute))


@pytest.mark.parametrize(("storage", "tolerance"), [("fp16", 0.02), ("bf16", 0.15)])
def test_half_storage_is_close_to_fp32(llama_folder: Path, storage: str, tolerance: float) -> None:
    ids = torch.arange(6, 26)[None]
    exact, stored = _reference(llama_folder, "fp32")(ids).logits, _reference(llama_folder, storage)(ids).logits
    assert stored.dtype == torch.float32
    assert 0 < (exact - stored).abs().max() < tolerance


def test_only_matrices_are_in_the_storage_dtype_and_norms_keep_their_exact_values(llama_folder: Path) -> None:
    exact, stored = _reference(llama_folder, "fp32"), _reference(llama_folder, "fp16")
    for (name, one), (_, other) in zip(exact.named_parameters(), stored.named_parameters(), strict=True):
        assert other.dtype == (torch.float16 if one.dim() == 2 else torch.float32), name
        assert one.dim() == 2 or torch.equal(one, other)
    assert stored.lm_head.weight is stored.model.embed_tokens.weight


def test_the_result_is_that_of_the_rounded_weights_in_fp32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4, bias=False))
    rounded = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4, bias=False))
    model.half()
    rounded.load_state_dict(model.state_dict())
    keep_in_storage_dtype(model)
    x = torch.randn(3, 8)
    torch.testing.assert_close(model(x), rounded(x))


def test_gradients_pass_through_stored_layers_to_their_input() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4)).half().requires_grad_(False)
    keep_in_storage_dtype(model)
    x = torch.randn(3, 8, requires_grad=True)
    model(x).square().sum().backward()
    layer = model[0]
    expected = 2 * (x.detach() @ layer.weight.float().T + layer.bias.float()) @ layer.weight.float()
    torch.testing.assert_close(x.grad, expected)


def test_backward_keeps_no_fp32_copy_of_a_stored_weight() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).half().requires_grad_(False)
    keep_in_storage_dtype(model)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model(torch.randn(2, 64, requires_grad=True))
    assert saved
    assert all(tensor.dtype == torch.float16 for tensor in saved if tensor.numel() == 64 * 64)


def test_under_autocast_a_stored_layer_multiplies_in_the_autocast_dtype() -> None:
    model = nn.Sequential(nn.Linear(8, 4)).bfloat16().requires_grad_(False)
    keep_in_storage_dtype(model)
    assert isinstance(model[0], StoredLinear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.randn(2, 8)).dtype == torch.bfloat16


class LargestCast(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is cast inside it."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.numbers = max(self.numbers, args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [True, False])
def test_a_large_stored_matrix_is_multiplied_without_a_whole_copy(bias: bool) -> None:
    torch.manual_seed(0)
    weight, states = torch.randn(9001, 1024).half(), torch.randn(3, 1024)
    added = torch.randn(9001).half() if bias else None
    with LargestCast() as casts, torch.no_grad():
        output = linear_in_pieces(states, weight, added)
    whole = states @ weight.float().T + (0 if added is None else added.float())
    assert 0 < casts.numbers <= PIECE_NUMBERS < weight.numel()
    torch.testing.assert_close(output, whole, atol=1e-4, rtol=1e-5)


def test_a_stored_matrix_of_the_dtype_of_the_states_is_not_cast() -> None:
    weight, states = torch.randn(9001, 1024).bfloat16(), torch.randn(2, 1024).bfloat16()
    with LargestCast() as casts, torch.no_grad():
        output = linear_in_pieces(states, weight, None)
    assert casts.numbers == 0
    assert output.dtype == torch.bfloat16


def test_a_plan_counts_the_piece_that_is_cast() -> None:
    assert memory.CAST_NUMBERS == PIECE_NUMBERS
