"""Options that several commands share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rl_compat.config.load import LoadedConfig
    from rl_compat.hardware.types import Hardware

Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN.TOML] [KEY=VALUE]...", help="A settings file and settings, later ones win."),
]

HardwareFile = Annotated[
    Path | None,
    typer.Option(
        "--hardware", metavar="FILE", help="Use a recording made by `rlc probe --json` instead of this machine."
    ),
]
AsCard = Annotated[
    str | None,
    typer.Option("--as", metavar="CARD", help='Pretend that the device is another card, such as "Tesla P40".'),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def new_app() -> typer.Typer:
    """A typer app whose help and errors are plain text."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def read_settings(arguments: list[str] | None) -> LoadedConfig:
    """The configuration from the arguments: a .toml file first, if any, then settings. Raises ConfigError."""
    from rl_compat.config.load import load_config

    given = list(arguments or ())
    file = Path(given.pop(0)) if given and given[0].endswith(".toml") and "=" not in given[0] else None
    return load_config(file, given)


def load_hardware(file: Path | None = None, as_card: str | None = None) -> Hardware:
    """This machine or a recorded one, with the facts of another card when `as_card` names one."""
    hardware = _probe() if file is None else _recording(file)
    if as_card is None:
        return hardware
    from rl_compat.hardware.catalogue import emulated_hardware

    return emulated_hardware(as_card, hardware)


def _probe() -> Hardware:
    from rl_compat.hardware.probe import probe

    return probe()


def _recording(file: Path) -> Hardware:
    from rl_compat.hardware.recording import load_recording

    return load_recording(file)
