"""Variables that affect CUDA, installers and caches, without their secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rl_compat.hardware.gpu.catalogue import read_table


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The relevant variables, by name."""
    listed = read_table("probe")
    found = {name: environment[name] for name in listed["variables"] if name in environment}
    found |= {name: without_credentials(environment[name]) for name in listed["addresses"] if name in environment}
    return found | {name: "(set)" for name in listed["secrets"] if environment.get(name)}


def without_credentials(text: str) -> str:
    """The text with user name, password, query and fragment removed from its URLs."""
    text = re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s]*@", r"\1", text)
    text = re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)
    return re.sub(r"(^|\s)[^/\s@]+:[^/\s]*@(?=\S)", r"\1", text)
