#!/usr/bin/env python3
"""Rollout engines side by side on one model folder, interleaved: tokens per second, ratio to `transformers`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.types import RolloutEngine, SamplingParams

ENGINES = ("transformers", "native", "native-packed", "native-graphs")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a Hugging Face model folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compute-dtype", default="fp32", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--engines", default="transformers,native", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--prompt-length", type=int, default=128, help="longest; lengths are spread from half of it")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--group-size", type=int, default=1)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--stop-fraction", type=float, default=0.0, help="share of the vocabulary that ends a response")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def build(name: str, model: torch.nn.Module, options: argparse.Namespace) -> RolloutEngine:
    plan = RolloutPlan(
        engine="transformers" if name == "transformers" else "native",
        compute_dtype=options.compute_dtype,
        max_num_seqs=options.max_num_seqs,
        max_prefill_tokens=8192,
        cuda_graphs=name == "native-graphs",
        packed_linears=name == "native-packed",
    )
    return build_rollout_engine(model, plan=plan, pad_token_id=0)


def workload(vocab_size: int, options: argparse.Namespace) -> tuple[list[list[int]], SamplingParams]:
    """Random prompts, and stop tokens chosen at random so that responses end at different lengths."""
    torch.manual_seed(0)
    lengths = torch.randint(max(1, options.prompt_length // 2), options.prompt_length + 1, (options.num_prompts,))
    stops = torch.randperm(vocab_size)[: int(options.stop_fraction * vocab_size)].tolist()
    params = SamplingParams(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        stop_token_ids=tuple(stops),
        seed=0,
    )
    return [torch.randint(3, vocab_size, (int(length),)).tolist() for length in lengths], params


def timed(call: Callable[[], int], device: str) -> tuple[int, float]:
    """The tokens that a call made and the seconds it took."""
    start = time.perf_counter()
    num_tokens = call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return num_tokens, time.perf_counter() - start


def main() -> None:
    options = parse()
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32, attn_implementation=options.attention
    ).to(options.device)
    prompts, params = workload(model.config.vocab_size, options)
    engines = {name: build(name, model, options) for name in options.engines.split(",")}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for repeat in range(options.repeats + 1):
        for name, engine in engines.items():

            def call(engine: RolloutEngine = engine) -> int:
                groups = engine.generate(prompts, params, group_size=options.group_size)
                return sum(len(response.token_ids) for group in groups for response in group)

            num_tokens, seconds = timed(call, options.device)
            if repeat:
                rates[name].append(num_tokens / seconds)
            label = f"repeat {repeat}" if repeat else "warm-up"
            print(f"{label} {name}: {num_tokens} tokens in {seconds:.2f} s", flush=True)
    baseline = statistics.median(rates.get("transformers", [])) if rates.get("transformers") else None
    for name, values in rates.items():
        median = statistics.median(values)
        ratio = f", {median / baseline:.2f} x transformers" if baseline else ""
        print(f"{name}: {median:.1f} tokens/s (from {min(values):.1f} to {max(values):.1f}){ratio}")


if __name__ == "__main__":
    main()
