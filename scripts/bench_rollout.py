#!/usr/bin/env python3
"""Compare rollout engines with the same model and prompts, each engine in its own process.

The default on a GPU is the shape of Qwen2.5-0.5B with random weights, 128 prompt tokens and 128 new tokens at several
batch sizes, and responses of random length; `--model FOLDER` adds GSM8K questions. The fp32 engines run with the
choices of a P40: no TF32, no flash attention, no Triton. Prints a table; `--json FILE` saves the rows. `rlc bench
rollout` is the simpler command for users.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import torch

from rl_compat.bench.options import BenchOptions
from rl_compat.bench.run import COLUMNS, measured, table
from rl_compat.data.builtin.gsm8k import raw_records

DEFAULTS = BenchOptions(device="cpu")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="generate-fp32,native-fp32,native-bf16,vllm-fp32,vllm-bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default=DEFAULTS.shape, help="shape of the random model; `none` skips it")
    parser.add_argument("--batches", type=numbers, default=DEFAULTS.batches)
    parser.add_argument("--prompt-length", type=int, default=DEFAULTS.prompt_length)
    parser.add_argument("--new-tokens", type=int, default=DEFAULTS.new_tokens)
    parser.add_argument("--ragged", type=int, default=DEFAULTS.ragged, help="prompts with random response lengths")
    parser.add_argument("--ragged-batch", type=int, default=DEFAULTS.ragged_batch)
    parser.add_argument("--ragged-tokens", type=int, default=DEFAULTS.ragged_tokens)
    parser.add_argument("--model", help="a Hugging Face folder to measure on GSM8K")
    parser.add_argument(
        "--questions", type=numbers, default=DEFAULTS.questions, help="numbers of questions, separated by commas"
    )
    parser.add_argument("--question-batch", type=int, default=DEFAULTS.question_batch)
    parser.add_argument("--question-tokens", type=int, default=DEFAULTS.question_tokens)
    parser.add_argument("--slots", type=int, default=DEFAULTS.slots, help="concurrent sequences, except for `generate`")
    parser.add_argument("--repeats", type=int, default=DEFAULTS.repeats)
    parser.add_argument("--max-seconds", type=float, default=150, help="time limit per engine, on average")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    given = vars(parse())
    engines, target, seconds = given.pop("engines").split(","), given.pop("json"), given.pop("max_seconds")
    if given["device"].startswith("cuda"):
        given["architecture"] = "sm_{}{}".format(*torch.cuda.get_device_capability(given["device"]))
    given["shape"] = None if given["shape"] == "none" else given["shape"]
    options = BenchOptions(**given)
    questions = [] if options.model is None else raw_records("test", limit=max(options.questions))
    started = time.monotonic()
    say = partial(print, flush=True)
    texts = [record["question"] for record in questions]
    rows = measured(engines, options, texts, total_seconds=seconds * len(engines), say=say)
    for case, engine, *cells in (COLUMNS, *table(rows, baseline=engines[0])):
        print(f"{case:26} {engine:18}", *(f"{cell:>9}" for cell in cells))
    print(f"{time.monotonic() - started:.0f} seconds in all")
    if target is not None:
        target.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
