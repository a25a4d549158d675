"""`rlc data`: write the shipped data sets as files that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_compat.cli.common import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines

app = new_app()


@app.callback()
def data() -> None:
    """Write data sets as parquet files."""


@app.command()
def gsm8k(
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for `train.parquet` and `test.parquet`.")] = Path(
        "~/data/gsm8k"
    ),
    as_json: AsJson = False,
) -> None:
    """Write GSM8K in the schema that verl's training reads. Nothing is downloaded."""
    from rl_compat.data.gsm8k import write

    written = write(output.expanduser())
    if as_json:
        print_json({split: {"path": str(path), "num_rows": num_rows} for split, (path, num_rows) in written.items()})
    else:
        print_lines(f"{path}: {num_rows} rows" for path, num_rows in written.values())
