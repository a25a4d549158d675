"""Weights that are multiplied as one lie side by side, and nobody who holds them notices."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from rollout.conftest import PROMPTS, build, plain_generate
from safetensors.torch import load_file
from torch import nn

from rl_compat.rollout.projections import (
    AdaptedProjection,
    CalledProjection,
    PackedProjection,
    SharedProjection,
    lay_modules_side_by_side,
    lay_side_by_side,
    side_by_side,
)
from rl_compat.rollout.types import SamplingParams
from rl_compat.training.state import load_training_state, save_training_state

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0)


def three(bias: bool = True) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(6, width, bias=bias) for width in (8, 4, 4)]


def apart(layers: list[nn.Linear], states: torch.Tensor) -> torch.Tensor:
    return torch.cat([layer(states) for layer in layers], dim=-1)


def attention_weights(model: nn.Module) -> list[nn.Parameter]:
    attention = model.model.layers[0].self_attn
    return [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        ids = torch.arange(10, 30).roll(step)[None]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_product_gives_what_the_layers_give(bias: bool, dtype: torch.dtype) -> None:
    layers, states = three(bias), torch.randn(5, 6)
    projection = SharedProjection(layers, dtype)
    for _ in range(2):
        output = projection(states)
        assert output.dtype == dtype
        torch.testing.assert_close(
            output.float(), apart(layers, states), atol=1e-6 if dtype.itemsize == 4 else 0.05, rtol=0
        )
        lay_modules_side_by_side(layers)
    assert side_by_side([layer.weight for layer in layers]).shape == (16, 6)


def test_layers_with_and_without_bias() -> None:
    layers, states = [nn.Linear(6, 8), nn.Linear(6, 4, bias=False)], torch.randn(5, 6)
    lay_modules_side_by_side(layers)
    for projection in (
        SharedProjection(layers, torch.float32),
        PackedProjection(layers),
        CalledProjection(layers, torch.float32, autocast_dtype=None),
    ):
        torch.testing.assert_close(projection(states), apart(layers, states))


def test_parameters_of_different_width_or_dtype_are_not_moved() -> None:
    for other in (torch.zeros(3, 5), torch.zeros(3, 6, dtype=torch.float16)):
        parameters = [nn.Parameter(torch.zeros(3, 6)), nn.Parameter(other)]
        before = [parameter.data_ptr() for parameter in parameters]
        assert not lay_side_by_side(parameters)
        assert [parameter.data_ptr() for parameter in parameters] == before


def test_a_packed_projection_follows_the_weights_when_it_is_refreshed() -> None:
    layers, states = three(), torch.randn(5, 6)
    packed = PackedProjection(layers)
    torch.testing.assert_close(packed(states), apart(layers, states))
    with torch.no_grad():
        layers[1].weight.add_(1.0)
    packed.refresh()
    torch.testing.assert_close(packed(states), apart(layers, states))


def test_generating_takes_no_second_copy_of_the_weights(llama: nn.Module) -> None:
    parameters = dict(llama.named_parameters())
    size = sum(parameter.nbytes for parameter in parameters.values())
    build("native", llama).generate(PROMPTS, GREEDY)
    assert side_by_side(attention_weights(llama)) is not None
    assert all(llama.get_parameter(name) is parameter for name, parameter in parameters.items())
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parameters.values()}
    assert sum(storages.values()) == size


def test_training_with_and_without_generating_gives_the_same_weights(llama: nn.Module) -> None:
    other = copy.deepcopy(llama)
    ours, theirs = (torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (llama, other))
    engine = build("native", llama)
    for _ in range(3):
        before = engine.generate(PROMPTS, GREEDY)
        train(llama, ours, 2)
        train(other, theirs, 2)
        assert engine.generate(PROMPTS, GREEDY) != before
    for (name, parameter), expected in zip(llama.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, expected), name
    assert [list(g[0].token_ids) for g in engine.generate(PROMPTS, GREEDY)] == [
        plain_generate(other, prompt, 8) for prompt in PROMPTS
    ]


def test_checkpoints_and_exports_do_not_notice(llama: nn.Module, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-2)
    build("native", llama).generate(PROMPTS, GREEDY)
    train(llama, optimizer, 1)
    parameters = dict(llama.named_parameters())
    save_training_state(tmp_path, parameters=parameters, optimizer_name="adamw", optimizer=optimizer, progress={})
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    train(llama, optimizer, 2)
    load_training_state(tmp_path, parameters=parameters, optimizer_name="adamw", optimizer=optimizer)
    assert all(torch.equal(parameters[name], value) for name, value in kept.items())
    assert side_by_side(attention_weights(llama)) is not None
    llama.save_pretrained(tmp_path / "export")
    exported = load_file(tmp_path / "export" / "model.safetensors")
    assert all(torch.equal(exported[name], value) for name, value in kept.items() if name in exported)
    assert len(exported) == len(kept)
    assert all(torch.equal(a, b) for a, b in zip(copy.deepcopy(llama).parameters(), llama.parameters(), strict=True))


def test_weights_that_were_moved_away_and_back_are_laid_together_again(llama: nn.Module) -> None:
    engine = build("native", llama)
    before = engine.generate(PROMPTS, GREEDY)
    for parameter in llama.parameters():
        parameter.data = parameter.data.clone()
    assert side_by_side(attention_weights(llama)) is None
    assert engine.generate(PROMPTS, GREEDY) == before
    assert side_by_side(attention_weights(llama)) is not None


def adapted(model: nn.Module, **options: object) -> nn.Module:
    torch.manual_seed(2)
    inject_adapter_in_model(LoraConfig(**({"r": 2, "lora_alpha": 6} | options)), model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("targets", [["q_proj", "v_proj", "down_proj"], ["k_proj", "gate_proj", "up_proj", "o_proj"]])
@pytest.mark.parametrize("packed", [True, False])
def test_adapters_are_applied_beside_one_product_and_followed(
    llama: nn.Module, targets: list[str], packed: bool
) -> None:
    adapted(llama, target_modules=targets)
    engine = build("native", llama, packed_linears=packed)
    kept = {name: p.detach().clone() for name, p in llama.named_parameters()}
    for _ in range(2):
        tokens = [list(group[0].token_ids) for group in engine.generate(PROMPTS, GREEDY)]
        assert tokens == [plain_generate(llama, prompt, 8) for prompt in PROMPTS]
        with torch.no_grad():
            for name, parameter in llama.named_parameters():
                assert torch.equal(parameter, kept[name]), name
                if "lora_" in name:
                    parameter.mul_(-1.3)
                    kept[name] = parameter.detach().clone()
    kinds = {type(projection) for projection in engine._weights._projections.values()}
    assert AdaptedProjection in kinds and CalledProjection not in kinds


@pytest.mark.parametrize("options", [{"use_dora": True}, {"use_rslora": True}])
def test_adapters_of_other_kinds_are_called_or_scaled_as_they_are(llama: nn.Module, options: dict[str, bool]) -> None:
    adapted(llama, target_modules=["q_proj", "up_proj"], **options)
    tokens = [list(group[0].token_ids) for group in build("native", llama).generate(PROMPTS, GREEDY)]
    assert tokens == [plain_generate(llama, prompt, 8) for prompt in PROMPTS]
