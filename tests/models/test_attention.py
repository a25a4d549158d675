"""Attention by plan, and what our own kernel gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import causal_lm, random_batch, role_plan
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from rl_compat.errors import ModelError
from rl_compat.models.attention import REPEATED_SDPA, attn_implementation_for, sdpa_with_repeated_keys
from rl_compat.training.engine import PolicyEngine


@pytest.mark.parametrize(
    ("attention", "repeat_kv", "expected"),
    [
        ("sdpa", True, REPEATED_SDPA),
        ("sdpa", False, "sdpa"),
        ("eager", True, "eager"),
        ("flash_attention_2", False, "flash_attention_2"),
    ],
)
def test_the_plan_names_the_implementation(attention: str, repeat_kv: bool, expected: str) -> None:
    assert attn_implementation_for(role_plan(attention=attention, repeat_kv=repeat_kv)) == expected


@pytest.mark.parametrize("fixture", ["llama_folder", "qwen2_folder"])
def test_repeated_keys_give_the_same_logits_and_tokens(fixture: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(fixture)
    plain, repeated, eager = (
        causal_lm(folder, role=role_plan(**plan)) for plan in ({}, {"repeat_kv": True}, {"attention": "eager"})
    )
    torch.manual_seed(0)
    ids = torch.randint(6, 60, (2, 11))
    torch.testing.assert_close(repeated(ids).logits, plain(ids).logits)
    torch.testing.assert_close(repeated(ids).logits, eager(ids).logits, atol=1e-5, rtol=1e-5)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    tokens = [
        model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()
        for model in (plain, repeated)
    ]
    assert tokens[0] == tokens[1]


class _RecordAttention(TorchFunctionMode):
    """The arguments of every call of scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is scaled_dot_product_attention:
            self.calls.append({"num_key_heads": args[1].shape[1], "dtype": args[1].dtype} | kwargs)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("repeat_kv", [False, True])
def test_padded_micro_batches_are_causal_without_a_mask(llama_folder: Path, repeat_kv: bool) -> None:
    role = role_plan(repeat_kv=repeat_kv)
    engine = PolicyEngine(causal_lm(llama_folder, role=role), role=role, optimizer=None)
    with _RecordAttention() as recorded:
        engine.logprobs(random_batch(), temperature=1.0)
    assert len(recorded.calls) == 2
    assert all(call["is_causal"] and call["attn_mask"] is None for call in recorded.calls)


def test_keys_are_repeated_and_grouped_attention_is_never_asked_for(llama_folder: Path) -> None:
    model = causal_lm(llama_folder, role=role_plan(repeat_kv=True))
    with _RecordAttention() as recorded:
        model(torch.randint(6, 60, (1, 5)))
    assert all(call["num_key_heads"] == 4 and not call.get("enable_gqa") for call in recorded.calls)


def test_under_autocast_repeated_keys_are_already_in_its_dtype() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), _RecordAttention() as recorded:
        output, _ = sdpa_with_repeated_keys(Module(), query, key, value, None)
        expected = scaled_dot_product_attention(
            query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=True
        )
    assert recorded.calls[0]["dtype"] == torch.bfloat16
    assert torch.equal(output, expected.transpose(1, 2))


def test_a_single_query_reads_the_cache_without_repeating_it() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None]
    with _RecordAttention() as recorded:
        output, _ = sdpa_with_repeated_keys(Module(), query, key, value, mask)
    expected = scaled_dot_product_attention(
        query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), attn_mask=mask
    )
    torch.testing.assert_close(output, expected.transpose(1, 2))
    assert recorded.calls[0]["num_key_heads"] == 2


def test_a_prefill_into_a_longer_cache_ignores_its_empty_end() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8)
    output, _ = sdpa_with_repeated_keys(Module(), query, key, value, None)
    expected, _ = sdpa_with_repeated_keys(Module(), query, key[:, :, :3], value[:, :, :3], None)
    assert torch.equal(output, expected)


def test_capped_attention_logits_are_refused() -> None:
    tensor = torch.randn(1, 2, 3, 4)
    with pytest.raises(ModelError) as error:
        sdpa_with_repeated_keys(Module(), tensor, tensor, tensor, None, softcap=50.0)
    assert "`sdpa`" in error.value.message
    assert "`plan.attention=eager`" in str(error.value.hint)
