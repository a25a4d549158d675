"""The build of torch for a card, a driver and a Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_compat.capability.binaries import parse_version
from rl_compat.doctor.tables.target import main
from rl_compat.doctor.tables.torch import (
    cuda_of,
)
from rl_compat.doctor.tables.wheels import (
    NoTorchBuildError,
    choose_torch,
    pip_arguments,
    rank_torch,
    serving_pythons,
)
from rl_compat.hardware.gpu.catalogue import read_table

ROOT = Path(__file__).parents[3]
DRIVERS = ("390.157", "450.80.02", "470.86", "525.60.13", "535.274.02", "550.54", "570.26", "580.65.06", "595.58", None)


@pytest.mark.parametrize(
    ("capability", "driver", "python", "requirement"),
    [
        ((6, 1), "535.274.02", "3.12", "torch==2.14.1+cu126"),
        ((6, 1), "580.95.05", "3.14", "torch==2.14.1+cu126"),
        ((6, 0), "525.60.13", "3.11", "torch==2.14.1+cu126"),
        ((7, 0), "550.163.01", "3.12", "torch==2.14.1+cu126"),
        ((6, 1), "470.86", "3.12", "torch==2.7.1+cu118"),
        ((7, 5), "580.95.05", "3.12", "torch==2.15.0+cu132"),
        ((7, 5), "550.163.01", "3.12", "torch==2.14.1+cu126"),
        ((9, 0), "580.159.04", "3.11", "torch==2.15.0+cu132"),
        ((9, 0), "580.159.04", "3.10", "torch==2.14.1+cu130"),
        ((12, 0), "570.26", "3.12", "torch==2.11.0+cu128"),
        ((12, 0), "595.58.03", "3.15", "torch==2.15.0+cu132"),
        (None, None, "3.13", "torch==2.15.0+cpu"),
        ([], "580.95.05", "3.10", "torch==2.14.1+cpu"),
    ],
)
def test_the_capability_decides_before_the_driver(
    capability: tuple[int, int] | None, driver: str | None, python: str, requirement: str
) -> None:
    """A-ENV-01, A-ENV-09: a new driver does not take a P40 to CUDA 13, an old one leaves no card without torch."""
    assert choose_torch(capability, driver, python).requirement == requirement


@pytest.mark.parametrize(
    ("capability", "driver", "python", "reason"),
    [
        ((3, 7), "470.86", "3.11", "no torch from 2.6 on has code for compute capability 3.7"),
        ((8, 6), "390.157", "3.11", "driver 390.157 is too old"),
        ((6, 1), "470.86", "3.14", "and Python 3.14 needs 525.60.13 or newer"),
        ((6, 1), "580.95", "3.15", "needs Python >=3.10,<=3.14, this is 3.15"),
        (None, None, "3.8", "no torch from 2.6 on is listed for Python 3.8"),
        ((9, 0), "580.95", "3.16", "listed for Python 3.16"),
    ],
)
def test_what_no_build_serves_is_refused_with_the_reason(
    capability: tuple[int, int] | None, driver: str, python: str, reason: str
) -> None:
    with pytest.raises(NoTorchBuildError, match=reason.replace(".", r"\.").replace("(", r"\(")):
        choose_torch(capability, driver, python)


@pytest.mark.parametrize(
    ("capability", "libc", "machine", "requirement"),
    [
        ((8, 6), "glibc 2.28", "x86_64", "torch==2.15.0+cu132"),
        ((8, 6), "glibc 2.17", "x86_64", "torch==2.6.0+cu124"),
        (None, "glibc 2.27", "x86_64", "torch==2.6.0+cpu"),
        (None, "glibc 2.17", "aarch64", None),
        ((12, 0), "glibc 2.17", "x86_64", None),
        ((8, 6), "glibc 2.12", "x86_64", None),
        ((8, 6), "musl", "x86_64", None),
    ],
)
def test_no_wheel_is_offered_that_pip_would_not_take_on_this_c_library(
    capability: tuple[int, int] | None, libc: str, machine: str, requirement: str | None
) -> None:
    """Of 2.6 alone there are wheels for glibc 2.17, and its CUDA 12.6 build is not among them."""
    if requirement is None:
        with pytest.raises(NoTorchBuildError, match=f"no torch is published for {libc}") as caught:
            choose_torch(capability, "580.95.05", "3.12", machine=machine, libc=libc)
        assert caught.value.obstacle == "system"
    else:
        build = choose_torch(capability, "580.95.05", "3.12", machine=machine, libc=libc)
        assert build.requirement == requirement


def test_every_listed_build_that_fits_is_offered_newest_first() -> None:
    builds = rank_torch((6, 1), "580.95.05", "3.12")
    versions = [parse_version(build.version) for build in builds]
    assert versions == sorted(versions, reverse=True)
    assert {build.variant for build in builds} == {"cu126", "cu124", "cu118"}


def test_pascal_never_gets_a_build_of_cuda_13() -> None:
    for driver in DRIVERS[3:]:
        assert {cuda_of(build.variant).split(".")[0] for build in rank_torch((6, 1), driver, "3.12")} <= {"11", "12"}


@pytest.mark.parametrize(
    ("capability", "driver", "python", "machine", "obstacle", "needed"),
    [
        ((3, 7), "470.86", "3.11", "x86_64", "card", None),
        ((8, 6), "390.157", "3.11", "x86_64", "driver", "450.80.02"),
        ((12, 0), "470.86", "3.12", "x86_64", "driver", "525.60.13"),
        ((6, 1), "580.95", "3.15", "x86_64", "python", None),
        (None, None, "3.8", "x86_64", "python", None),
        (None, None, "3.12", "riscv64", "machine", None),
        ((9, 0), "580.95", "3.12", "i686", "machine", None),
    ],
)
def test_a_refusal_says_what_stands_in_the_way(
    capability: tuple[int, int] | None, driver: str | None, python: str, machine: str, obstacle: str, needed: str | None
) -> None:
    with pytest.raises(NoTorchBuildError) as caught:
        choose_torch(capability, driver, python, machine=machine)
    assert (caught.value.obstacle, caught.value.needed_driver) == (obstacle, needed)


@pytest.mark.parametrize(
    ("capability", "driver", "pythons"),
    [
        ((6, 1), "580.95", ("3.11", "3.12", "3.13", "3.14")),
        ((9, 0), "580.95", ("3.11", "3.12", "3.13", "3.14", "3.15")),
        ((6, 1), "470.86", ("3.11", "3.12", "3.13")),
        ((3, 7), "470.86", ()),
    ],
)
def test_the_pythons_that_get_the_newest_build_are_known(
    capability: tuple[int, int], driver: str, pythons: tuple[str, ...]
) -> None:
    assert serving_pythons([capability], driver, "x86_64") == pythons


def test_an_uncertain_architecture_does_not_count_as_listed() -> None:
    with pytest.raises(NoTorchBuildError):
        choose_torch((3, 7), "520.61.05", "3.11")


def test_mixed_cards_get_a_build_that_serves_all() -> None:
    build = choose_torch([(8, 0), (6, 1)], "580.95.05", "3.12")
    assert build.requirement == "torch==2.14.1+cu126"
    assert "6.1" in build.reason
    assert choose_torch([(7, 0), (12, 0)], "580.95.05", "3.12").requirement == "torch==2.10.0+cu128"


def test_where_no_build_serves_all_the_weakest_that_can_be_served_decides() -> None:
    with_kepler = choose_torch([(3, 7), (8, 0)], "580.95.05", "3.12")
    assert with_kepler.requirement == "torch==2.15.0+cu132"
    assert with_kepler.left_out == ((3, 7),)
    pascal_and_blackwell = choose_torch([(12, 0), (6, 1)], "580.95.05", "3.12")
    assert pascal_and_blackwell.requirement == "torch==2.14.1+cu126"
    assert pascal_and_blackwell.left_out == ((12, 0),)
    assert "12.0" in pascal_and_blackwell.reason


def test_arm_servers_have_builds_of_their_own() -> None:
    assert choose_torch((9, 0), "580.95.05", "3.12", machine="aarch64").requirement == "torch==2.15.0+cu132"
    assert choose_torch((9, 0), "560.28.03", "3.12", machine="aarch64").requirement == "torch==2.14.1+cu126"
    with pytest.raises(NoTorchBuildError, match="on aarch64"):
        choose_torch((7, 0), "580.95.05", "3.12", machine="aarch64")


def test_a_card_newer_than_the_tables_needs_a_driver_that_compiles_ptx() -> None:
    assert choose_torch((13, 0), "595.58.03", "3.12").requirement == "torch==2.14.1+cu132"
    assert choose_torch((13, 0), "580.65.06", "3.12").requirement == "torch==2.10.0+cu130"


def test_the_package_indexs_own_build_is_known() -> None:
    assert choose_torch((9, 0), "580.95.05", "3.12").on_pypi
    assert not choose_torch((6, 1), "580.95.05", "3.12").on_pypi


def test_pip_gets_the_index_and_the_exact_build() -> None:
    build = choose_torch((6, 1), "535.274.02", "3.12")
    assert pip_arguments(build) == ["--index-url", "https://download.pytorch.org/whl/cu126", "torch==2.14.1+cu126"]


def test_every_newest_release_is_of_its_own_row() -> None:
    for row in read_table("torch")["releases"]:
        assert row["newest"].startswith(f"{row['torch']}.")


SMI = """#!/bin/sh
echo "0, Tesla P40, GPU-1111-2222, 535.274.02, 00000000:01:00.0, 23040, 22900, 6.1, Default, 16, 16, [N/A]"
"""


@pytest.fixture
def machine_with_p40(tmp_path: Path) -> dict[str, str]:
    """An environment whose nvidia-smi shows one P40."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return {**variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_it_runs_from_a_bare_checkout_with_the_standard_library_alone(machine_with_p40: dict[str, str]) -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "doctor/tables/target.py"), "--python", "3.12.4"]
    done = subprocess.run(command, env=machine_with_p40, capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.strip() == "--index-url https://download.pytorch.org/whl/cu126 torch==2.14.1+cu126"
    assert "Tesla P40 (compute capability 6.1), driver 535.274.02" in done.stderr


def test_json_says_what_was_found_and_every_fitting_build(machine_with_p40: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rl_compat.doctor.tables.target", "--json"]
    done = subprocess.run(command, env=machine_with_p40, capture_output=True, text=True, cwd=ROOT, check=True)
    said = json.loads(done.stdout)
    assert said["found"]["cards"][0]["compute_capability"] == [6, 1]
    assert said["builds"][0]["variant"] == "cu126"


def test_a_python_without_builds_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--python", "3.8"]) == 1
    assert "Python 3.8" in capsys.readouterr().err
