"""Generating and learning over and over leaves nothing behind: the fault at step nine of public reports."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
import torch
from rollout.conftest import build, load_newest
from torch import nn

from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.rollout.types import SamplingParams


def run(
    engine: NativeEngine, model: nn.Module, *, steps: int, every: int, held: Callable[[], tuple[int, int]]
) -> list[tuple[int, int]]:
    """What is held after every so many steps: batches, lengths and weights change from step to step."""
    chance = random.Random(0)
    found = []
    for step in range(steps):
        count = chance.randrange(1, 7)
        prompts = [[chance.randrange(2, 90) for _ in range(chance.randrange(1, 12))] for _ in range(count)]
        params = SamplingParams(max_new_tokens=chance.randrange(1, 6), seed=step, stop_token_ids=(1, 30, 60))
        groups = engine.generate(prompts, params, group_size=chance.randrange(1, 3))
        assert all(0 < len(r.token_ids) <= params.max_new_tokens for group in groups for r in group)
        learn(model, [*prompts[0], *groups[0][0].token_ids])
        load_newest(engine)
        if step % 50 == 7:
            engine.sleep()
        if step % every == every - 1:
            found.append(held())
    return found


def learn(model: nn.Module, token_ids: list[int]) -> None:
    ids = torch.tensor([token_ids], device=next(model.parameters()).device)
    model(input_ids=ids, labels=ids).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None


def tensors_alive() -> tuple[int, int]:
    """How many tensors there are, and the bytes of their storages."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) in (torch.Tensor, nn.Parameter)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.device.type == "cpu"}
    return len(tensors), sum(storages.values())


def test_batches_of_changing_size_leave_no_tensor_behind(llama: nn.Module) -> None:
    check_on_cpu(llama, steps=60)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("compute_dtype", ["fp32", "bf16"])
def test_a_thousand_steps_leave_no_tensor_behind(llama: nn.Module, compute_dtype: str) -> None:
    check_on_cpu(llama, steps=1000, compute_dtype=compute_dtype)


def check_on_cpu(llama: nn.Module, *, steps: int, **changes: object) -> None:
    engine = build("native", llama, max_num_seqs=6, **changes)
    no_more_than_before(run(engine, llama, steps=steps, every=steps // 4, held=tensors_alive))
    assert engine._decoder.num_slots <= 6


def no_more_than_before(found: list[tuple[int, int]]) -> None:
    """The second half of what was found stays within the first."""
    half = len(found) // 2
    for before, after in zip(zip(*found[:half], strict=True), zip(*found[half:], strict=True), strict=True):
        assert max(after) <= max(before)


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("compute_dtype", ["fp32", "bf16"])
def test_a_thousand_steps_take_no_more_of_the_device(llama: nn.Module, graphs: bool, compute_dtype: str) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    llama.to("cuda")
    engine = build("native", llama, max_num_seqs=6, cuda_graphs=graphs, compute_dtype=compute_dtype)

    def held() -> tuple[int, int]:
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    no_more_than_before(run(engine, llama, steps=1000, every=10, held=held))
    engine.sleep()
    weights = sum(parameter.nbytes for parameter in llama.parameters())
    assert torch.cuda.memory_allocated() - before < 2**20 + weights + 64 * 2**20


def test_the_cache_grows_when_it_must_and_shrinks_when_it_stays_too_large(llama: nn.Module) -> None:
    engine = build("native", llama)
    short, long = SamplingParams(max_new_tokens=2, seed=0), SamplingParams(max_new_tokens=2, seed=0)
    sizes = []
    for length in (5, 300, 5, 300, 5, 5, 5, 5, 5):
        engine.generate([[7] * length], short if length == 5 else long)
        sizes.append((engine._decoder.num_slots, engine._decoder.capacity))
    assert sizes == [(1, 128), *[(1, 384)] * 6, *[(1, 128)] * 2]


def test_slots_grow_with_the_batch_up_to_the_plan(llama: nn.Module) -> None:
    engine = build("native", llama, max_num_seqs=4)
    for count in (1, 3, 9, 2):
        engine.generate([[5, 6]] * count, SamplingParams(max_new_tokens=2, seed=0))
    assert engine._decoder.num_slots == 4
