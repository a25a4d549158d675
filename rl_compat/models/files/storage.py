"""Frozen weights stored in fp16, bf16 or int8 and cast to the compute dtype layer by layer.

This halves or quarters the memory of a frozen model on a card without fast half-precision arithmetic: one layer at a
time is cast to the dtype of its input. Half-precision matrices and embeddings stay in the storage dtype, everything
else is fp32. With int8 only the weights are rounded, and the output layer is not: the int8 products of bitsandbytes
also round the inputs. A difference in the last digit of an input then changes its rounding, so that rollout and
training disagree: for SmolLM2-135M on GSM8K questions by 0.13 to 0.17 per log-probability on average, against 0.000003
in fp32 with these layers (scripts/bench_quantized_base.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PIECE_NUMBERS = 2**23
"numbers of a stored matrix that are cast at once where no gradient is needed"


def linear_in_pieces(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`states @ weight.T + bias` of [N, inputs] in the dtype of the states, without a gradient.

    A weight of another dtype is cast in pieces of `PIECE_NUMBERS`, so that no full copy of it exists.
    """
    rows = max(1, PIECE_NUMBERS // weight.shape[1])
    if weight.dtype == states.dtype or len(weight) <= rows:
        return functional.linear(states, weight.to(states.dtype), None if bias is None else bias.to(states.dtype))
    out = states.new_empty(len(states), len(weight))
    for part, target in zip(weight.split(rows), out.split(rows, dim=1), strict=True):
        torch.mm(states, part.to(states.dtype).T, out=target)
    return out if bias is None else out.add_(bias)


class _CastMatmul(torch.autograd.Function):
    """`x @ weight.T` with the weight cast to the dtype of x. Backward casts it again instead of keeping the copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return functional.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grad_outputs[0] @ weight.to(grad_outputs[0].dtype), None


class StoredLinear(nn.Linear):
    """A frozen linear layer whose weight stays in its storage dtype and is cast to the compute dtype in each call."""

    def forward(self, input: Tensor) -> Tensor:
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            return functional.linear(input, self.weight, self.bias)
        output: Tensor = _CastMatmul.apply(input, self.weight)
        return output if self.bias is None else output + self.bias.to(output.dtype)


class ExactHead(StoredLinear):
    """An output layer that multiplies in fp32 under bf16 autocast, so that logits are not rounded to bf16.

    A logit near 20 rounded to bf16 is off by up to 0.06, and so is the log-probability of every token.
    """

    def forward(self, input: Tensor) -> Tensor:
        device_type = input.device.type
        if not rounds_logits(device_type):
            return super().forward(input)
        with torch.autocast(device_type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return functional.linear(input.float(), self.weight.float(), bias)


def rounds_logits(device_type: str) -> bool:
    """Whether the current autocast would return a product in bf16."""
    return torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) == torch.bfloat16


def keep_in_storage_dtype(model: nn.Module) -> None:
    """Make a frozen model with fp16 or bf16 weights compute in fp32 or under autocast, in place.

    Linear and embedding weights keep their dtype. Parameters and buffers of all other layers become fp32, so that norms
    and rotary tables match those of a trained fp32 model. Quantized weights are not changed.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = ExactHead if module is head else StoredLinear
        elif isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda module, args, output: output.float())
        elif not isinstance(module, nn.Linear):
            for parameter in module.parameters(recurse=False):
                if parameter.dtype in (torch.float16, torch.bfloat16):
                    parameter.data = parameter.data.float()
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.dtype in (torch.float16, torch.bfloat16):
                    kept = name not in module._non_persistent_buffers_set
                    module.register_buffer(name, buffer.float(), persistent=kept)


_LARGEST = 127


class Int8Linear(nn.Linear):
    """A frozen linear layer with weight [outputs, inputs] in int8 and one fp32 scale per row."""

    scale: Tensor
    stored_dtype: torch.dtype
    "dtype of the weight before quantization"

    def forward(self, input: Tensor) -> Tensor:
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            input = input.to(torch.get_autocast_dtype(device_type))
        output: Tensor = _Int8Matmul.apply(input, self.weight, self.scale)
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def dequantized(self) -> Tensor:
        """The weight in its dtype before quantization, [outputs, inputs]."""
        return _dequantized(self.weight, self.scale, self.stored_dtype)


class _Int8Matmul(torch.autograd.Function):
    """`x @ weight.T` in the dtype of x. Backward dequantizes the weight again instead of keeping it."""

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
    """weight * scale, multiplied in fp32 and rounded once."""
    return torch.mul(weight, scale, out=torch.empty(weight.shape, dtype=dtype, device=weight.device))


@torch.no_grad()
def keep_in_int8(model: nn.Module, *, device: torch.device | str) -> None:
    """Quantize every linear layer except the output layer in place, one at a time on `device`."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for module in model.modules():
        if type(module) is nn.Linear and module is not head:
            layer: Any = module
            layer.stored_dtype, weight = layer.weight.dtype, layer.weight.to(device, torch.float32)
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
            layer.weight = nn.Parameter((weight / scale).round().to(torch.int8), requires_grad=False)
            layer.register_buffer("scale", scale, persistent=False)
            layer.__class__ = Int8Linear
