"""Rows that share a pack of the token matrix, and groups that stay together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.engines import LENGTHS, causal_lm, random_batch, role_plan, token_mean_loss
from fakes.part_settings import lora_of
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from rl_compat.errors import RLCompatError
from rl_compat.models.lora import LoraSettings
from rl_compat.training.engine import PolicyEngine
from rl_compat.training.micro_batches import Layout, MicroBatchLimits, TokenMatrix, fill_packs
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.output_head import SplitModel

PACKED = Layout(pack_tokens=16)


def policy(folder: Path, *, layout: Layout = Layout(), lora: LoraSettings | None = None, **plan) -> PolicyEngine:
    role = role_plan(**plan)
    torch.manual_seed(0)
    model = causal_lm(folder, role=role, lora=lora)
    return PolicyEngine(model, role=role, optimizer=OptimizerSettings(lr=1e-2, max_grad_norm=0.0), layout=layout)


@pytest.mark.parametrize("fixture", ["llama_folder", "qwen2_folder"])
@pytest.mark.parametrize(
    "plan",
    [
        {"attention": "sdpa"},
        {"attention": "sdpa", "repeat_kv": True},
        {"attention": "eager"},
        {"attention": "sdpa", "gradient_checkpointing": True},
        {"attention": "sdpa", "max_tokens_per_micro_batch": 32},
    ],
)
def test_packed_rows_learn_what_padded_rows_do(fixture: str, plan: dict, request: pytest.FixtureRequest) -> None:
    folder, batch = request.getfixturevalue(fixture), random_batch()
    padded, packed = policy(folder, attention=plan["attention"]), policy(folder, layout=PACKED, **plan)

    alone = padded.logprobs(batch, temperature=1.0).logprobs
    together = packed.logprobs(batch, temperature=1.0).logprobs
    metrics = [engine.update(batch, loss=token_mean_loss, temperature=1.0) for engine in (padded, packed)]

    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert metrics[1]["loss"] == pytest.approx(metrics[0]["loss"], abs=1e-5)
    assert metrics[1]["grad_norm"] == pytest.approx(metrics[0]["grad_norm"], rel=1e-4)
    assert packed.take_notes() == []


def test_packing_works_with_adapters(llama_folder: Path) -> None:
    lora = lora_of(rank=4)
    engines = [policy(llama_folder, lora=lora, layout=layout) for layout in (Layout(), PACKED)]
    losses = [engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["grad_norm"] for engine in engines]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_packing_uses_fewer_tokens() -> None:
    limits, layout = MicroBatchLimits(max_rows=8), Layout(pack_tokens=24)
    batch = random_batch()
    batch = batch.select(layout.split(batch.sequence_lengths(), limits, groups=())[0])
    places = layout.places(batch.sequence_lengths(), limits)
    packed = TokenMatrix.from_batch(batch, device="cpu", places=places)
    assert packed.input_ids.numel() < TokenMatrix.from_batch(batch, device="cpu").input_ids.numel()
    assert packed.position_ids is not None
    assert packed.position_ids.shape == packed.input_ids.shape
    assert int((packed.position_ids == 0).sum()) >= len(LENGTHS)


def test_packs_of_a_micro_batch_are_those_that_were_filled() -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 40, (60,), generator=generator).tolist()
    limits = MicroBatchLimits(max_rows=3, max_tokens=96)
    layout = Layout(pack_tokens=32)

    micro_batches = layout.split(lengths, limits, groups=())

    assert sorted(row for rows in micro_batches for row in rows) == list(range(60))
    for rows in micro_batches:
        own = [lengths[row] for row in rows]
        assert layout.num_tokens(own, limits) <= max(96, max(own))
        assert fill_packs(own, 32)[-1][0] < 3


def small(model_type: str, **settings: object) -> nn.Module:
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes, num_key_value_heads=2, initializer_range=0.3, **settings)
    return AutoModelForCausalLM.from_config(config).eval()


def test_a_sliding_window_ends_where_a_row_begins() -> None:
    assert SplitModel(small("mistral", sliding_window=2)).keeps_packed_rows_apart("cpu")


def test_a_model_that_mixes_the_rows_of_a_pack_pads_them_and_says_so() -> None:
    """A recurrent state passes from one row to the next."""
    role = role_plan()
    model = small("mamba", state_size=4)
    engine = PolicyEngine(model, role=role, optimizer=OptimizerSettings(lr=1e-6), layout=PACKED)
    assert engine.layout == Layout()
    assert [note.count("`MambaForCausalLM`") for note in engine.take_notes()] == [1]


def test_rows_of_a_group_are_computed_together() -> None:
    lengths, groups = [9, 2, 5, 5, 3, 8], [0, 0, 1, 1, 2, 2]
    micro_batches = Layout(whole_groups=True).split(lengths, MicroBatchLimits(max_rows=4, max_tokens=36), groups=groups)
    assert micro_batches == [[0, 1, 4, 5], [2, 3]]
    alone = Layout(whole_groups=True).split(lengths, MicroBatchLimits(max_rows=1), groups=groups)
    assert alone == [[0, 1], [4, 5], [2, 3]]


def test_a_group_that_does_not_fit_is_an_error_and_larger_micro_batches_are_halved(llama_folder: Path) -> None:
    engine = policy(llama_folder, layout=Layout(whole_groups=True), micro_batch_size=4)
    batch = random_batch([(4, 4)] * 4).with_(groups=torch.tensor([0, 0, 1, 1]))

    def fits(most: int):
        def loss(micro, outputs, totals):
            if len(micro) > most:
                raise torch.OutOfMemoryError
            return token_mean_loss(micro, outputs, totals)

        return loss

    assert engine.update(batch, loss=fits(2), temperature=1.0)["num_micro_batches"] == 2
    assert engine.limits == MicroBatchLimits(max_rows=2, max_tokens=16)
    assert [note.count("`actor`") for note in engine.take_notes()] == [1]
    with pytest.raises(RLCompatError) as stop:
        engine.update(batch, loss=fits(1), temperature=1.0)
    assert "2 sequences" in stop.value.message
    assert "8 tokens" in stop.value.message
