"""A card's missing number formats and kernels raise, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from rl_compat.emulation.operations import ForbiddenOperations
from rl_compat.errors import HardwareError

P40 = ForbiddenOperations(name="Tesla P40", capability=(6, 1))
A100 = ForbiddenOperations(name="NVIDIA A100-SXM4-40GB", capability=(8, 0))


def test_a_bf16_product_is_refused_below_8_0() -> None:
    left = torch.ones(2, 2, dtype=torch.bfloat16)
    with P40, pytest.raises(HardwareError) as caught:
        left @ left
    assert caught.value.message == (
        "`aten::mm` in `bfloat16` needs compute capability 8.0, the emulated `Tesla P40` has 6.1"
    )


def test_casting_to_bf16_is_refused_and_casting_away_is_not() -> None:
    stored = torch.ones(2, dtype=torch.bfloat16)
    with P40:
        assert stored.float().sum() == 2
        assert torch.empty(2).copy_(stored).sum() == 2
        with pytest.raises(HardwareError, match="_to_copy"):
            torch.ones(2).bfloat16()
        with pytest.raises(HardwareError, match="copy_"):
            stored.copy_(torch.ones(2))


def test_autocast_to_bf16_is_refused() -> None:
    layer = nn.Linear(2, 2)
    with P40, torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(HardwareError, match="bfloat16"):
        layer(torch.ones(1, 2))


def test_fp32_and_fp16_work_forward_and_backward() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    with P40:
        loss = layer(torch.ones(2, 4)).square().mean()
        loss.backward()
        half = torch.ones(2, 2, dtype=torch.float16) @ torch.ones(2, 2, dtype=torch.float16)
    assert layer.weight.grad is not None
    assert half[0, 0] == 2


def test_a_bf16_product_in_the_backward_pass_is_refused() -> None:
    weight = torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True)
    loss = (weight @ weight).sum()
    with P40, pytest.raises(HardwareError, match="bfloat16"):
        loss.backward()


def test_bf16_works_from_8_0_on() -> None:
    left = torch.ones(2, 2, dtype=torch.bfloat16)
    with A100:
        assert (left @ left)[0, 0] == 2


def test_fp8_is_refused_below_8_9() -> None:
    with A100, pytest.raises(HardwareError, match=r"`float8_e4m3fn` needs compute capability 8\.9"):
        torch.ones(2).to(torch.float8_e4m3fn)
    with ForbiddenOperations(name="NVIDIA L4", capability=(8, 9)):
        assert torch.ones(2).to(torch.float8_e4m3fn).float().sum() == 2


@pytest.mark.parametrize(
    ("operation", "capability", "refused"),
    [
        ("aten::_scaled_dot_product_flash_attention", (7, 5), True),
        ("aten::_scaled_dot_product_flash_attention_backward", (6, 1), True),
        ("aten::_scaled_dot_product_flash_attention", (8, 0), False),
        ("aten::_scaled_dot_product_cudnn_attention", (7, 0), True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", (6, 1), False),
        ("aten::_scaled_dot_product_efficient_attention", (6, 1), False),
        ("flash_attn::_flash_attn_forward", (7, 5), True),
        ("flash_attn_3::fwd", (8, 9), True),
        ("aten::_int_mm", (7, 0), True),
        ("aten::_scaled_mm", (8, 6), True),
        ("aten::mm", (5, 2), False),
    ],
)
def test_kernels_are_refused_below_their_capability(operation: str, capability: tuple[int, int], refused: bool) -> None:
    mode = ForbiddenOperations(name="card", capability=capability)
    assert (mode.least_for(operation) is not None) is refused


def test_int8_products_are_refused_on_a_v100_when_they_run() -> None:
    left = torch.ones(32, 32, dtype=torch.int8)
    mode = ForbiddenOperations(name="Tesla V100-SXM2-32GB", capability=(7, 0))
    with mode, pytest.raises(HardwareError, match=r"`aten::_int_mm` needs compute capability 7\.5"):
        torch._int_mm(left, left)


def test_a_checkpoint_stored_in_bf16_loads_in_fp32(tmp_path: Path, llama_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    stored = AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.bfloat16)
    stored.save_pretrained(tmp_path)
    tokens = torch.tensor([[1, 2, 3]])
    with P40:
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        logits = model(tokens).logits
        with pytest.raises(HardwareError, match="bfloat16"):
            stored(tokens)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()
