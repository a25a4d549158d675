"""Data files from a Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from rl_compat.errors import DataError

PATTERNS = ("*.parquet", "*.jsonl", "*.json", "*/*.parquet", "*/*.jsonl", "*/*.json")
LOCAL_FILE_HINT = "copy its .parquet or .jsonl files to this machine and name them or their folder"


def download_dataset(repository: str) -> Path:
    """The data files of a hub's dataset repository, from the hub's cache or `HF_ENDPOINT`.

    Raises DataError when the hub does not answer, does not have it, or does not let this user have it.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    endpoint = constants.ENDPOINT
    try:
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=list(PATTERNS)))
    except GatedRepoError as error:
        raise DataError(
            f"`{repository}` at {endpoint} asks for its licence to be accepted",
            hint="accept it on the page of the dataset and log in with `hf auth login`",
        ) from error
    except RepositoryNotFoundError as error:
        raise DataError(f"there is no dataset `{repository}` at {endpoint}", hint=LOCAL_FILE_HINT) from error
    except (HFValidationError, OSError) as error:
        offline = f"is not in the hub's cache, and `HF_HUB_OFFLINE` forbids asking {endpoint}"
        why = offline if constants.HF_HUB_OFFLINE else f"could not be downloaded from {endpoint}"
        raise DataError(f"`{repository}` {why}", hint=f"{LOCAL_FILE_HINT}; `HF_ENDPOINT` names another hub") from error
