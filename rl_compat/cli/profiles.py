"""`rlc profiles`: the known hardware families, and the preferences for each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_table
from rl_compat.planning.profile import Profile, find_profile, load_profiles
from rl_compat.units import format_bytes

app = new_app()


@app.callback(invoke_without_command=True)
def profiles(context: typer.Context, as_json: AsJson = False) -> None:
    """List the profiles, oldest hardware first.

    Example: rlc profiles show pascal
    """
    if context.invoked_subcommand is not None:
        return

    known = load_profiles()
    if as_json:
        print_json([as_dictionary(profile) for profile in known])
        return
    rows = [
        (profile.name, profile.summary, *(profile.prefer[it].order[0] for it in ("compute_dtype", "rollout_engine")))
        for profile in known
    ]
    print_table("profiles", ("name", "for", "training", "rollout"), rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A profile's name.")], as_json: AsJson = False
) -> None:
    """Show one profile: its conditions, preferences and limits.

    Example: rlc profiles show pascal
    """
    profile = find_profile(name)
    if as_json:
        print_json(as_dictionary(profile))
        return
    print_lines([f"{profile.name}: {profile.summary}", ""])
    rows = [(concern, ", ".join(item.order), item.because) for concern, item in profile.prefer.items()]
    print_table("preferences, first that works", ("concern", "order", "why"), rows)
    print_lines([""])
    limits = asdict(profile.limits).items()
    values = [(key, format_bytes(value) if key.endswith("_bytes") else str(value)) for key, value in limits]
    print_table("limits", ("limit", "value"), values)


def as_dictionary(profile: Profile) -> dict[str, Any]:
    """The profile as JSON values, with capabilities such as `6.1`."""
    values = asdict(profile)
    for key in ("min_capability", "max_capability"):
        pair = values["match"][key]
        values["match"][key] = None if pair is None else f"{pair[0]}.{pair[1]}"
    return values
