"""Operations and number formats that a compute capability lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_compat.errors import HardwareError

DTYPE_MINIMUM: dict[torch.dtype, tuple[int, int]] = {
    torch.bfloat16: (8, 0),
    torch.float8_e4m3fn: (8, 9),
    torch.float8_e5m2: (8, 9),
}
"minimum compute capability that computes in the format"

OPERATION_MINIMUM: tuple[tuple[str, tuple[int, int]], ...] = (
    ("aten::_scaled_dot_product_flash_attention_for_cpu", (0, 0)),
    ("aten::_scaled_dot_product_flash_attention", (8, 0)),
    ("aten::_flash_attention", (8, 0)),
    ("aten::_scaled_dot_product_cudnn_attention", (8, 0)),
    ("aten::_cudnn_attention", (8, 0)),
    ("flash_attn::", (8, 0)),
    ("flash_attn_3::", (9, 0)),
    ("aten::_int_mm", (7, 5)),
    ("aten::_scaled_mm", (8, 9)),
)
"prefix of an operation's name and its minimum compute capability; the first match counts"

KEEPING = frozenset(
    {
        "aten::alias",
        "aten::as_strided",
        "aten::clone",
        "aten::detach",
        "aten::empty",
        "aten::empty_strided",
        "aten::expand",
        "aten::lift_fresh",
        "aten::narrow",
        "aten::permute",
        "aten::reshape",
        "aten::select",
        "aten::set_",
        "aten::slice",
        "aten::split",
        "aten::split_with_sizes",
        "aten::squeeze",
        "aten::t",
        "aten::transpose",
        "aten::unbind",
        "aten::unsqueeze",
        "aten::view",
        "aten::_unsafe_view",
        "aten::_reshape_alias",
    }
)
"operations that do not compute; weights may have any format as long as they are cast before use"

CASTING = frozenset({"aten::_to_copy", "aten::copy_"})
"operations whose input, but not output, may have a format that the card lacks"


class ForbiddenOperations(TorchDispatchMode):
    """Raises HardwareError with the name of the operation when a card of `capability` does not support it.

    A format that the card lacks may be loaded, stored and cast to another; computing in it or casting to it is refused.
    """

    def __init__(self, *, name: str, capability: tuple[int, int]) -> None:
        super().__init__()
        self.name = name
        self.capability = capability
        self.active = True
        "disables a mode that a thread cannot leave"
        self.lacking = {dtype: least for dtype, least in DTYPE_MINIMUM.items() if least > capability}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ForbiddenOperations):
            return NotImplemented
        return (self.name, self.capability, self.active) == (other.name, other.capability, other.active)

    def __hash__(self) -> int:
        return hash((self.name, self.capability))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.active:
            return func(*args, **(kwargs or {}))
        operation = func._schema.name
        least = self.least_for(operation)
        if least is not None:
            raise self._refusal(operation, least)
        result = func(*args, **(kwargs or {}))
        if self.lacking and operation not in KEEPING:
            written = (args[:1], result) if operation == "aten::copy_" else (result,)
            self._check_dtypes(operation, written if operation in CASTING else (args, kwargs, result))
        return result

    def least_for(self, operation: str) -> tuple[int, int] | None:
        """The compute capability that an operation needs, if this card's is lower, else None."""
        for beginning, least in OPERATION_MINIMUM:
            if operation.startswith(beginning):
                return least if least > self.capability else None
        return None

    def _check_dtypes(self, operation: str, values: Any) -> None:
        for tensor in _tensors(values):
            if tensor.dtype in self.lacking:
                what = f"{operation}` in `{str(tensor.dtype).removeprefix('torch.')}"
                raise self._refusal(what, self.lacking[tensor.dtype])

    def _refusal(self, what: str, least: tuple[int, int]) -> HardwareError:
        return HardwareError(
            f"`{what}` needs compute capability {least[0]}.{least[1]}, "
            f"the emulated `{self.name}` has {self.capability[0]}.{self.capability[1]}",
            hint="`rlc plan --explain` shows which settings this card allows",
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
