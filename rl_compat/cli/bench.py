"""`rlc bench`: how fast this machine generates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from rl_compat.bench.options import (
    ENGINES,
    check_names,
    check_numbers,
    engines_here,
    measured_machine,
    options_for,
    questions_for,
)
from rl_compat.bench.run import COLUMNS, measured, table
from rl_compat.capability.devices import capability_text, on_cpu, torch_version
from rl_compat.capability.rollout_engines import ENGINES as KINDS
from rl_compat.capability.rollout_engines import vllm_package
from rl_compat.cli.common import load_hardware
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_note, print_table, print_warning, progress
from rl_compat.hardware.types import Hardware
from rl_compat.models.files.registry import resolve_model
from rl_compat.planning.speed.engines import LARGEST_FACTOR
from rl_compat.planning.speed.measurements import SHORTEST_RESPONSE, Measurement, own_file, save_measurements

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
MEASURED_BY = "`rlc bench rollout` on this machine"


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


def machine_facts(machine: Hardware) -> dict[str, Any]:
    """The card or processor, its memory, and the package versions that affect speed."""
    packages, package = machine.software.packages, vllm_package(machine)
    device = None if on_cpu(machine) else machine.devices[0]
    return {
        "card": machine.host.cpu_name if device is None else device.name,
        "compute_capability": None if device is None else capability_text(device),
        "memory_bytes": machine.host.ram_limit_bytes if device is None else device.memory_total_bytes,
        "num_cores": machine.host.num_cores,
        "torch": torch_version(machine),
        "transformers": packages.get("transformers"),
        "vllm": None if package is None else packages[package],
    }


def title(facts: Mapping[str, Any]) -> str:
    """The machine in one line, the title of the table."""
    versions = [f"{name} {facts[name]}" for name in ("torch", "transformers", "vllm") if facts[name]]
    return ", ".join([str(facts["card"]), f"{facts['num_cores']} cores", *versions])


def measurements_of(rows: Iterable[Mapping[str, Any]], facts: Mapping[str, Any], *, model: str) -> list[Measurement]:
    """Measurements of the engines that a plan can choose, from rows with responses of at least `SHORTEST_RESPONSE`."""
    return [
        Measurement(
            measured_by=MEASURED_BY,
            card=facts["card"],
            compute_capability=facts["compute_capability"],
            torch=facts["torch"] or "",
            vllm=facts["vllm"],
            model=model,
            num_parameters=row["num_parameters"],
            prompt_tokens=row["prompt_tokens"],
            new_tokens=row["new_tokens"],
            engine=ENGINES[row["engine"]][0],
            dtype=row["dtype"],
            batch=row["batch"],
            tokens_per_second=row["tokens_per_second"],
        )
        for row in rows
        if "case" in row and ENGINES[row["engine"]][0] in KINDS and row["new_tokens"] >= SHORTEST_RESPONSE
    ]


def keep(measurements: Sequence[Measurement]) -> str | None:
    """Save measurements for the planner. The path, or None if there is nothing to save or it cannot be written."""
    if not measurements:
        print_note(f"nothing saved for the planner: no engine generated responses of {SHORTEST_RESPONSE} tokens")
        return None
    try:
        path = str(save_measurements(measurements))
    except OSError as error:
        print_warning(f"cannot write `{own_file()}`, so the planner cannot use these speeds: {error.strerror}")
        return None
    millions = measurements[0].num_parameters / 1e6
    print_note(
        f"saved in `{path}`: with `rollout.engine=auto` the planner uses these speeds on {measurements[0].card} for "
        f"models of {millions / LARGEST_FACTOR:.0f} to {millions * LARGEST_FACTOR:.0f} million parameters"
    )
    return path
