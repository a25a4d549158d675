"""Arguments and options shared by several commands."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rl_compat import verl
from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.cli.render import print_note, print_table, print_warning
from rl_compat.config.arguments import split_argument
from rl_compat.config.given import embedded_runs
from rl_compat.config.load import LoadedConfig, default_run, load_config
from rl_compat.config.report import COLUMNS, render_report, warnings_of
from rl_compat.config.settings import POOLS, settings
from rl_compat.errors import ConfigError, nearest, quoted
from rl_compat.hardware.cluster import probe_cluster
from rl_compat.hardware.gpu.catalogue import emulated_hardware, other_machine
from rl_compat.hardware.probe import probe
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN.TOML] [KEY=VALUE]...",
        help="A settings file, or the name of a built-in one (sums, gsm8k, gsm8k-cpu, sft-gsm8k), followed by "
        "settings that override it; without a file they change gsm8k. If a setting is given twice, the last value "
        "wins.",
    ),
]

HardwareFile = Annotated[
    Path | None,
    typer.Option("--hardware", metavar="FILE", help="Plan for the machine recorded in FILE by `rlc probe --json`."),
]
AsCard = Annotated[
    str | None, typer.Option("--as", metavar="CARD", help='Emulate another card, for example "RTX 4090" or p40.')
]
Pools = Annotated[
    list[str] | None,
    typer.Option(
        "--pool",
        metavar="NAME=DEVICES:ROLES",
        help="Give roles a pool of devices of their own, for example `score=1:reward,reference` or `score=cpu:reward`; "
        "repeatable.",
    ),
]
RUN_FILE = "run.toml"
"the settings in the folder of a run"
NOT_SETTINGS = {
    (".jsonl", ".json", ".csv", ".parquet", ".arrow", ".gz", ".zst"): "data.train_files",
    (".gguf", ".safetensors"): "model.path",
}
"endings of files other than settings, to the setting for them"


def read_settings(arguments: list[str] | None) -> LoadedConfig:
    """The configuration from at most one settings file and `key=value` pairs; without a file, they change `gsm8k`.

    Reports on stderr how verl's keys were translated and which settings have no effect. Raises ConfigError.
    """
    given = list(arguments or ())
    files = [text for text in given if is_file_argument(text)]
    if len(files) > 1:
        raise ConfigError(
            f"`{files[0]}` and `{files[1]}` are both settings files", hint="give one file, then `key=value`"
        )
    pairs = [text for text in given if text not in files]
    named = {argument.key: argument.value for argument in map(split_argument, pairs)}
    if files:
        file, of_run = _settings_file(files[0])
        loaded = load_config(file, [*of_run, *pairs], dialect=verl)
    else:
        built_in, why = default_run(named, verl)
        loaded = load_config(built_in, pairs, dialect=verl)
        loaded = replace(loaded, notes=(why, *loaded.notes)) if why else loaded
    show_report(loaded)
    return loaded


def pool_settings(pools: list[str] | None) -> list[str]:
    """The settings that `--pool` options stand for. Raises ConfigError for another form."""
    return [setting for text in pools or () for setting in _of_pool(text)]


def _of_pool(text: str) -> list[str]:
    match = re.fullmatch(r"([A-Za-z][\w-]*)=(\d+|cpu):([\w,]+)", text)
    if match is None:
        raise ConfigError(
            f"`--pool {text}` is not of the form `NAME=DEVICES:ROLES`",
            hint="write `--pool score=1:reward,reference`: a name, the number of devices or `cpu`, and the roles",
        )
    name, devices, roles = match.groups()
    device = f"{POOLS}.{name}.device=cpu" if devices == "cpu" else f"{POOLS}.{name}.num_devices={devices}"
    return [device, f"{POOLS}.{name}.roles={roles}"]


def _settings_file(text: str) -> tuple[Path, list[str]]:
    """The settings file that an argument names, and settings that follow from it.

    It is a path, the name of a built-in file, or the folder of a run or of a checkpoint to continue. Raises ConfigError
    for anything else.
    """
    path, built_in = Path(text).expanduser(), embedded_runs()
    for run, resume in ((path, "auto"), (path.parent.parent, path)):
        if path.is_dir() and (run / RUN_FILE).is_file():
            return run / RUN_FILE, [f"trainer.output_dir={run}", f"trainer.resume={resume}"]
    if text in built_in and not path.is_file():
        return built_in[text], []
    if not path.exists():
        runs = [str(file.parent) for file in path.parent.glob(f"*/{RUN_FILE}")]
        known = {name: f"algorithm.name={name}" for name in ALGORITHMS}
        known |= {name: name for name in (*built_in, *runs, *map(str, path.parent.glob("*.toml")))}
        close = nearest(text, known)
        raise ConfigError(
            f"there is no settings file `{text}`",
            hint=f"did you mean `{known[close]}`" if close else f"built-in ones are {quoted(built_in)}",
        )
    if path.is_dir():
        hint = (
            f"use `model.path={text}`"
            if (path / "config.json").is_file()
            else f"the folder of a run has a `{RUN_FILE}`"
        )
        raise ConfigError(f"`{text}` is a folder, not a settings file", hint=hint)
    refuse_other_file(text)
    return path, []


def refuse_other_file(text: str) -> None:
    """Raise ConfigError for the name of a file of data or of a model, where settings are expected."""
    for suffixes, key in NOT_SETTINGS.items():
        if text.endswith(suffixes):
            raise ConfigError(f"`{text}` is not a settings file", hint=f"use `{key}={text}`")


def show_report(loaded: LoadedConfig) -> None:
    """Print notes and warnings on stderr, and a table of all keys if some of them are verl's."""
    for note in loaded.notes:
        print_note(f"note: {note}")
    if any(line.verdict in ("honoured", "translated", "not given") for line in loaded.report):
        print_table("verl keys", COLUMNS, render_report(loaded.report), stream=sys.stderr)
    for sentence in warnings_of(loaded.report):
        print_warning(sentence)


def is_file_argument(text: str) -> bool:
    """Whether an argument is a file, not `key=value`, a key without a value, or a deletion `~key`."""
    return "=" not in text and text not in settings() and not (text.startswith("~") and "/" not in text)


def load_hardware(
    file: Path | None = None,
    as_card: str | None = None,
    host_memory_bytes: int | None = None,
    *,
    address: str | None = None,
) -> Hardware:
    """This machine or the one recorded in `file`, emulating `as_card` if given; with the nodes of a Ray cluster.

    With `host_memory_bytes` it is another machine, with that much host memory and a real card of that name.
    """
    if file is None and address is not None:
        return _emulating(as_card, probe_cluster(address))
    hardware = probe(packages=False) if file is None else load_recording(file)
    if host_memory_bytes is not None:
        host = replace(
            hardware.host,
            ram_total_bytes=host_memory_bytes,
            ram_limit_bytes=host_memory_bytes,
            ram_available_bytes=host_memory_bytes,
        )
        hardware = replace(hardware, host=host)
        return hardware if as_card is None else other_machine(as_card, hardware)
    return _emulating(as_card, hardware)


def _emulating(card: str | None, hardware: Hardware) -> Hardware:
    """The machine, and the nodes of its cluster, with another card."""
    if card is None:
        return hardware
    nodes = tuple(
        replace(node, hardware=emulated_hardware(card, node.hardware)) for node in hardware.nodes if node.hardware
    )
    return replace(emulated_hardware(card, hardware), nodes=nodes)
