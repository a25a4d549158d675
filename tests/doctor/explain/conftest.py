"""What the tests of explaining share: a log as text, recognised and ranked."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_compat.doctor.explain.matching import LogErrors, find_errors
from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.explain.ranking import Cause, rank
from rl_compat.doctor.explain.reading import read_blocks

Recognise = Callable[[str | bytes], LogErrors]
Ranked = Callable[[str | bytes], tuple[Cause, ...]]


def recognise_text(text: str | bytes) -> LogErrors:
    data = text.encode() if isinstance(text, str) else text
    return find_errors(read_blocks(io.BytesIO(data), "the text"), known_errors())


@pytest.fixture
def recognise() -> Recognise:
    return recognise_text


@pytest.fixture
def ranked() -> Ranked:
    return lambda text: rank(recognise_text(text).matches)


@pytest.fixture(scope="session")
def logs() -> Path:
    return Path(__file__).with_name("logs")


@pytest.fixture(scope="session")
def messages() -> dict[str, str]:
    """A message for each error of the knowledge base that the table began with, by id."""
    kept: dict[str, str] = json.loads(Path(__file__).with_name("messages.json").read_text(encoding="utf-8"))
    return kept
