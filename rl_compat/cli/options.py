"""What every command shares of typer: its app and the option for JSON, without the imports of a run."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def new_app() -> typer.Typer:
    """A typer app with plain-text help and errors."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
