"""Which compiled GPU code runs on which card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7)})
"integrated devices that run only code built for themselves, before CUDA 13.2"

Version = tuple[int, ...]


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version:
    """The leading numbers of `13.2`, `580.65.06` or `2.14.1+cu126` as a tuple that compares in order."""
    match = re.match(r"\s*([0-9]+(?:\.[0-9]+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


@lru_cache(maxsize=4096)
def parse_arch(text: str) -> tuple[str, tuple[int, int]] | None:
    """`sm_86` as `sm`, (8, 6); `compute_90a` as `computea`, (9, 0); None for anything else."""
    match = re.fullmatch(r"(sm|compute)_([0-9]+)([0-9])([af]?)", text.strip())
    return None if match is None else (match.group(1) + match.group(4), (int(match.group(2)), int(match.group(3))))


def wheel_supports(arch_list: Iterable[str], capability: tuple[int, int], *, cuda: str | None = None) -> bool:
    """Whether code compiled for `arch_list` runs on a card of that compute capability.

    Machine code for X.y (`sm_XY`) runs on X.z with z >= y; PTX for X.y (`compute_XY`) runs on that capability and
    every later one. With the suffix `a` both run on that capability alone, with `f` within its major version.
    Tegra devices (5.3, 6.2, 7.2, 8.7) run machine code for other devices only from CUDA 13.2. Source: CUDA's binary
    compatibility rules, as applied by `torch/cuda/__init__.py` of torch 2.14.
    """
    return any(_runs(arch, capability, cuda) for arch in arch_list)


def needs_ptx(arch_list: Iterable[str], capability: tuple[int, int], *, cuda: str | None = None) -> bool:
    """Whether the card must compile PTX, which fails if the driver is older than the toolkit."""
    machine_code = [arch for arch in arch_list if arch.startswith("sm_")]
    return not wheel_supports(machine_code, capability, cuda=cuda)


def _runs(arch: str, capability: tuple[int, int], cuda: str | None) -> bool:
    parsed = parse_arch(arch)
    if parsed is None:
        return False
    kind, built_for = parsed
    if kind.endswith("a"):
        return built_for == capability
    if kind == "compute":
        return built_for <= capability
    if capability in TEGRA and parse_version(cuda or "0") < (13, 2):
        return built_for == capability
    return built_for[0] == capability[0] and built_for[1] <= capability[1]
