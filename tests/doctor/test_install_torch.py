"""Where the wanted build of torch is found, and what an installed one is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.install_torch import find_source, not_fixed_by_torch, parse_versions, why_unusable
from rl_compat.doctor.tables.target import NoTorchBuildError, Target
from rl_compat.hardware.types import Hardware, TorchBuild

PYPI = ["2.15.0", "2.14.1", "2.14.0", "2.13.0", "2.7.1"]
FOLDER = ["2.13.0+cpu", "2.12.0+cpu"]
CPU = Target(cards=(), driver=None, python="3.11").builds()
P40 = Target(cards=((6, 1),), driver="535.274.02", python="3.11").builds()
H100 = Target(cards=((9, 0),), driver="580.95.05", python="3.12").builds()


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


def p40(torch: TorchBuild | None, *, error: str | None = None) -> Hardware:
    """A machine with one P40 and that torch."""
    base = recorded("p40")
    return replace(base, software=replace(base.software, torch=torch, torch_error=error, packages={}))


def build(version: str, cuda: str | None = None, archs: tuple[str, ...] = (), available: bool = False) -> TorchBuild:
    return TorchBuild(version=version, cuda=cuda, arch_list=archs, cuda_available=available)


def test_a_card_newer_than_the_tables_gets_a_build_whose_code_the_driver_compiles() -> None:
    newest = Target(cards=((13, 0),), driver="640.10", python="3.12")
    listed = Target(cards=((12, 0),), driver="640.10", python="3.12")

    assert "PTX" in newest.builds()[0].reason
    assert "PTX" not in listed.builds()[0].reason
    assert replace(newest, driver="580.95.05").builds()[0].variant == "cu130"  # it compiles no code of CUDA 13.2


def test_a_torch_that_suits_the_machine_is_left_alone() -> None:
    """A-ENV-02."""
    assert why_unusable(recorded("laptop_no_gpu")) == []
    assert why_unusable(p40(build("2.14.1+cu126", "12.6", ("sm_60",), available=True))) == []


@pytest.mark.parametrize(
    ("torch", "values"),
    [
        (build("2.5.1+cu118", "11.8", ("sm_60",), available=True), ("2.5.1+cu118", "2.6")),
        (build("2.16.0", "13.4", ("sm_90",), available=True), ("2.16.0", "2.16")),
        (build("2.14.1+cpu"), ("2.14.1+cpu", "`Tesla P40`")),
        (build("2.14.1+cu130", "13.0", ("sm_75",), available=True), ("2.14.1+cu130", "Tesla P40")),
    ],
)
def test_a_torch_that_does_not_suit_is_named_with_its_fault(torch: TorchBuild, values: tuple[str, ...]) -> None:
    """A-ENV-01, A-ENV-10."""
    assert not missing(why_unusable(p40(torch))[0], *values)


def test_a_driver_that_is_too_old_for_the_torch_is_a_reason_to_install_another() -> None:
    """A-ENV-09."""
    assert "driver 470.86" in why_unusable(recorded("rtx3090_old_driver"))[0]


def test_a_torch_that_does_not_import_cannot_stay() -> None:
    assert why_unusable(p40(None, error="killed by signal 11 (SIGSEGV)")) == ["killed by signal 11 (SIGSEGV)"]
    assert why_unusable(p40(None)) == []


def test_what_no_other_torch_would_mend_is_said_and_torch_is_left_alone() -> None:
    silent = replace(build("2.14.1+cu126", "12.6", ("sm_60",)), cuda_error="Error 802: system not yet initialized")

    assert why_unusable(p40(silent)) == []
    assert [finding.id for finding in not_fixed_by_torch(p40(silent))] == ["torch_driver.fabric_manager"]
