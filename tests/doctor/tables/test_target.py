"""The build of torch for a card, a driver and a Python."""

from __future__ import annotations

import pytest

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.tables.target import NoTorchBuildError, Target, TorchInstall
from rl_compat.doctor.tables.torch import cuda_of
from rl_compat.hardware.gpu.catalogue import read_table

Capability = tuple[int, int]
DRIVERS = ("390.157", "450.80.02", "470.86", "525.60.13", "535.274.02", "550.54", "570.26", "580.65.06", "595.58", None)


def target(
    *cards: Capability, driver: str | None, python: str = "3.12", machine: str = "x86_64", libc: str | None = None
) -> Target:
    return Target(cards=cards, driver=driver, python=python, machine=machine, libc=libc)


def choose(*cards: Capability, driver: str | None, python: str = "3.12", machine: str = "x86_64") -> TorchInstall:
    """The best build for those cards."""
    return target(*cards, driver=driver, python=python, machine=machine).builds()[0]


@pytest.mark.parametrize(
    ("cards", "driver", "python", "requirement"),
    [
        (((6, 1),), "535.274.02", "3.12", "torch==2.14.1+cu126"),
        (((6, 1),), "580.95.05", "3.14", "torch==2.14.1+cu126"),
        (((6, 0),), "525.60.13", "3.11", "torch==2.14.1+cu126"),
        (((7, 0),), "550.163.01", "3.12", "torch==2.14.1+cu126"),
        (((6, 1),), "470.86", "3.12", "torch==2.7.1+cu118"),
        (((7, 5),), "580.95.05", "3.12", "torch==2.15.0+cu132"),
        (((7, 5),), "550.163.01", "3.12", "torch==2.14.1+cu126"),
        (((9, 0),), "580.159.04", "3.11", "torch==2.15.0+cu132"),
        (((9, 0),), "580.159.04", "3.10", "torch==2.14.1+cu130"),
        (((12, 0),), "570.26", "3.12", "torch==2.11.0+cu128"),
        (((12, 0),), "595.58.03", "3.15", "torch==2.15.0+cu132"),
        ((), None, "3.13", "torch==2.15.0+cpu"),
        ((), "580.95.05", "3.10", "torch==2.14.1+cpu"),
    ],
)
def test_the_capability_decides_before_the_driver(
    cards: tuple[Capability, ...], driver: str | None, python: str, requirement: str
) -> None:
    """A-ENV-01, A-ENV-09: a new driver does not take a P40 to CUDA 13, an old one leaves no card without torch."""
    assert choose(*cards, driver=driver, python=python).requirement == requirement


@pytest.mark.parametrize(
    ("cards", "libc", "machine", "requirement"),
    [
        (((8, 6),), "glibc 2.28", "x86_64", "torch==2.15.0+cu132"),
        (((8, 6),), "glibc 2.17", "x86_64", "torch==2.6.0+cu124"),
        ((), "glibc 2.27", "x86_64", "torch==2.6.0+cpu"),
        ((), "glibc 2.17", "aarch64", None),
        (((12, 0),), "glibc 2.17", "x86_64", None),
        (((8, 6),), "glibc 2.12", "x86_64", None),
        (((8, 6),), "musl", "x86_64", None),
    ],
)
def test_no_wheel_is_offered_that_pip_would_not_take_on_this_c_library(
    cards: tuple[Capability, ...], libc: str, machine: str, requirement: str | None
) -> None:
    """Of 2.6 alone there are wheels for glibc 2.17, and its CUDA 12.6 build is not among them."""
    wanted = target(*cards, driver="580.95.05", machine=machine, libc=libc)
    if requirement is None:
        with pytest.raises(NoTorchBuildError, match=libc) as caught:
            wanted.builds()
        assert caught.value.obstacle == "system"
    else:
        assert wanted.builds()[0].requirement == requirement


def test_every_listed_build_that_fits_is_offered_newest_first() -> None:
    builds = target((6, 1), driver="580.95.05").builds()
    versions = [parse_version(build.version) for build in builds]
    assert versions == sorted(versions, reverse=True)
    assert {build.variant for build in builds} == {"cu126", "cu124", "cu118"}


def test_pascal_never_gets_a_build_of_cuda_13() -> None:
    for driver in DRIVERS[3:]:
        assert {cuda_of(build.variant).split(".")[0] for build in target((6, 1), driver=driver).builds()} <= {
            "11",
            "12",
        }


@pytest.mark.parametrize(
    ("cards", "driver", "python", "machine", "obstacle", "needed"),
    [
        (((3, 7),), "470.86", "3.11", "x86_64", "card", None),
        (((8, 6),), "390.157", "3.11", "x86_64", "driver", "450.80.02"),
        (((12, 0),), "470.86", "3.12", "x86_64", "driver", "525.60.13"),
        (((6, 1),), "470.86", "3.14", "x86_64", "driver", "525.60.13"),
        (((6, 1),), "580.95", "3.15", "x86_64", "python", None),
        (((9, 0),), "580.95", "3.16", "x86_64", "python", None),
        ((), None, "3.8", "x86_64", "python", None),
        ((), None, "3.12", "riscv64", "machine", None),
        (((9, 0),), "580.95", "3.12", "i686", "machine", None),
    ],
)
def test_a_refusal_says_what_stands_in_the_way(
    cards: tuple[Capability, ...], driver: str | None, python: str, machine: str, obstacle: str, needed: str | None
) -> None:
    with pytest.raises(NoTorchBuildError) as caught:
        choose(*cards, driver=driver, python=python, machine=machine)
    assert (caught.value.obstacle, caught.value.needed_driver) == (obstacle, needed)


@pytest.mark.parametrize(
    ("cards", "driver", "pythons"),
    [
        (((6, 1),), "580.95", ("3.11", "3.12", "3.13", "3.14")),
        (((9, 0),), "580.95", ("3.11", "3.12", "3.13", "3.14", "3.15")),
        (((6, 1),), "470.86", ("3.11", "3.12", "3.13")),
        (((3, 7),), "470.86", ()),
    ],
)
def test_the_pythons_that_get_the_newest_build_are_known(
    cards: tuple[Capability, ...], driver: str, pythons: tuple[str, ...]
) -> None:
    assert target(*cards, driver=driver).pythons() == pythons


def test_an_uncertain_architecture_does_not_count_as_listed() -> None:
    with pytest.raises(NoTorchBuildError):
        choose((3, 7), driver="520.61.05", python="3.11")


def test_mixed_cards_get_a_build_that_serves_all() -> None:
    build = choose((8, 0), (6, 1), driver="580.95.05")
    assert build.requirement == "torch==2.14.1+cu126"
    assert "6.1" in build.reason
    assert choose((7, 0), (12, 0), driver="580.95.05").requirement == "torch==2.10.0+cu128"


def test_where_no_build_serves_all_the_weakest_that_can_be_served_decides() -> None:
    with_kepler = choose((3, 7), (8, 0), driver="580.95.05")
    assert with_kepler.requirement == "torch==2.15.0+cu132"
    assert with_kepler.left_out == ((3, 7),)
    pascal_and_blackwell = choose((12, 0), (6, 1), driver="580.95.05")
    assert pascal_and_blackwell.requirement == "torch==2.14.1+cu126"
    assert pascal_and_blackwell.left_out == ((12, 0),)
    assert "12.0" in pascal_and_blackwell.reason


def test_arm_servers_have_builds_of_their_own() -> None:
    assert choose((9, 0), driver="580.95.05", machine="aarch64").requirement == "torch==2.15.0+cu132"
    assert choose((9, 0), driver="560.28.03", machine="aarch64").requirement == "torch==2.14.1+cu126"
    with pytest.raises(NoTorchBuildError, match="aarch64"):
        choose((7, 0), driver="580.95.05", machine="aarch64")


def test_a_card_newer_than_the_tables_needs_a_driver_that_compiles_ptx() -> None:
    assert choose((13, 0), driver="595.58.03").requirement == "torch==2.14.1+cu132"
    assert choose((13, 0), driver="580.65.06").requirement == "torch==2.10.0+cu130"


def test_the_package_indexs_own_build_is_known() -> None:
    assert choose((9, 0), driver="580.95.05").on_pypi
    assert not choose((6, 1), driver="580.95.05").on_pypi


def test_pip_gets_the_index_and_the_exact_build() -> None:
    build = choose((6, 1), driver="535.274.02")
    assert (build.index_url, build.requirement) == ("https://download.pytorch.org/whl/cu126", "torch==2.14.1+cu126")


def test_every_newest_release_is_of_its_own_row() -> None:
    for row in read_table("torch")["releases"]:
        assert row["newest"].startswith(f"{row['torch']}.")
