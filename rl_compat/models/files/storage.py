"""Frozen weights stored in fp16 or bf16 and cast to the compute dtype layer by layer.

This halves the memory of a frozen model on a card without fast half-precision arithmetic: matrices and embeddings stay
in the storage dtype, one layer at a time is cast to the dtype of its input, everything else is fp32.
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


def _to_float(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.float()


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
            module.register_forward_hook(_to_float)
        elif not isinstance(module, nn.Linear):
            _own_tensors_to_float(module)


def _own_tensors_to_float(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        if parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.dtype in (torch.float16, torch.bfloat16):
            module.register_buffer(name, buffer.float(), persistent=name not in module._non_persistent_buffers_set)
