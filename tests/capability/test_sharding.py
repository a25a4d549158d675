"""What cannot be divided among devices."""

from __future__ import annotations

import pytest

from rl_compat.capability.sharding import against_sharding


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
