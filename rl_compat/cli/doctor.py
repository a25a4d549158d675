"""`rlc doctor`: what is wrong with this machine, and what mends it. The arguments are the doctor's own."""

from __future__ import annotations

import typer

from rl_compat.cli.common import new_app

app = new_app()


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(context: typer.Context) -> int:
    """Say what is wrong with this machine for training, why it matters, and what mends it."""
    from rl_compat.doctor.command import main

    return main(context.args, program=context.info_name or "rlc doctor")
