"""Frozen weights kept in half precision and multiplied in another dtype, cast layer by layer when they are used.

A card without fast half arithmetic still halves the bytes of a reference model this way: matrices and embeddings stay
in the storage dtype, one layer at a time is cast to the dtype of its input, everything else is fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PIECE_NUMBERS = 2**23
"of a stored matrix that are cast at once where no gradient is needed"


def linear_in_pieces(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`states @ weight.T + bias` of [N, inputs] in the dtype of the states, without a gradient.

    A weight of another dtype is cast piece by piece into one small buffer: no whole copy of it ever exists.
    """
    rows = max(1, PIECE_NUMBERS // weight.shape[1])
    if weight.dtype == states.dtype or len(weight) <= rows:
        return functional.linear(states, weight.to(states.dtype), None if bias is None else bias.to(states.dtype))
    out = states.new_empty(len(states), len(weight))
    for part, target in zip(weight.split(rows), out.split(rows, dim=1), strict=True):
        torch.mm(states, part.to(states.dtype).T, out=target)
    return out if bias is None else out.add_(bias)


class _CastMatmul(torch.autograd.Function):
    """`x @ weight.T` with the weight cast to x's dtype; backward casts again instead of keeping the copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return functional.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grad_outputs[0] @ weight.to(grad_outputs[0].dtype), None


class StoredLinear(nn.Linear):
    """A frozen linear layer whose weight keeps its storage dtype and is cast to the compute dtype when used."""

    def forward(self, input: Tensor) -> Tensor:
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type):
            return functional.linear(input, self.weight, self.bias)
        output: Tensor = _CastMatmul.apply(input, self.weight)
        return output if self.bias is None else output + self.bias.to(output.dtype)


class ExactHead(StoredLinear):
    """An output layer whose logits are not rounded to bf16: under bf16 autocast it multiplies in fp32.

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
    """Whether a product under the present autocast would come out in bf16."""
    return torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) == torch.bfloat16


def _to_float(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.float()


def keep_in_storage_dtype(model: nn.Module) -> None:
    """Make a frozen model whose weights are in fp16 or bf16 compute in fp32 or under autocast. Changes it in place.

    Linear and embedding weights stay as they are; parameters and buffers of all other layers become fp32, so that
    norms and rotary tables match those of a trained fp32 model. Quantized weights are left alone.
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
