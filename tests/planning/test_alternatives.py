"""What is offered when nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import PPO, fits, planned, recorded

from rl_compat.config.types import ModelConfig
from rl_compat.errors import DoesNotFitError
from rl_compat.planning.shapes.known import KNOWN_SHAPES

QWEN25_7B = KNOWN_SHAPES["Qwen/Qwen2.5-7B-Instruct"]


@pytest.mark.parametrize(
    ("card", "rank", "offered"),
    [
        ("t4", 16, ("`plan.quantization=int8`", "`plan.quantization=nf4`")),
        ("p40", 16, ("`plan.quantization=int8`", "`plan.quantization=nf4`")),
        ("p40", 0, ("`model.lora_rank=16 plan.quantization=int8`", "`model.lora_rank=16 plan.quantization=nf4`")),
    ],
)
def test_a_model_too_large_for_adapters_is_offered_a_quantized_base(card, rank, offered) -> None:
    config = replace(PPO, model=ModelConfig(lora_rank=rank))
    with pytest.raises(DoesNotFitError) as caught:
        planned(config, recorded(card), QWEN25_7B)
    hint = str(caught.value.hint)
    assert all(words in hint for words in offered)

    for name in ("int8", "nf4"):
        quantized = replace(config, model=ModelConfig(lora_rank=16), plan=replace(config.plan, quantization=name))
        assert fits(planned(quantized, recorded(card), QWEN25_7B))
