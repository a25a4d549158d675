"""Datasets of a Hugging Face hub: `owner/name`, `owner/name:config`, `owner/name@split`, `owner/name:config@split`."""

from __future__ import annotations

import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from rl_compat.data.read.files import first_line, reading_errors
from rl_compat.data.read.names import Split, pick_split
from rl_compat.errors import DataError

_PATTERN = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<config>[^@]+))?(@(?P<split>.+))?")
LOCAL_HINT = "copy its .parquet or .jsonl files to this machine and name them or their folder"
TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A dataset of the hub as the settings name it."""

    repository: str
    config: str | None = None
    "its default where None"
    split: str | None = None
    "also with a range, such as `train[:1000]`; the training or the test split where None"

    @property
    def is_short(self) -> bool:
        """Whether it is `owner/name` alone, which is also how a path may be written."""
        return self.config is None and self.split is None

    @classmethod
    def parse(cls, name: str) -> HubName | None:
        """None for a name that is not written like one of the hub."""
        found = _PATTERN.fullmatch(name)
        return None if found is None else cls(**found.groupdict())


def load_from_hub(name: HubName, *, split: Split, streaming: bool) -> Any:
    """The `Dataset` of a split, from the cache of `datasets` or the hub; with `streaming` its `IterableDataset`.

    Code in a repository is never run. Raises DataError when the hub does not answer, when it does not have the
    dataset, the configuration or the split, and when access needs a licence or a token.
    """
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    endpoint = datasets.config.HF_ENDPOINT
    _check_reachable(name.repository, endpoint, offline=datasets.config.HF_HUB_OFFLINE)
    try:
        with reading_errors(name.repository):
            found = datasets.load_dataset(name.repository, name.config, split=name.split, streaming=streaming)
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, DatasetNotFoundError):
            hint = "log in with `hf auth login` and accept its licence" if "gated" in str(cause) else LOCAL_HINT
            raise DataError(
                f"`{name.repository}` is not available at {endpoint}: {first_line(cause)}", hint=hint
            ) from cause
        if isinstance(cause, ConnectionError):
            raise _unreachable(name.repository, endpoint, offline=datasets.config.HF_HUB_OFFLINE) from cause
        raise DataError(error.message, hint="write `owner/name:config@split`") from cause
    return found if name.split else found[pick_split(list(found), split, name=name.repository)]


def _check_reachable(repository: str, endpoint: str, *, offline: bool) -> None:
    """Raise DataError at once where no connection is possible, since `datasets` retries for minutes."""
    if offline:
        return
    request = urllib.request.Request(f"{endpoint}/api/datasets/{repository}", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answers
    except OSError as error:
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):
            raise _unreachable(repository, endpoint, offline=False) from error


def _unreachable(repository: str, endpoint: str, *, offline: bool) -> DataError:
    if offline:
        what = f"is not in the cache of `datasets`, and `HF_HUB_OFFLINE` forbids asking {endpoint}"
        way = LOCAL_HINT
    else:
        what = f"is not a local file or folder, and {endpoint} does not answer"
        way = f"set `HF_HUB_OFFLINE=1` to use the copy in the cache of `datasets`, or {LOCAL_HINT}"
    return DataError(f"`{repository}` {what}", hint=f"{way}; `HF_ENDPOINT` names another hub")
