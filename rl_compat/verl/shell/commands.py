"""The output of harmless commands in `$(…)`: paths, dates, texts. No process is started."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePosixPath


def _basename(words: Sequence[str]) -> str:
    names = [word for word in words if word != "--"]
    name = PurePosixPath(names[0]).name
    return name.removesuffix(names[1]) if len(names) > 1 and name != names[1] else name


def _dirname(words: Sequence[str]) -> str:
    return str(PurePosixPath(next(word for word in words if word != "--")).parent)


def _date(words: Sequence[str]) -> str:
    form = next((word[1:] for word in words if word.startswith("+")), "%a %b %e %H:%M:%S %Z %Y")
    return time.strftime(form)


def _echo(words: Sequence[str]) -> str:
    rest = list(words)
    while rest and re.fullmatch("-[neE]+", rest[0]):
        rest.pop(0)
    return " ".join(rest)


def _printf(words: Sequence[str]) -> str:
    form, *values = words
    return re.sub("%[sd]", lambda match: values.pop(0) if values else "", form).replace("\\n", "\n")


OUTPUT: Mapping[str, Callable[[Sequence[str]], str]] = {
    "echo": _echo,
    "printf": _printf,
    "basename": _basename,
    "dirname": _dirname,
    "date": _date,
}
"command to its output for its arguments"


def status_of(words: Sequence[str]) -> bool | None:
    """Whether a command would succeed, for commands that this process can evaluate; None for any other."""
    match list(words):
        case ["true" | ":", *_]:
            return True
        case ["false", *_]:
            return False
        case ["command", "-v", name] | ["which", name] | ["type", name] | ["hash", name]:
            return shutil.which(name) is not None
        case [python, "-c", code] if re.fullmatch(r"(.*/)?python[\d.]*", python):
            wanted = re.fullmatch(r"\s*import (\w+)\s*;?\s*", code)
            return find_spec(wanted[1]) is not None if wanted else None
    return None
