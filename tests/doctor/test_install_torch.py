"""Where the wanted build of torch is found, and what an installed one is worth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rl_compat.doctor.install_torch import find_source, parse_versions, why_unusable
from rl_compat.doctor.wheels import NoTorchBuildError, rank_torch
from rl_compat.hardware.readings import TorchReading
from rl_compat.hardware.smi import Card, Detected
from rl_compat.hardware.types import TorchBuild

PYPI = ["2.15.0", "2.14.1", "2.14.0", "2.13.0", "2.7.1"]
FOLDER = ["2.13.0+cpu", "2.12.0+cpu"]
CPU = rank_torch(None, None, "3.11")
P40 = rank_torch((6, 1), "535.274.02", "3.11")
H100 = rank_torch((9, 0), "580.95.05", "3.12")


def finds(
    configured: list[str], index: dict[str, list[str]] | None = None, asked: list[str | None] | None = None
) -> Callable[[str | None], list[str]]:
    """What pip lists: the configured sources, with an index's versions added when it answers."""

    def list_versions(url: str | None) -> list[str]:
        if asked is not None:
            asked.append(url)
        return configured if url is None else [*configured, *(index or {}).get(url.rpartition("/")[2], [])]

    return list_versions


def test_pytorchs_index_is_used_while_it_answers() -> None:
    arguments, build = find_source(P40, finds(PYPI, {"cu126": ["2.14.1+cu126", "2.14.0+cu126"]}))
    assert arguments == ["--index-url", "https://download.pytorch.org/whl/cu126", "torch==2.14.1+cu126"]
    assert build.variant == "cu126"


def test_without_it_a_cpu_wheel_of_a_configured_folder_is_taken_and_no_cuda_build() -> None:
    arguments, build = find_source(CPU, finds([*PYPI, *FOLDER]))
    assert arguments == ["torch==2.13.0+cpu"]
    assert build.variant == "cpu"


def test_an_index_that_does_not_answer_is_asked_once() -> None:
    asked: list[str | None] = []
    find_source(H100, finds(PYPI, asked=asked))
    assert len(asked) == 2


def test_the_index_is_preferred_only_when_it_has_something_newer() -> None:
    index = {"cpu": ["2.15.0+cpu"]}
    assert find_source(CPU, finds(FOLDER, index))[0][-1] == "torch==2.15.0+cpu"
    assert find_source(CPU, finds([*FOLDER, "2.15.0+cpu"], index))[0] == ["torch==2.15.0+cpu"]


def test_the_package_indexs_build_serves_where_it_is_the_wanted_variant() -> None:
    assert find_source(H100, finds(PYPI))[0] == ["torch==2.15.0"]
    assert find_source(P40, finds(PYPI))[0] == ["torch==2.7.1"]


def test_without_any_cpu_wheel_nothing_of_several_gigabytes_is_pulled() -> None:
    with pytest.raises(NoTorchBuildError, match="RLC_TORCH"):
        find_source(CPU, finds(PYPI))


def test_the_newest_patch_of_a_listed_release_counts() -> None:
    assert find_source(CPU, finds(["2.12.1+cpu", "2.12.0+cpu", "2.16.0+cpu"]))[0] == ["torch==2.12.1+cpu"]


def test_pips_listing_is_read() -> None:
    text = "torch (2.14.1)\nAvailable versions: 2.14.1, 2.13.0+cpu, 2.13.0\n  INSTALLED: 2.13.0+cpu\n"
    assert parse_versions(text) == ["2.14.1", "2.13.0+cpu", "2.13.0"]
    assert parse_versions("ERROR: No matching distribution found for torch") == []


def reading(
    version: str, cuda: str | None = None, archs: tuple[str, ...] = (), available: bool = False
) -> TorchReading:
    return TorchReading(build=TorchBuild(version=version, cuda=cuda, arch_list=archs, cuda_available=available))


ONE_P40 = Detected(cards=(Card(name="Tesla P40", compute_capability=(6, 1)),), driver_version="535.274.02")


def test_a_torch_that_suits_the_machine_is_left_alone() -> None:
    """A-ENV-02."""
    assert why_unusable(reading("2.13.0+cpu"), Detected()) == []
    assert why_unusable(reading("2.14.1+cu126", "12.6", ("sm_60",), available=True), ONE_P40) == []


@pytest.mark.parametrize(
    ("torch", "fault"),
    [
        (reading("2.5.1+cu118", "11.8", ("sm_60",), available=True), "is outside of 2.6 up to but not including 2.16"),
        (reading("2.16.0", "13.4", ("sm_90",), available=True), "is outside of"),
        (reading("2.14.1+cpu"), "is a CPU build and there is a GPU"),
        (reading("2.14.1+cu130", "13.0", ("sm_75",), available=True), "has no code for `Tesla P40`"),
        (reading("2.14.1+cu126", "12.6", ("sm_60",)), "sees no GPU"),
    ],
)
def test_a_torch_that_does_not_suit_is_named_with_its_fault(torch: TorchReading, fault: str) -> None:
    """A-ENV-01, A-ENV-10."""
    assert fault in why_unusable(torch, ONE_P40)[0]
