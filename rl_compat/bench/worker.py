"""One engine on every case, in its own process: `python -m rl_compat.bench.worker ENGINE OPTIONS`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from rl_compat.bench import cases as cases_of
from rl_compat.bench.cases import BenchCase
from rl_compat.bench.engines import engine_for
from rl_compat.bench.measure import Row, floor_seconds, measure, measured_speeds
from rl_compat.bench.options import ENGINES, NOW, ROW, BenchOptions
from rl_compat.resharding.source import SharedStorage


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
        yield cases_of.random_model(options.shape, options.device), _random_cases(options, options.shape)
    if options.model is not None:
        folder = Path(options.model)
        cases = [
            cases_of.question_case(
                folder,
                questions[:count],
                batch=min(count, options.question_batch),
                new_tokens=options.question_tokens,
            )
            for count in options.questions
        ]
        yield cases_of.folder_model(folder, options.device), cases


def _random_cases(options: BenchOptions, shape: str) -> list[BenchCase]:
    vocab = cases_of.SHAPES[shape]["vocab_size"]
    cases = [
        cases_of.fixed_case(vocab, batch=batch, prompt_length=options.prompt_length, new_tokens=options.new_tokens)
        for batch in options.batches
    ]
    if options.ragged:
        ragged = cases_of.ragged_case(
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


if __name__ == "__main__":
    main()
