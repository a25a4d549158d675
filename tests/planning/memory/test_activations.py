"""Activation formulas against what autograd keeps, and the update phase against a tracked step."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rl_compat.config.types import DataConfig
from rl_compat.models.load import enable_checkpointing
from rl_compat.planning.memory import activations
from rl_compat.planning.memory.activations import Arithmetic, kv_cache_bytes, logits_bytes, saved_bytes
from rl_compat.planning.memory.budget import phase_budgets
from rl_compat.planning.memory.request import Levers, MemoryRequest, Sizes
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.workload import shared_workload
from rl_compat.training.chunked_logprobs import LogitRule, chunked_logprobs
from rl_compat.units import GIB

ROWS, LENGTH = 3, 64


def small_model(family: str, attention: str = "sdpa", **changes):
    settings = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        **changes,
    }
    config = AutoConfig.for_model(family, **settings, pad_token_id=0)
    config._attn_implementation = attention
    return AutoModelForCausalLM.from_config(config).train()


def kept_by_autograd(model, *, half: bool) -> int:
    """Bytes of distinct storages that a forward saves for backward, parameters and their half copies aside."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    matrices = {tuple(p.shape) for p in model.parameters() if p.dim() == 2}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters and not {tuple(tensor.shape), tuple(tensor.shape[::-1])} & matrices:
            kept[address] = tensor
        return tensor

    context = torch.autocast("cpu", dtype=torch.bfloat16) if half else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), context:
        model.base_model(input_ids=torch.randint(1, 100, (ROWS, LENGTH)), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("family", "attention", "changes"),
    [("llama", "sdpa", {}), ("qwen2", "sdpa", {}), ("qwen3", "sdpa", {"head_dim": 16}), ("llama", "eager", {})],
)
def test_saved_activations_are_within_15_percent_of_what_autograd_keeps(family, attention, changes, half) -> None:
    torch.manual_seed(0)
    model = small_model(family, attention, **changes)
    shape = ModelShape.from_config(model.config.to_dict())
    arithmetic = Arithmetic(compute_bytes=2 if half else 4, eager_attention=attention == "eager")

    planned = saved_bytes(shape, arithmetic, tokens=ROWS * LENGTH, length=LENGTH, checkpointing=False)

    measured = kept_by_autograd(model, half=half)
    assert 0.97 * measured <= planned <= 1.15 * measured


def test_checkpointing_keeps_the_inputs_of_the_blocks() -> None:
    model = small_model("llama", num_hidden_layers=12)
    enable_checkpointing(model)
    shape = ModelShape.from_config(model.config.to_dict())

    planned = saved_bytes(shape, Arithmetic(compute_bytes=4), tokens=ROWS * LENGTH, length=LENGTH, checkpointing=True)

    measured = kept_by_autograd(model, half=False)
    assert measured <= planned <= 1.2 * measured


def tracked_peak(model, *, checkpointing: bool, rows: int, length: int, response: int, chunk: int) -> int:
    """Peak bytes of two accumulated micro-batches and an optimizer step, under fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    config = model.config
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config).train()
        if checkpointing:
            enable_checkpointing(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for micro_batch in range(2):
                tracker.reset_mod_stats()
                ids = torch.zeros(rows, length, dtype=torch.int64)
                hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
                hidden = hidden.flatten(0, 1).index_select(0, torch.arange(rows * response))
                targets = ids[:, -response:].reshape(-1)
                logprobs, *_ = chunked_logprobs(
                    hidden, model.lm_head.weight, targets, rule=LogitRule(), chunk_tokens=chunk
                )
                del hidden
                logprobs.mean().backward()
                if micro_batch == 0:
                    optimizer.step()
        peak = tracker.get_tracker_snapshot("peak")
    return max(kinds["Total"] for kinds in peak.values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_is_planned_within_15_percent_of_a_tracked_step(checkpointing) -> None:
    model = small_model(
        "qwen2",
        vocab_size=4096,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        tie_word_embeddings=True,
    )
    rows, length, response, chunk = 8, 128, 64, 64
    shape = ModelShape.from_config(model.config.to_dict())
    request = update_request(shape, prompt=length - response, response=response)
    sizes = Sizes(
        micro_batch_tokens=rows * length, logprob_chunk_tokens=chunk, max_num_seqs=1, max_prefill_tokens=length
    )
    levers = Levers(sleep_between=True, gradient_checkpointing=checkpointing)

    planned = {b.phase: b.total_bytes for b in phase_budgets(request, levers, sizes)}["actor_update"]

    measured = tracked_peak(
        model, checkpointing=checkpointing, rows=rows, length=length, response=response, chunk=chunk
    )
    assert 0.95 * measured <= planned <= 1.15 * measured


def update_request(shape: ModelShape, *, prompt: int, response: int) -> MemoryRequest:
    data = DataConfig(max_prompt_length=prompt, max_response_length=response)
    return MemoryRequest(
        workload=shared_workload({"actor": shape}, data=data),
        quantization="none",
        compute_dtype="fp32",
        rollout_dtype="fp32",
        repeat_kv=False,
        eager_attention=False,
        optimizer_state_bytes=8,
        engine="native",
        on_cpu=False,
        cuda_graphs=False,
        context_bytes=0,
        allocator_factor=1.0,
    )


def test_logits_of_a_152k_vocabulary() -> None:
    """A-MEM-01: micro-batch 8, 1024 response tokens, one copy in fp32 is 4.64 GiB."""
    one_copy = logits_bytes(151936, tokens=8 * 1024, copies=1)

    assert one_copy / GIB == pytest.approx(4.64, abs=0.01)
    assert logits_bytes(151936, tokens=8 * 1024) == activations.LOGIT_COPIES * one_copy
    assert logits_bytes(151936, tokens=16 * 1024, copies=1) == 2 * one_copy


def test_key_value_cache_of_a_known_model() -> None:
    from fakes.machines import QWEN_05B

    assert kv_cache_bytes(QWEN_05B, num_seqs=1, length=1, element_bytes=4) == 24 * 1024
