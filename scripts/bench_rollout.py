#!/usr/bin/env python3
"""Rollout engines side by side: the same model and prompts, each engine in a process of its own.

On a GPU, without further arguments: Qwen2.5-0.5B's shape with random weights, 128 prompt tokens and 128 new ones at
several batch sizes, responses of random length, and with `--model FOLDER` real questions of GSM8K. The fp32 engines run
with a P40's choices: no TF32, no flash attention, no Triton. Prints a table; `--json FILE` keeps the rows.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

MARK = "ROW "


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="generate-fp32,native-fp32,native-bf16,vllm-fp32,vllm-bf16")
    parser.add_argument("--device", default="", help="cuda where there is one, else cpu")
    parser.add_argument(
        "--shape", default="qwen2.5-0.5b", help="of the model with random weights; `none` leaves it out"
    )
    parser.add_argument("--batches", default="8,64,256")
    parser.add_argument("--prompt-length", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument(
        "--ragged", type=int, default=256, help="prompts of the case with random lengths; 0 leaves it out"
    )
    parser.add_argument("--ragged-batch", type=int, default=64)
    parser.add_argument("--ragged-tokens", type=int, default=384)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder, measured on GSM8K")
    parser.add_argument("--questions", default="256", help="numbers of questions, separated by commas")
    parser.add_argument("--question-batch", type=int, default=64)
    parser.add_argument("--question-tokens", type=int, default=256)
    parser.add_argument("--slots", type=int, default=256, help="responses at once, but for generate's static batches")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-seconds", type=float, default=150, help="for one engine")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        work(options)
        return
    started = time.monotonic()
    rows = [row for engine in options.engines.split(",") for row in measured_apart(engine, options)]
    print_table(rows, baseline=options.engines.split(",")[0])
    print(f"{time.monotonic() - started:.0f} seconds in all")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


def measured_apart(engine: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one engine, from a process of its own that may fail."""
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", engine]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + options.max_seconds
    tail: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(MARK):
            row = json.loads(line.removeprefix(MARK))
            print(f"{engine:20} {row['case']:24} {row['tokens_per_second']:10,.0f} tokens/s", flush=True)
            yield row
        else:
            tail = [*tail[-30:], line.rstrip()]
            if line.startswith("rl_compat.rollout"):
                print(f"  {line.rstrip()}", flush=True)
        if time.monotonic() > deadline:
            process.kill()
            tail.append(f"stopped after {options.max_seconds:.0f} seconds")
            break
    if process.wait() != 0:
        print(f"{engine} failed:", *tail, sep="\n    ", flush=True)
        yield {"engine": engine, "error": "\n".join(tail[-8:])}


def work(options: argparse.Namespace) -> None:
    """In the process of one engine: every case, a row each."""
    import torch

    from rl_compat.rollout.bench_engines import ENGINES, engine_for, measure
    from rl_compat.rollout.bench_floor import floor_seconds, measured_speeds

    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)
    logging.getLogger("rl_compat").setLevel(logging.INFO)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = ENGINES[options.worker][1]
    torch.backends.cuda.matmul.allow_tf32 = False
    if dtype == "fp32":
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    architecture = None
    if device.startswith("cuda"):
        architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    speeds = measured_speeds(device, dtype)
    for model, cases in workloads(options, device):
        longest = max(len(prompt) + case.params.max_new_tokens for case in cases for prompt in case.prompts)
        slots = min(options.slots, max(len(case.prompts) for case in cases))
        engine = engine_for(options.worker, model, batch=slots, max_length=longest, architecture=architecture)
        for case in cases:
            if options.worker.startswith("generate"):
                engine = engine_for(options.worker, model, batch=case.batch, max_length=longest)
            row = measure(options.worker, engine, case, device=device, repeats=options.repeats)
            if row.step_seconds:
                floor = floor_seconds(model, case, speeds, dtype)
                row = replace(row, floor_fraction=floor / row.step_seconds)
            print(MARK + json.dumps(row.as_dict()), flush=True)


def workloads(options: argparse.Namespace, device: str) -> Iterator[tuple[Any, list[Any]]]:
    """Models with their cases, one model at a time."""
    from rl_compat.rollout import bench_cases as make

    if options.shape != "none":
        vocab = make.SHAPES[options.shape]["vocab_size"]
        cases = [
            make.fixed_case(vocab, batch=batch, prompt_length=options.prompt_length, new_tokens=options.new_tokens)
            for batch in map(int, options.batches.split(","))
        ]
        if options.ragged:
            ragged = make.ragged_case(
                vocab,
                count=options.ragged,
                batch=options.ragged_batch,
                prompt_length=options.prompt_length,
                new_tokens=options.ragged_tokens,
            )
            cases.append(ragged)
        yield make.random_model(options.shape, device), cases
    if options.model is not None:
        from rl_compat.data.gsm8k import raw_records

        counts = [int(count) for count in options.questions.split(",")]
        questions = [record["question"] for record in raw_records("test", limit=max(counts))]
        cases = [
            make.question_case(
                options.model,
                questions[:count],
                batch=min(count, options.question_batch),
                new_tokens=options.question_tokens,
            )
            for count in counts
        ]
        yield make.folder_model(options.model, device), cases


def print_table(rows: list[dict[str, Any]], *, baseline: str) -> None:
    """Tokens a second, the ratio to the first engine, time of a step, and its share that no engine can save."""
    base = {row["case"]: row["tokens_per_second"] for row in rows if row["engine"] == baseline and "case" in row}
    titles = f"{'tokens/s':>10} {'ratio':>6} {'ms/step':>8} {'floor':>6} {'first s':>8} {'GiB':>6}"
    print(f"\n{'case':24} {'engine':18} {titles}")
    places = {case: place for place, case in enumerate(base)}
    for row in sorted((row for row in rows if "case" in row), key=lambda row: places.get(row["case"], len(places))):
        ratio = f"{row['tokens_per_second'] / base[row['case']]:.2f}" if row["case"] in base else ""
        step = "" if row["step_seconds"] is None else f"{row['step_seconds'] * 1000:.2f}"
        floor = "" if row["floor_fraction"] is None else f"{row['floor_fraction']:.0%}"
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}"
        print(
            f"{row['case']:24} {row['engine']:18} {row['tokens_per_second']:10,.0f} {ratio:>6} {step:>8} {floor:>6} "
            f"{row['first_seconds']:8.1f} {peak:>6}"
        )


if __name__ == "__main__":
    main()
