"""`rlc bench`: how fast this machine generates."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_compat.cli.common import AsJson, load_hardware, new_app
from rl_compat.cli.render import print_json, print_note, print_table, progress

app = new_app()

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="A model to benchmark on GSM8K questions. Default: a model with random weights."
    ),
]
Engines = Annotated[
    str,
    typer.Option(
        "--engines",
        metavar="NAMES",
        help="Engines separated by commas, for example `native-fp32`, or `native` for all its dtypes. "
        "Default: all that run here.",
    ),
]
Batches = Annotated[
    str, typer.Option("--batches", metavar="NUMBERS", help="Numbers of concurrent sequences, separated by commas.")
]
NewTokens = Annotated[int | None, typer.Option("--new-tokens", min=2, help="Maximum tokens per response.")]
OnCpu = Annotated[bool, typer.Option("--cpu", help="Benchmark the CPU even if a GPU is present.")]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds",
        min=1,
        help="Time limit for all engines together. Default: 280 for the default cases on a CPU, else 240 per engine.",
    ),
]
SECONDS_PER_ENGINE = 240.0
DEFAULT_CPU_SECONDS = 280.0


@app.callback()
def bench() -> None:
    """Benchmark this machine."""


@app.command()
def rollout(
    model: Model = None,
    engines: Engines = "",
    batches: Batches = "",
    new_tokens: NewTokens = None,
    cpu: OnCpu = False,
    max_seconds: MaxSeconds = None,
    as_json: AsJson = False,
) -> int:
    """Measure the tokens per second of every rollout engine that runs here, on the same prompts.

    Each engine runs in its own process, with responses of equal length and of mixed lengths. `floor` is the minimum
    time that reading weights and KV cache and the arithmetic take, as a share of the measured step. Engines in fp32 use
    neither TF32 nor flash attention, like a card without them. The planner uses the saved speeds to choose an engine.

    Example: rlc bench rollout smollm2-135m --engines generate-fp32,native-fp32
    """
    from rl_compat.bench.request import (
        check_names,
        check_numbers,
        engines_here,
        measured_machine,
        options_for,
        questions_for,
    )
    from rl_compat.bench.run import COLUMNS, measured, table
    from rl_compat.cli.bench_record import keep, machine_facts, measurements_of, title
    from rl_compat.models.files.registry import resolve_model

    check_names(engines)
    check_numbers(batches)
    machine = measured_machine(load_hardware(None), cpu=cpu)
    names = engines_here(machine, engines)
    folder = None if model is None else str(resolve_model(model).folder)
    options = options_for(machine, folder=folder, batches=batches, new_tokens=new_tokens)
    usual = options.device == "cpu" and not any((model, batches, new_tokens))
    seconds = max_seconds or (DEFAULT_CPU_SECONDS if usual else SECONDS_PER_ENGINE * len(names))
    with progress(len(names) * options.num_cases, "rollout") as bar:
        rows = measured(
            names,
            options,
            questions_for(options),
            total_seconds=seconds,
            say=print_note,
            show=lambda finished, doing: bar.advance(finished, note=doing),
        )
    facts = machine_facts(machine)
    saved = keep(measurements_of(rows, facts, model=model or f"{options.shape}, random weights"))
    cells = table(rows, baseline=names[0])
    if as_json:
        print_json({"machine": facts, "model": model or options.shape, "rows": rows, "saved": saved})
    elif cells:
        print_table(title(facts), COLUMNS, cells)
    return 0 if cells else 1
