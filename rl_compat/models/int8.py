"""Frozen linear layers whose weights are kept in 8 bits and multiplied exactly: nothing but the weights is rounded.

The int8 products of bitsandbytes round the inputs too. A last digit of an input then decides how it is rounded, and
rollout and training, which differ in last digits, disagree: for SmolLM2-135M on questions of GSM8K by 0.13 to 0.17 a
log-probability on average, where this form disagrees by 0.000003 in fp32 (scripts/bench_quantized_base.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_LARGEST = 127


class Int8Linear(nn.Linear):
    """A frozen linear layer with weight [outputs, inputs] in int8 and an fp32 scale for every row."""

    scale: Tensor
    stored_dtype: torch.dtype
    "that the weight was in before"

    def forward(self, input: Tensor) -> Tensor:
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            input = input.to(torch.get_autocast_dtype(device_type))
        output: Tensor = _Int8Matmul.apply(input, self.weight, self.scale)
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def dequantized(self) -> Tensor:
        """The weight in the dtype that it was in before."""
        return _dequantized(self.weight, self.scale, self.stored_dtype)


class _Int8Matmul(torch.autograd.Function):
    """`x @ weight.T` in the dtype of x; backward unpacks the weight again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        with torch.autocast(x.device.type, enabled=False):
            return functional.linear(x, _dequantized(weight, scale, x.dtype))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        weight, scale = ctx.saved_tensors
        return grad_outputs[0] @ _dequantized(weight, scale, grad_outputs[0].dtype), None, None


def _dequantized(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiplied in fp32 and rounded once."""
    return torch.mul(weight, scale, out=torch.empty(weight.shape, dtype=dtype, device=weight.device))


@torch.no_grad()
def keep_in_int8(model: nn.Module, *, device: torch.device | str) -> None:
    """Quantize every linear layer but the output layer, one at a time on `device`. Changes the model in place."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for module in model.modules():
        if type(module) is nn.Linear and module is not head:
            _quantize(module, device)


def _quantize(layer: Any, device: torch.device | str) -> None:
    layer.stored_dtype, weight = layer.weight.dtype, layer.weight.to(device, torch.float32)
    scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
    layer.weight = nn.Parameter((weight / scale).round().to(torch.int8), requires_grad=False)
    layer.register_buffer("scale", scale, persistent=False)
    layer.__class__ = Int8Linear
