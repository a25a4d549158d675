"""What tests of scripts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rl_compat.verl.shell.script import ReadScript


@pytest.fixture(scope="session")
def read_words() -> Callable[[str, Sequence[str]], list[str]]:
    """The words that a script gives to its last command, the command's name left out."""

    def read(text: str, arguments: Sequence[str]) -> list[str]:
        script = ReadScript(name="s", arguments=arguments, environment={}, folder=Path())
        script.run(text)
        return list(script.started[-1].words[1:])

    return read
