"""One engine on every case, in its own process: `python -m rl_compat.bench.worker ENGINE OPTIONS`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_compat.bench.engines import engine_for
from rl_compat.bench.measure import BenchCase, Row, floor_seconds, measure, measured_speeds
from rl_compat.bench.options import ENGINES, NOW, ROW, BenchOptions
from rl_compat.resharding.source import SharedStorage
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


def rows_of(
    engine_name: str, options: BenchOptions, questions: Sequence[str], *, now: Callable[[str], None]
) -> Iterator[Row]:
    """The results of the engine on each case. In fp32, TF32 and flash attention are disabled, as on old cards.

    In half precision the output layer, which stays in fp32, may use TF32, as in plans for such cards. `now` receives
    the current activity.
    """
    dtype = ENGINES[engine_name][1]
    torch.set_float32_matmul_precision("highest" if dtype == "fp32" else "high")
    torch.backends.cuda.enable_flash_sdp(dtype != "fp32")
    torch.backends.cuda.enable_cudnn_sdp(dtype != "fp32")
    now("measuring the device")
    speeds = measured_speeds(options.device, dtype)
    for model, cases in workloads(options, questions):
        now("starting")
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        longest = max(len(prompt) + case.params.max_new_tokens for case in cases for prompt in case.prompts)
        slots = min(options.slots, max(len(case.prompts) for case in cases))
        begun = time.perf_counter()
        engine = engine_for(engine_name, model, batch=slots, max_length=longest, architecture=options.architecture)
        start_seconds = time.perf_counter() - begun
        for case in cases:
            now(case.name)
            if engine_name.startswith("generate"):
                engine = engine_for(engine_name, model, batch=case.batch, max_length=longest)
            else:
                case = replace(case, batch=min(slots, len(case.prompts)))
            source = SharedStorage(model, version=0)
            row = measure(engine_name, engine, case, source, device=options.device, repeats=options.repeats)
            floor = floor_seconds(model, case, speeds, dtype) / row.step_seconds if row.step_seconds else None
            yield replace(row, num_parameters=num_parameters, start_seconds=start_seconds, floor_fraction=floor)


def workloads(options: BenchOptions, questions: Sequence[str]) -> Iterator[tuple[nn.Module, list[BenchCase]]]:
    """Models with their cases, one model at a time."""
    if options.shape is not None:
        yield random_model(options.shape, options.device), _random_cases(options, options.shape)
    if options.model is not None:
        folder = Path(options.model)
        cases = [
            question_case(
                folder,
                questions[:count],
                batch=min(count, options.question_batch),
                new_tokens=options.question_tokens,
            )
            for count in options.questions
        ]
        yield folder_model(folder, options.device), cases


def _random_cases(options: BenchOptions, shape: str) -> list[BenchCase]:
    vocab = SHAPES[shape]["vocab_size"]
    cases = [
        fixed_case(vocab, batch=batch, prompt_length=options.prompt_length, new_tokens=options.new_tokens)
        for batch in options.batches
    ]
    if options.ragged:
        ragged = ragged_case(
            vocab,
            count=options.ragged,
            batch=options.ragged_batch,
            prompt_length=options.prompt_length,
            new_tokens=options.ragged_tokens,
        )
        cases.append(ragged)
    return cases


def main() -> None:
    """Print the current activity and a row for each case; questions are read from stdin as JSON."""
    engine_name, text = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stdout)
    logging.getLogger("rl_compat").setLevel(logging.INFO)

    def now(what: str) -> None:
        print(NOW + what, flush=True)

    for row in rows_of(engine_name, BenchOptions.from_json(text), json.load(sys.stdin), now=now):
        print(ROW + json.dumps(asdict(row)), flush=True)


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


if __name__ == "__main__":
    main()
