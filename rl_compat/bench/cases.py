"""Benchmark cases: a model, prompts, and the lengths of responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_compat.rollout.types import SamplingParams

SHAPES: dict[str, dict[str, int]] = {
    "qwen2.5-0.5b": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
    },
    "qwen2.5-7b": {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    },
    "small": {
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": 8192,
    },
}
"shapes of Qwen2 models with random weights, by name"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    name: str
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    batch: int
    "concurrent sequences"


def random_model(shape: str, device: str) -> nn.Module:
    """An fp32 model of one of the shapes, with random weights, created on the device."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **SHAPES[shape],
        max_position_embeddings=4096,
        tie_word_embeddings=shape != "qwen2.5-7b",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = Qwen2ForCausalLM(config).float().eval()
    return model


def folder_model(folder: Path, device: str) -> nn.Module:
    """The model of a Hugging Face folder, in fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    moved: nn.Module = model.to(device).eval()
    return moved


def fixed_case(vocab_size: int, *, batch: int, prompt_length: int, new_tokens: int) -> BenchCase:
    """Random prompts of one length; every response has the maximum length."""
    generator = torch.Generator().manual_seed(batch)
    prompts = torch.randint(3, vocab_size, (batch, prompt_length), generator=generator).tolist()
    params = SamplingParams(max_new_tokens=new_tokens, seed=0)
    return BenchCase(name=f"{prompt_length}+{new_tokens} x {batch}", prompts=prompts, params=params, batch=batch)


def ragged_case(vocab_size: int, *, count: int, batch: int, prompt_length: int, new_tokens: int) -> BenchCase:
    """Prompts of half to full length; responses end at random, on average after a third of the limit."""
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(prompt_length // 2, prompt_length + 1, (count,), generator=generator).tolist()
    prompts = [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    stops = torch.randperm(vocab_size, generator=generator)[: max(1, 3 * vocab_size // new_tokens)].tolist()
    params = SamplingParams(max_new_tokens=new_tokens, seed=0, stop_token_ids=tuple(stops))
    return BenchCase(name=f"ragged to {new_tokens} x {count}", prompts=prompts, params=params, batch=batch)


def question_case(folder: Path, questions: Sequence[str], *, batch: int, new_tokens: int) -> BenchCase:
    """Questions in the chat template of a model; responses end where the model ends them."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in questions
    ]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    params = SamplingParams(max_new_tokens=new_tokens, seed=0, stop_token_ids=(int(tokenizer.eos_token_id),))
    return BenchCase(name=f"questions to {new_tokens} x {len(texts)}", prompts=prompts, params=params, batch=batch)
