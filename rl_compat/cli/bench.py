"""`rlc bench`: how fast this machine is at what takes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_compat.cli.common import AsJson, load_hardware, new_app
from rl_compat.cli.render import print_json, print_note, print_table
from rl_compat.errors import AskedWrongly, nearest

if TYPE_CHECKING:
    from rl_compat.hardware.types import Hardware
    from rl_compat.rollout.bench_options import BenchOptions

app = new_app()

Model = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A model to measure on questions of GSM8K; random weights when left out."),
]
Engines = Annotated[str, typer.Option("--engines", help="Names separated by commas; all that run here when left out.")]
Batches = Annotated[str, typer.Option("--batches", help="Responses at once, numbers separated by commas.")]
NewTokens = Annotated[int | None, typer.Option("--new-tokens", min=2, help="Tokens of a response, at most.")]
SECONDS_PER_ENGINE = 240.0


@app.callback()
def bench() -> None:
    """Measure this machine."""


@app.command()
def rollout(
    model: Model = None,
    engines: Engines = "",
    batches: Batches = "",
    new_tokens: NewTokens = None,
    as_json: AsJson = False,
) -> int:
    """Every engine that can generate here, on the same prompts: responses of one length and of many.

    `floor` is the share of a step that weights, cache and arithmetic take at the least. Engines in fp32 use neither
    TF32 nor flash attention, as on a card that has none. Each engine runs in a process of its own.

    Example: rlc bench rollout smollm2-135m --engines generate-fp32,native-fp32
    """
    from rl_compat.data.gsm8k import raw_records
    from rl_compat.models.registry import resolve_model
    from rl_compat.rollout.bench_run import COLUMNS, measured, table

    machine = load_hardware(None)
    names = engines_here(machine, engines)
    folder = None if model is None else str(resolve_model(model).folder)
    options = options_for(machine, folder=folder, batches=batches, new_tokens=new_tokens)
    questions = [] if folder is None else raw_records("test", limit=max(options.questions))
    rows = measured(
        names, options, [record["question"] for record in questions], max_seconds=SECONDS_PER_ENGINE, say=print_note
    )
    if as_json:
        print_json(rows)
    else:
        print_table("", COLUMNS, table(rows, baseline=names[0]))
    return 1 if all("error" in row for row in rows) else 0


def engines_here(machine: Hardware, asked: str) -> list[str]:
    """Those asked for, or else all whose dtype and engine this machine has; the first is what others are compared with.

    Raises AskedWrongly for a name that there is not.
    """
    from rl_compat.capability.devices import on_cpu
    from rl_compat.capability.precision import compute_dtype
    from rl_compat.capability.rollout_engines import rollout_engine
    from rl_compat.rollout.bench_options import ENGINES

    if asked:
        for name in asked.split(","):
            if name not in ENGINES:
                guess = nearest(name, ENGINES)
                hint = f"did you mean `{guess}`?" if guess else f"engines: {', '.join(ENGINES)}"
                raise AskedWrongly(f"there is no engine `{name}`", hint=hint)
        return asked.split(",")
    dtypes = ("fp32",) if on_cpu(machine) else ("fp32", "fp16", "bf16")
    usable = [dtype for dtype in dtypes if compute_dtype(machine, dtype).supported]
    kinds = [kind for kind in ("native", "vllm") if rollout_engine(machine, kind).supported]
    here = [f"{kind}-{dtype}" for kind in kinds for dtype in usable]
    return ["generate-fp32", *(name for name in here if name in ENGINES)]


def options_for(machine: Hardware, *, folder: str | None, batches: str, new_tokens: int | None) -> BenchOptions:
    """Cases that a CPU finishes in a few minutes, and larger ones for a GPU.

    Raises AskedWrongly for batches that are no numbers.
    """
    from rl_compat.capability.devices import on_cpu
    from rl_compat.rollout.bench_options import BenchOptions

    sizes = _numbers(batches) if batches else None
    shape = None if folder else "qwen2.5-0.5b"
    if on_cpu(machine):
        return BenchOptions(
            device="cpu",
            shape=shape and "small",
            model=folder,
            batches=sizes or (8, 32),
            prompt_length=64,
            new_tokens=new_tokens or 32,
            ragged=48,
            ragged_batch=16,
            ragged_tokens=new_tokens or 96,
            questions=sizes or (16,),
            question_batch=16,
            question_tokens=new_tokens or 48,
            slots=48,
            repeats=1,
        )
    capability = machine.devices[0].compute_capability
    return BenchOptions(
        device="cuda",
        architecture="sm_{}{}".format(*capability),
        shape=shape,
        model=folder,
        batches=sizes or (8, 64, 256),
        new_tokens=new_tokens or 128,
        questions=sizes or (256,),
        question_tokens=new_tokens or 256,
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise AskedWrongly(f"`--batches={text}` are not numbers above 0", hint="separate them by commas: `8,64`")
    return tuple(int(part) for part in parts)
