"""`rlc replay`: the responses that a run with `samples.keep` has recorded."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines
from rl_compat.errors import ConfigError
from rl_compat.units import counted, format_bytes

if TYPE_CHECKING:
    from rl_compat.replay.report import RecordSummary

app = new_app()

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run with `samples.keep=true`.")]


@app.callback()
def replay() -> None:
    """Look at the responses that a run has recorded, and write them as one file."""


@app.command()
def show(run: RunFolder, as_json: AsJson = False) -> None:
    """Show what a record holds: rows, steps, policy versions, the distribution of rewards, and reuse.

    Example: rlc replay show runs/gsm8k
    """
    from rl_compat.replay.report import record_folder, summarize

    found = summarize(record_folder(run))
    if as_json:
        print_json(asdict(found))
    else:
        print_lines(_lines(found))


@app.command()
def export(
    run: RunFolder,
    output: Annotated[Path, typer.Argument(metavar="FILE", help="A new file that ends with .parquet or .jsonl.")],
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="FIRST-LAST", help="Only the responses of these steps.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the recorded responses as one file: a row per response, with its prompt, rewards, tokens and versions.

    Example: rlc replay export runs/gsm8k responses.jsonl --steps 90-100
    """
    from rl_compat.replay.report import export_rows, record_folder

    if output.exists() and not force:
        raise ConfigError(f"`{output}` exists", hint="name another file, or replace it with `--force`")
    num_rows = export_rows(record_folder(run), output, steps=None if steps is None else _range(steps))
    if as_json:
        print_json({"file": str(output), "num_rows": num_rows})
    else:
        print_lines([f"{num_rows} responses written to {output}"])


def _range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None:
        raise ConfigError(
            f"`--steps {text}` is not of the form `FIRST-LAST`", hint="write `--steps 10-20`, or one step"
        )
    first = int(match.group(1))
    return first, int(match.group(2) or first)


def _lines(found: RecordSummary) -> list[str]:
    reasons = ", ".join(f"{name} {count}" for name, count in found.finish_reasons.items())
    uses = ", ".join(
        f"{counted(count, 'prompt')} {counted(uses, 'time')}" for uses, count in found.groups_by_uses.items()
    )
    rewards = "none"
    if found.reward_mean is not None:
        rewards = f"mean {found.reward_mean:.4g}, standard deviation {found.reward_std:.4g}"
    lines = {
        "responses": f"{found.num_rows} to {found.num_groups} prompts",
        "on disk": f"{format_bytes(found.num_bytes)} in {counted(found.num_files, 'file')}",
        "steps": f"{found.first_step} to {found.last_step}",
        "versions": "unknown" if found.policy_versions is None else "{} to {}".format(*found.policy_versions),
        "rewards": rewards + (f", {found.num_unscored} without" if found.num_unscored else ""),
        "quantiles": ", ".join(f"{name}: {value:.4g}" for name, value in found.reward_quantiles.items()),
        "ended by": reasons,
        "used": uses,
        "reused": "none"
        if found.reuse_age is None
        else "after {:.3g} steps on average, at most {}".format(*found.reuse_age),
    }
    return [f"{name:<10} {text}" for name, text in lines.items()]
