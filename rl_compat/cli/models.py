"""`rlc models`: the models with a short name, and where they are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_table
from rl_compat.models.files.registry import BUILTIN, PACKAGED, BuiltinModel, ModelSource, PackagedModel, resolve_model
from rl_compat.units import format_bytes

app = new_app()

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `rlc models`, a GGUF file or a hub id (owner/name).")
]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that have a short name, download one, or print its folder.

    Example: rlc models get smollm2-135m
    """
    if context.invoked_subcommand is not None:
        return
    known = _known()
    if as_json:
        print_json(known)
        return
    where = [("built in" if m["download_bytes"] is None else "cached" if m["folder"] else "no") for m in known]
    rows = [
        (m["name"], m["description"], f"{m['num_parameters'] / 1e6:.1f} M", _size(m), m["licence"], here)
        for m, here in zip(known, where, strict=True)
    ]
    print_table("", ("name", "model", "parameters", "size", "licence", "here"), rows)
    print_lines(f"{m['name']}: {m['note']}" for m in known if m["note"])


@app.command()
def get(name: Name, as_json: AsJson = False) -> None:
    """Download a model and convert it to safetensors.

    A model that is already in the cache is not downloaded again.

    Example: rlc models get smollm2-135m
    """
    source = resolve_model(name)
    if as_json:
        print_json(_found(source))
        return
    for note in source.notes:
        print_note(f"{source.name}: {note}")
    print_lines([f"{source.name}: {source.folder} ({format_bytes(_folder_bytes(source.folder))})"])


@app.command()
def path(name: Name, as_json: AsJson = False) -> None:
    """Print the folder of a downloaded model.

    Example: rlc models path smollm2-135m
    """
    source = resolve_model(name, download=False)
    if as_json:
        print_json(_found(source))
    else:
        print_lines([str(source.folder)])


def _known() -> list[dict[str, Any]]:
    known: list[tuple[BuiltinModel | PackagedModel, int | None, str]] = [(model, None, "") for model in BUILTIN]
    known += [(model, model.wheel_bytes, model.note) for model in PACKAGED]
    return [
        {
            "name": model.name,
            "description": model.description,
            "num_parameters": model.num_parameters,
            "licence": model.licence,
            "download_bytes": download_bytes,
            "bytes": _folder_bytes(model.folder) if model.folder.is_dir() else None,
            "folder": str(model.folder) if model.folder.is_dir() else None,
            "note": note,
        }
        for model, download_bytes, note in known
    ]


def _size(model: dict[str, Any]) -> str:
    if model["bytes"] is not None:
        return format_bytes(model["bytes"])
    return f"{format_bytes(model['download_bytes'])} to download"


def _found(source: ModelSource) -> dict[str, Any]:
    return {
        "name": source.name,
        "kind": source.kind,
        "folder": str(source.folder),
        "bytes": _folder_bytes(source.folder),
        "notes": list(source.notes),
    }


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
