"""CUDA_VISIBLE_DEVICES in all its forms."""

from __future__ import annotations

import pytest

from rl_compat.hardware.gpu.cuda_view import select_visible
from rl_compat.hardware.gpu.readings import NvmlDevice, NvmlSlice

A = "GPU-aaaaaaaa-2222-3333-4444-555555555555"
B = "GPU-abbbbbbb-2222-3333-4444-555555555555"


def card(uuid: str, *slices: str, mig_enabled: bool = False) -> NvmlDevice:
    parts = tuple(NvmlSlice(uuid=part) for part in slices)
    return NvmlDevice(index=0, name="A100", uuid=uuid, slices=parts, mig_enabled=mig_enabled or bool(slices))


TWO = [card(A), card(B)]
SLICES = ("MIG-00000000-1111", "MIG-00000001-1111")
MIG = [card(A), card(B, *SLICES)]


def positions(value: str | None) -> list[int]:
    return [picked.position for picked in select_visible(TWO, value).picked]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1]),
        ("", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,7,1", [0]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("1gpu", [1]),
        (B, [1]),
        (f"{B},{A}", [1, 0]),
        ("GPU-ab", [1]),
        ("gpu-ABBB", [1]),
        ("GPU-a", []),
        ("GPU-", []),
        ("GPU-ffff", []),
        (f"{A},nonsense,{B}", [0]),
        ("NoDevFiles", []),
        ("0,0", []),
        (f"0,{A}", []),
    ],
)
def test_entries_pick_devices_as_cuda_does(value: str | None, expected: list[int]) -> None:
    """A-ENV-04: a UUID or its unique beginning picks one device, and nothing is parsed as a number that is none."""
    assert positions(value) == expected


def test_an_ignored_entry_is_said() -> None:
    warning = select_visible(TWO, "0,GPU-a").warnings[0]
    assert "`GPU-a` matches several devices" in warning


def test_hiding_devices_on_purpose_is_no_warning() -> None:
    assert select_visible(TWO, "").warnings == ()
    assert select_visible(TWO, "-1").warnings == ()


def test_a_mig_uuid_picks_its_slice() -> None:
    picked = select_visible(MIG, SLICES[1]).picked
    assert [(choice.position, choice.slice_position) for choice in picked] == [(1, 1)]


def test_a_gpu_in_mig_mode_stands_for_its_first_slice() -> None:
    picked = select_visible(MIG, B).picked
    assert [(choice.position, choice.slice_position) for choice in picked] == [(1, 0)]


def test_a_process_sees_one_slice_and_no_gpu_beside_it() -> None:
    selection = select_visible(MIG, None)
    assert [(choice.position, choice.slice_position) for choice in selection.picked] == [(1, 0)]
    assert "at most one MIG slice" in selection.warnings[0]


def test_a_gpu_in_mig_mode_without_slices_cannot_be_used() -> None:
    selection = select_visible([card(A, mig_enabled=True)], None)
    assert selection.picked == ()
    assert "has no slice" in selection.warnings[0]
