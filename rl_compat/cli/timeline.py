"""`rlc timeline`: what ran when in a step of a run, and how long each device was idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_table
from rl_compat.errors import UsageError, write_failure
from rl_compat.tracking.timeline import STEP, TIMELINE_FILE, read_spans
from rl_compat.tracking.timeline_picture import StepTimeline

app = new_app()


@app.command()
def timeline(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    step: Annotated[int | None, typer.Option("--step", metavar="N", help="The step; the newest by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write a picture (FILE.svg), or a trace for chrome://tracing and Perfetto (FILE.json).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show when the phases of a step and the calls on its devices ran, and the idle share of each device.

    Example: rlc timeline runs/sums --step 3 -o step_3.svg
    """
    if output is not None and output.suffix not in (".svg", ".json"):
        raise UsageError(f"`{output}` is neither `.svg` nor `.json`", hint="name the file `timeline.svg`")
    file = run / TIMELINE_FILE
    if not file.is_file():
        raise UsageError(f"there is no `{file}`", hint="name the folder of a run that has made a step")
    spans = list(read_spans(file))
    steps = sorted({span.step for span in spans if span.name == STEP and span.step is not None})
    chosen = step if step is not None else (steps[-1] if steps else 0)
    found = StepTimeline.of(spans, chosen) if chosen in steps else None
    if found is None:
        known = f"steps {steps[0]} to {steps[-1]}" if steps else "no finished step"
        raise UsageError(f"`{file}` has {known}, and not step {chosen}", hint="use `--step` with one of them")
    if output is not None:
        try:
            output.write_text(found.svg() if output.suffix == ".svg" else json.dumps(found.chrome_trace()), "utf-8")
        except OSError as error:
            raise UsageError(f"`{output}` cannot be written: {write_failure(error)[0]}") from error
    shares = found.idle_shares()
    if as_json:
        print_json({"step": found.step, "seconds": found.seconds, "idle_share": shares})
        return
    rows = [
        (
            lane,
            len(spans),
            f"{sum(span.seconds for span in spans):.3f}",
            f"{shares[lane]:.1%}" if lane in shares else "",
        )
        for lane, spans in found.lanes.items()
    ]
    print_lines([f"step {found.step}: {found.seconds:.3f} s"])
    print_table("lanes", ("thread or device", "spans", "seconds", "idle"), rows)
    print_lines([] if output is None else [f"written to `{output}`"])
