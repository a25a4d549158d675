"""Check that a model folder is complete without loading its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from rl_compat.errors import ModelError

Part = Literal["config", "tokenizer", "weights"]
ALL_PARTS: tuple[Part, ...] = ("config", "tokenizer", "weights")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_model_folder(folder: Path, *, needs: tuple[Part, ...] = ALL_PARTS) -> None:
    """Raise ModelError for the first missing or damaged part of the folder."""
    if "config" in needs:
        _check_config(folder)
    if "tokenizer" in needs and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"`{folder}` has no tokenizer files",
            hint="save the tokenizer there (`tokenizer.json` and `tokenizer_config.json`), or set `model.tokenizer`",
        )
    if "weights" in needs:
        _check_weights(folder)


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    if path.is_file():
        if "model_type" not in read_json(path):
            raise ModelError(f"`{path}` has no `model_type`", hint="give the folder of a transformers model")
        return
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"`{folder}` has no config.json: it is a LoRA adapter",
            hint="merge the adapter into its base model and give the folder of the result",
        )
    raise ModelError(
        f"`{folder}` has no config.json", hint="give a folder written by `save_pretrained` or `rlc export`"
    )


def _check_weights(folder: Path) -> None:
    index = folder / INDEX
    if index.is_file():
        shards = sorted(set(read_json(index).get("weight_map", {}).values()))
        missing = [name for name in shards if not (folder / name).is_file()]
        if missing or not shards:
            first = f", `{missing[0]}` first" if missing else ""
            raise ModelError(
                f"`{folder}` lacks {len(missing)} of the {len(shards)} weight files in {INDEX}{first}",
                hint="copy or download the folder again",
            )
        for name in shards:
            _check_safetensors(folder / name)
    elif (folder / WEIGHTS).is_file():
        _check_safetensors(folder / WEIGHTS)
    elif pickles := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        raise ModelError(
            f"`{folder}` has its weights only as pickles (`{pickles[0]}`), which can run code when loaded",
            hint="if you trust the model, load it with transformers and write safetensors with `save_pretrained`",
        )
    else:
        raise ModelError(f"`{folder}` has no weights", hint=f"expected {WEIGHTS}, or {INDEX} with its files")


def _check_safetensors(path: Path) -> None:
    """Compare the file size with the header, to find an incomplete file before it is loaded."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise ModelError(f"`{path}` is a Git LFS pointer, not the weights", hint="run `git lfs pull` in its folder")
        header_bytes = int.from_bytes(start, "little")
        if len(start) < 8 or header_bytes > size - 8:
            raise ModelError(f"`{path}` is not a complete safetensors file", hint="copy or download it again")
        header = json.loads(file.read(header_bytes))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + header_bytes + max(ends, default=0)
    if size != expected:
        raise ModelError(f"`{path}` has {size} bytes and its header says {expected}", hint="copy or download it again")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError if the file holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read `{path}` as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"`{path}` holds a JSON {type(value).__name__}, expected an object")
    return value
