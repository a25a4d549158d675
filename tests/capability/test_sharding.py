"""What cannot be divided among devices."""

from __future__ import annotations

import pytest

from rl_compat.capability.sharding import against_engine_parts, against_sharding


@pytest.mark.parametrize(
    ("optimizer", "quantization", "named"),
    [
        ("adamw", "none", []),
        ("adamw", "int8", ["int8"]),
        ("adamw8bit", "none", ["adamw8bit"]),
        ("adamw", "nf4", ["nf4"]),
        ("adamw8bit", "nf4", ["adamw8bit", "nf4"]),
    ],
)
def test_8_bit_states_and_quantized_weights_are_not_divided(
    optimizer: str, quantization: str, named: list[str]
) -> None:
    reasons = against_sharding(optimizer=optimizer, quantization=quantization)
    assert [reason.split("`")[1] for reason in reasons] == named


@pytest.mark.parametrize(
    ("heads", "kv_heads", "intermediate", "width", "named"),
    [
        (32, 8, 11008, 4, []),
        (32, 2, 11008, 4, []),
        (9, 3, 1536, 2, ["9 heads", "3 key-value heads"]),
        (12, 3, 1536, 2, ["3 key-value heads"]),
        (8, 8, 1537, 2, ["1537 intermediate neurons"]),
    ],
)
def test_an_engine_divides_heads_and_mlp_and_repeats_key_value_heads_that_are_fewer(
    heads: int, kv_heads: int, intermediate: int, width: int, named: list[str]
) -> None:
    reason = against_engine_parts(heads=heads, kv_heads=kv_heads, intermediate=intermediate, width=width)
    assert (reason is None) == (not named)
    assert all(words in str(reason) for words in named)
