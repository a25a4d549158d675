"""Bases in int8 and NF4, alone and under adapters: generated from as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rollout.conftest import PROMPTS, build, forward_logprobs, load_newest
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rl_compat.rollout.inference import hugging_face_model
from rl_compat.rollout.types import SamplingParams

SETTINGS = {
    "int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32},
}
LIMITS = {("nf4", "fp32"): 1e-4, ("nf4", "bf16"): 0.2, ("int8", "fp32"): 0.2, ("int8", "bf16"): 0.3}
"""Largest gap of a log-probability. int8 products round their inputs too, by the largest number that is multiplied at
the same time."""
GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


def quantized(folder: Path, kind: str, *, adapted: bool) -> nn.Module:
    pytest.importorskip("bitsandbytes")
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=BitsAndBytesConfig(**SETTINGS[kind]),
        dtype=torch.float32,
        device_map={"": "cpu"},
    )
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    if not adapted:
        return model
    torch.manual_seed(4)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("compute_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_quantized_base_is_shared_and_gives_the_logprobs_of_its_forward(
    qwen2_folder: Path, kind: str, compute_dtype: str, adapted: bool
) -> None:
    model = quantized(qwen2_folder, kind, adapted=adapted)
    inner = hugging_face_model(model)
    integers = {name: p.clone() for name, p in model.named_parameters() if not p.is_floating_point()}
    engine = build("native", model, compute_dtype=compute_dtype)
    assert type(engine).__name__ == "NativeEngine" and engine._own_forward
    for _ in range(2 if adapted else 1):
        groups = engine.generate(PROMPTS, GREEDY, group_size=2)
        for prompt, group in zip(PROMPTS, groups, strict=True):
            expected = forward_logprobs(inner, prompt, group[0].token_ids, 1.0)
            gap = (torch.tensor(group[0].logprobs) - expected).abs()
            assert gap.max() < LIMITS[kind, compute_dtype]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.mul_(-1.5)
        load_newest(engine)
    assert engine._weights.model is inner
    assert integers
    assert all(torch.equal(dict(model.named_parameters())[name], kept) for name, kept in integers.items())
