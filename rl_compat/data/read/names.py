"""What a name in `data.train_files` stands for: a path, a pattern, a folder, or a dataset of a Hugging Face hub."""

from __future__ import annotations

import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal

from rl_compat.data.read.files import (
    SHOWN_NAMES,
    SUFFIXES,
    files_inside,
    first_line,
    is_data_file,
    reading_errors,
    suffix_of,
)
from rl_compat.errors import DataError, quoted
from rl_compat.units import counted

Split = Literal["train", "test"]

SPLIT_WORDS: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "test": ("test", "val", "valid", "validation", "eval", "dev"),
}
"names of each split, in file names and on the hub"


def local_files(name: str, *, split: Split, announce: Callable[[str], None]) -> list[Path]:
    """The files of a path, a pattern with `*`, or a folder, in the order of their names; none for another name.

    Raises DataError for a folder or a pattern without data files, or without a file of the split.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path, split=split, announce=announce)
    if has_magic(name) and not path.exists():
        return _matching(str(path), announce=announce)
    return [path] if is_data_file(path) or path.exists() else []


def files_of_split(folder: Path, split: Split) -> list[Path]:
    """The data files in a folder, or in its `data`, whose names contain a word of the split."""
    return [path for path in _data_files(folder) or _data_files(folder / "data") if split_of(path) == split]


def split_of(path: Path) -> Split | None:
    """The split in the name of a file, None where there is none."""
    words = path.name.lower().replace("_", "-").replace(".", "-").split("-")
    return next((split for split, names in SPLIT_WORDS.items() if set(names) & set(words)), None)


def saved_split(folder: Path, split: Split) -> Path | None:
    """The folder of a split that `save_to_disk` wrote, None for any other folder. Raises DataError."""
    if (folder / "state.json").is_file():
        return folder
    if not (folder / "dataset_dict.json").is_file():
        return None
    splits = sorted(item.parent.name for item in folder.glob("*/state.json"))
    return folder / pick_split(splits, split, name=str(folder))


def pick_split(splits: list[str], split: Split, *, name: str) -> str:
    """The split to train on or to hold out, among those that a dataset has. Raises DataError."""
    found = next((word for word in SPLIT_WORDS[split] if word in splits), None)
    if found is None:
        raise DataError(
            f"`{name}` has no split `{split}`: it has {quoted(splits)}",
            hint=f"name one, such as `{name}@{splits[0]}` on the hub or `{name}/{splits[0]}` on disk"
            if splits
            else None,
        )
    return found


def _in_folder(folder: Path, *, split: Split, announce: Callable[[str], None]) -> list[Path]:
    """The data files in a folder, or in its `data`; those of the split where file names contain split words."""
    found = _data_files(folder) or _data_files(folder / "data")
    if not found:
        raise DataError(f"the folder `{folder}` has no data files", hint=files_inside(folder))
    splits = {path: split_of(path) for path in found}
    chosen = [path for path in found if splits[path] == split] if any(splits.values()) else found
    if not chosen:
        raise DataError(
            f"the folder `{folder}` has no file of the split `{split}`",
            hint=f"{files_inside(found[0].parent)}: name the files themselves",
        )
    announce(f"`{folder}` stands for {_listed(chosen)}")
    return chosen


def _data_files(folder: Path) -> list[Path]:
    """Data files by name; text files only where there are no others, since they may be notes about the data."""
    if not folder.is_dir():
        return []
    found = sorted(path for path in folder.iterdir() if path.is_file() and is_data_file(path))
    return [path for path in found if not suffix_of(path).startswith(".txt")] or found


def _matching(pattern: str, *, announce: Callable[[str], None]) -> list[Path]:
    found = sorted(Path(name) for name in glob(pattern, recursive=True))  # noqa: PTH207
    files = [path for path in found if path.is_file() and is_data_file(path)]
    if not files:
        others = f"it matches {len(found)} other files" if found else "it matches nothing"
        raise DataError(f"no data file matches `{pattern}`", hint=f"{others}; data files end in {SUFFIXES}")
    announce(f"`{pattern}` stands for {_listed(files)}")
    return files


def _listed(paths: list[Path]) -> str:
    shown = quoted(path.name for path in paths[:SHOWN_NAMES])
    more = f" and {len(paths) - SHOWN_NAMES} more" if len(paths) > SHOWN_NAMES else ""
    return f"{counted(len(paths), 'file')}: {shown}{more}"


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
