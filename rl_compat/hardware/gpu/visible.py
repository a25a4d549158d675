"""Which GPUs CUDA_VISIBLE_DEVICES leaves visible, and in which order, by CUDA's rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One GPU in CUDA's unrestricted order, with the UUIDs of its MIG slices."""

    uuid: str | None = None
    slices: tuple[str, ...] = ()
    mig_enabled: bool = False


@dataclass(frozen=True, slots=True)
class Picked:
    """A GPU by position, or one MIG slice of it."""

    position: int
    slice_position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    picked: tuple[Picked, ...]
    warnings: tuple[str, ...] = ()


def select_visible(candidates: Sequence[Candidate], value: str | None) -> Selection:
    """The GPUs that a process with `CUDA_VISIBLE_DEVICES=value` sees, in its order; None is unset.

    Entries are positions, whole UUIDs or unique beginnings of a UUID (`GPU-…` or `MIG-…`). The first entry that
    matches nothing ends the list, and a repeated entry empties it. A process sees at most one MIG slice, and then no
    whole GPU. Source: CUDA programming guide, environment variables, and NVIDIA's MIG user guide.
    """
    if value is None:
        return _apply_mig(candidates, [Picked(position) for position in range(len(candidates))], ())
    picked: list[Picked] = []
    warnings: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        match = resolve_entry(candidates, entry)
        if isinstance(match, str):
            if entry and not re.match(r"-[0-9]", entry):
                warnings.append(f"CUDA_VISIBLE_DEVICES: `{entry}` {match}; it and what follows is ignored")
            break
        if match in picked:
            return Selection(picked=(), warnings=(f"CUDA_VISIBLE_DEVICES names `{entry}` twice: CUDA shows no device",))
        picked.append(match)
    return _apply_mig(candidates, picked, tuple(warnings))


def resolve_entry(candidates: Sequence[Candidate], entry: str) -> Picked | str:
    """The device of one entry of CUDA_VISIBLE_DEVICES, or why the entry is invalid."""
    number = re.match(r"[+-]?[0-9]+", entry)
    if number is not None:
        position = int(number.group())
        return Picked(position) if 0 <= position < len(candidates) else f"is not among the {len(candidates)} GPUs"
    found = [picked for uuid, picked in _named(candidates) if len(entry) > 4 and uuid.lower().startswith(entry.lower())]
    exact = [picked for uuid, picked in _named(candidates) if uuid.lower() == entry.lower()]
    if exact or len(found) == 1:
        return (exact or found)[0]
    return "matches several devices" if found else "matches no device"


def _named(candidates: Sequence[Candidate]) -> list[tuple[str, Picked]]:
    whole = [(gpu.uuid, Picked(position)) for position, gpu in enumerate(candidates) if gpu.uuid]
    parts = [
        (uuid, Picked(position, slice_position))
        for position, gpu in enumerate(candidates)
        for slice_position, uuid in enumerate(gpu.slices)
    ]
    return [*whole, *parts]


def _apply_mig(candidates: Sequence[Candidate], picked: list[Picked], warnings: tuple[str, ...]) -> Selection:
    """Replace GPUs in MIG mode with their first slice; if there is any slice, keep only one."""
    found: list[Picked] = []
    for choice in picked:
        gpu = candidates[choice.position]
        if choice.slice_position is None and gpu.mig_enabled:
            if gpu.slices:
                found.append(Picked(choice.position, 0))
            else:
                warnings += (f"GPU {choice.position} is in MIG mode and has no slice: CUDA cannot use it",)
        else:
            found.append(choice)
    slices = [choice for choice in found if choice.slice_position is not None]
    if slices and len(found) > 1:
        warnings += ("a process sees at most one MIG slice: the other devices are not visible",)
    return Selection(picked=tuple(slices[:1] or found), warnings=warnings)
