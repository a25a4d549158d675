"""What a name in `data.train_files` stands for: files by path, pattern or folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from glob import glob, has_magic
from pathlib import Path
from typing import Literal

from rl_compat.data.read.files import SHOWN_NAMES, SUFFIXES, files_inside, suffix_of
from rl_compat.errors import DataError, nearest

Split = Literal["train", "test"]

SPLIT_WORDS: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "test": ("test", "val", "valid", "validation", "eval", "dev"),
}
"what the files of a split are called in a folder that holds several"


def locate(name: str, *, split: Split, builtins: Collection[str], announce: Callable[[str], None]) -> list[Path]:
    """The files of a path, a pattern with `*`, or a folder, in the order of their names. Raises DataError."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path, split=split, announce=announce)
    if has_magic(name) and not path.exists():
        return _matching(str(path), announce=announce)
    if suffix_of(path) not in SUFFIXES and not path.exists():
        raise _unknown(name, builtins)
    return [path]


def _in_folder(folder: Path, *, split: Split, announce: Callable[[str], None]) -> list[Path]:
    """The data files in a folder, or in its `data`; of the split where file names tell splits apart."""
    found = _data_files(folder) or _data_files(folder / "data")
    if not found:
        raise DataError(f"the folder `{folder}` holds no data files", hint=files_inside(folder))
    splits = {path: split_of(path) for path in found}
    chosen = [path for path in found if splits[path] == split] if any(splits.values()) else found
    if not chosen:
        raise DataError(
            f"the folder `{folder}` has no file of the split `{split}`",
            hint=f"{files_inside(found[0].parent)}: name the files themselves",
        )
    announce(f"`{folder}` stands for {_listed(chosen)}")
    return chosen


def files_of_split(folder: Path, split: Split) -> list[Path]:
    """The data files in a folder, or in its `data`, whose names say that they are of the split."""
    return [path for path in _data_files(folder) or _data_files(folder / "data") if split_of(path) == split]


def _data_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and suffix_of(path) in SUFFIXES)


def split_of(path: Path) -> Split | None:
    """The split that a file's name says, None when it says nothing."""
    words = path.name.lower().replace("_", "-").replace(".", "-").split("-")
    return next((split for split, names in SPLIT_WORDS.items() if set(names) & set(words)), None)


def _matching(pattern: str, *, announce: Callable[[str], None]) -> list[Path]:
    found = sorted(Path(name) for name in glob(pattern, recursive=True))  # noqa: PTH207
    files = [path for path in found if path.is_file() and suffix_of(path) in SUFFIXES]
    if not files:
        others = f"it matches {len(found)} other files" if found else "it matches nothing"
        raise DataError(
            f"no data file is named like `{pattern}`", hint=f"{others}; data files end in {', '.join(SUFFIXES)}"
        )
    announce(f"`{pattern}` stands for {_listed(files)}")
    return files


def _listed(paths: list[Path]) -> str:
    shown = ", ".join(f"`{path.name}`" for path in paths[:SHOWN_NAMES])
    more = f" and {len(paths) - SHOWN_NAMES} more" if len(paths) > SHOWN_NAMES else ""
    return f"{len(paths)} {'file' if len(paths) == 1 else 'files'}: {shown}{more}"


def _unknown(name: str, builtins: Collection[str]) -> DataError:
    close = nearest(name, builtins)
    known = " or ".join(f"`{builtin}`" for builtin in builtins)
    hint = f"did you mean `{close}`" if close else f"use {known}, or a path of {', '.join(SUFFIXES)}"
    return DataError(f"there is no dataset or file `{name}`", hint=hint)
