"""Frozen weights kept in half precision under adapters: shared with the trainer, multiplied as the plan says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import causal_lm, role_plan
from fakes.part_settings import lora_of
from peft.tuners.lora import Linear as Adapted
from rollout.conftest import PROMPTS, build, forward_logprobs, load_newest, plain_generate
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rl_compat.rollout.inference import hugging_face_model
from rl_compat.rollout.types import SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


class Casts(TorchDispatchMode):
    """Notes the storages that are cast to another dtype inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.storages.add(args[0].untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))

    def met(self, weight: Tensor) -> bool:
        return weight.untyped_storage().data_ptr() in self.storages


@pytest.fixture
def stored(qwen2_folder: Path) -> nn.Module:
    """Biases and adapters that change something, over a base in fp16."""
    torch.manual_seed(0)
    model = causal_lm(qwen2_folder, role=role_plan(storage_dtype="fp16"), lora=lora_of(rank=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


def bases(model: nn.Module) -> list[Tensor]:
    return [module.base_layer.weight for module in model.modules() if isinstance(module, Adapted)]


@pytest.mark.parametrize("compute_dtype", ["fp32", "fp16"])
def test_the_trainers_tensors_are_shared_as_they_are(stored: nn.Module, compute_dtype: str) -> None:
    before = {name: (parameter.dtype, id(parameter)) for name, parameter in stored.named_parameters()}
    engine = build("native", stored, compute_dtype=compute_dtype)
    engine.generate(PROMPTS, GREEDY)
    assert engine._weights.model is hugging_face_model(stored)
    assert {name: (parameter.dtype, id(parameter)) for name, parameter in stored.named_parameters()} == before
    assert {weight.dtype for weight in bases(stored)} == {torch.float16}


def test_fp32_products_over_fp16_weights_give_the_tokens_of_the_trainers_forward(stored: nn.Module) -> None:
    groups = build("native", stored).generate(PROMPTS, GREEDY)
    model = hugging_face_model(stored)
    assert [list(group[0].token_ids) for group in groups] == [plain_generate(model, prompt, 12) for prompt in PROMPTS]


def test_fp16_products_read_fp16_weights_without_a_cast(stored: nn.Module) -> None:
    exact, half = build("native", stored), build("native", stored, compute_dtype="fp16")
    for engine in (exact, half):
        engine.generate(PROMPTS, GREEDY)
    found = {}
    for name, engine in (("fp32", exact), ("fp16", half)):
        with Casts() as casts:
            engine.generate(PROMPTS, GREEDY)
        found[name] = [casts.met(weight) for weight in bases(stored)]
    assert all(found["fp32"])
    assert not any(found["fp16"])


def test_fp16_products_stay_near_a_training_forward_and_follow_the_adapters(stored: nn.Module) -> None:
    engine = build("native", stored, compute_dtype="fp16")
    for _ in range(2):
        for prompt, (response,) in zip(PROMPTS, engine.generate(PROMPTS, GREEDY), strict=True):
            gap = torch.tensor(response.logprobs) - forward_logprobs(
                hugging_face_model(stored), prompt, response.token_ids, 1.0
            )
            assert gap.abs().max() < 0.01
        with torch.no_grad():
            for parameter in stored.parameters():
                if parameter.requires_grad:
                    parameter.mul_(-1.5)
        load_newest(engine)


@pytest.mark.gpu
@pytest.mark.parametrize("compute_dtype", ["fp32", "fp16"])
def test_captured_steps_over_fp16_weights_follow_the_adapters(stored: nn.Module, compute_dtype: str) -> None:
    stored.to("cuda")
    engine = build("native", stored, compute_dtype=compute_dtype, cuda_graphs=True)
    before = None
    for _ in range(2):
        groups = engine.generate(PROMPTS, GREEDY, group_size=2)
        assert groups != before
        before = groups
        model = copy.deepcopy(hugging_face_model(stored)).to("cpu")
        for prompt, group in zip(PROMPTS, groups, strict=True):
            expected = forward_logprobs(model, prompt, group[0].token_ids, 1.0)
            torch.testing.assert_close(torch.tensor(group[0].logprobs), expected, atol=0.01, rtol=0)
        with torch.no_grad():
            for parameter in stored.parameters():
                if parameter.requires_grad:
                    parameter.mul_(-1.5)
        load_newest(engine)
