"""Integer arithmetic of `$((…))` and `((…))`."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping

BINARY: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right) if abs(left) < 2**53 else left // right,
    ast.Mod: lambda left, right: left - right * int(left / right),
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
COMPARE: Mapping[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
LARGEST_POWER = 10_000


def evaluate(text: str, value_of: Callable[[str], str]) -> int:
    """The value of an expression; `value_of` returns the text of a variable. Raises ValueError."""
    if choice := re.fullmatch(r"([^?]*)\?(.*):([^:]*)", text, re.S):
        return evaluate(choice[2] if evaluate(choice[1], value_of) else choice[3], value_of)
    python = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", r"\1", text.strip())
    python = python.replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"!(?!=)", " not ", python)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(python.strip() or "0", mode="eval")
        return _value(tree.body, value_of)
    except (SyntaxError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise ValueError(f"`{text.strip()}` is not integer arithmetic") from error


def _value(node: ast.expr, value_of: Callable[[str], str]) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return int(number)
        case ast.Name(id=name):
            text = value_of(name).strip() or "0"
            return int(text) if re.fullmatch(r"-?\d+", text) else evaluate(text, _no_variable)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, value_of)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, value_of)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return int(not _value(operand, value_of))
        case ast.BoolOp(op=kind, values=values):
            taken = all if isinstance(kind, ast.And) else any
            return int(taken(_value(value, value_of) for value in values))
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in COMPARE:
            return int(COMPARE[type(kind)](_value(left, value_of), _value(right, value_of)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            exponent = _value(right, value_of)
            return int(_value(left, value_of) ** min(max(exponent, 0), LARGEST_POWER))
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in BINARY:
            return int(BINARY[type(kind)](_value(left, value_of), _value(right, value_of)))
    raise ValueError(f"`{ast.unparse(node)}` is not integer arithmetic")


def _no_variable(name: str) -> str:
    raise ValueError(f"`{name}` is not a number")
