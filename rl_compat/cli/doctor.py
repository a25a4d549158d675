"""`rlc doctor`: find problems of this machine and their fixes. The doctor parses its own arguments."""

from __future__ import annotations

import typer

from rl_compat.cli.options import new_app

app = new_app()


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(context: typer.Context) -> int:
    """Find out what prevents training on this machine, why it matters, and how to fix it."""
    from rl_compat.doctor.command import main

    return main(context.args, program=context.info_name or "rlc doctor")
