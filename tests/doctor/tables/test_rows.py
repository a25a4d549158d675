"""The questions that checks ask of the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, P40, P100, T4, V100, machine

from rl_compat.capability.binaries import wheel_supports
from rl_compat.capability.bitsandbytes import find_library, minimum, missing
from rl_compat.capability.rollout_engines import vllm_row
from rl_compat.doctor.checks.packages.engines import (
    attention_backends,
    forks_for,
    last_vllm_with_code,
    vllm_releases,
)
from rl_compat.doctor.tables.rows import (
    has_kernels,
    is_unknown,
    kernel_row,
    library_row,
    newest_known,
    pinned_libraries,
    satisfies,
    serves,
    transformers_row,
)
from rl_compat.hardware.types import Driver, Hardware, TorchBuild


@pytest.mark.parametrize(
    ("version", "bounds", "inside"),
    [
        ("2.14.0+cu130", "==2.14.0", True),
        ("2.14.1+cu126", "==2.14.0", False),
        ("2.14", "==2.14.0", True),
        ("3.12", "<3.13,>=3.9", True),
        ("3.13.1", "<3.13,>=3.9", False),
        ("5.3.2", "!=5.3.*,>=4.56.0", False),
        ("5.30.2", "!=5.3.*,>=4.56.0", True),
        ("5.5.0", "!=5.5.0,>=4.56.0", False),
        ("5.5.1", "!=5.5.0,>=4.56.0", True),
        ("2.4", "<=2.4.0", True),
        ("5.24.1", ">5.24.0", True),
        ("0.6.8.post1", "==0.6.8.post1", True),
        ("9.9", None, True),
        ("9.9", "", True),
    ],
)
def test_a_version_lies_within_bounds_or_not(version: str, bounds: str | None, inside: bool) -> None:
    assert satisfies(version, bounds) is inside


def test_bounds_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`~=2\.4`"):
        satisfies("2.4", "~=2.4")


def test_only_what_is_newer_than_the_newest_known_is_unknown() -> None:
    newest = newest_known("vllm")
    assert newest is not None
    assert not is_unknown("vllm", newest)
    assert not is_unknown("vllm", "0.1")
    assert is_unknown("vllm", "99.0")
    assert not is_unknown("a-package-without-a-row", "99.0")


@pytest.mark.parametrize(
    ("package", "version", "floor"),
    [
        ("flash-attn", "1.0.9", "7.5"),
        ("flash-attn", "2.6.3", "8.0"),
        ("xformers", "0.0.30", "6.0"),
        ("xformers", "0.0.33.post1", "7.5"),
        ("liger-kernel", "0.8.5", "7.0"),
    ],
)
def test_a_package_of_kernels_has_the_row_of_its_release(package: str, version: str, floor: str) -> None:
    row = kernel_row(package, version)
    assert row is not None
    assert row["cc_min"] == floor


def test_a_release_between_two_rows_has_none() -> None:
    assert kernel_row("flash-attn", "1.5.0") is None
    assert kernel_row("nothing", "1.0") is None
    assert vllm_row("vllm", "0.1") is None


def test_a_package_runs_on_cards_within_its_bounds_and_its_code() -> None:
    xformers = kernel_row("xformers", "0.0.30")
    flash_attention_3 = kernel_row("flash-attn-3", "3.0")
    assert xformers is not None
    assert flash_attention_3 is not None

    assert [card for card in ((5, 2), (6, 1), (7, 5), (8, 9), (9, 0), (12, 0)) if has_kernels(xformers, card)] == [
        (6, 1),
        (7, 5),
        (8, 9),
        (9, 0),
    ]
    assert [card for card in ((8, 0), (9, 0), (10, 0)) if has_kernels(flash_attention_3, card)] == [(9, 0)]


def test_cudnn_lost_pascal_and_volta_with_9_11() -> None:
    before, after = library_row("nvidia-cudnn-cu12", "9.10.2.21"), library_row("nvidia-cudnn-cu12", "9.12.0.46")
    assert before is not None
    assert after is not None
    assert serves(before["sm"], (6, 1))
    assert serves(before["sm"], (7, 0))
    assert not serves(after["sm"], (6, 1))
    assert serves(after["sm"], (7, 5))
    assert library_row("nvidia-cudnn-cu12", "8.9") is None


def test_torch_pins_its_libraries_by_build() -> None:
    assert pinned_libraries("2.14.1+cu126", "cu126").get("nvidia-cudnn-cu12") == "9.10.2.21"
    assert pinned_libraries("2.15.0", "cu132").get("nvidia-cudnn-cu13") == "9.26.0.51"
    assert pinned_libraries("2.17.0", "cu126").get("nvidia-cudnn-cu12") is None


@pytest.mark.parametrize(
    ("version", "torch"), [("5.0.1", "2.2"), ("5.7", "2.4"), ("5.15", "2.4"), ("5.17", "2.5"), ("5.24.0", "2.6")]
)
def test_transformers_raises_its_floor_of_torch(version: str, torch: str) -> None:
    row = transformers_row(version)
    assert row is not None
    assert row["torch_min"] == torch


@pytest.mark.parametrize(
    ("capability", "last"), [((7, 0), "0.19.1"), ((7, 5), "0.33.0"), ((8, 6), "0.33.0"), ((12, 0), "0.33.0")]
)
def test_the_last_vllm_with_code_for_a_card(capability: tuple[int, int], last: str) -> None:
    row = last_vllm_with_code([capability])
    assert row is not None
    assert row["vllm"] == last


def test_no_vllm_has_code_for_pascal_and_only_forks_do() -> None:
    assert last_vllm_with_code([(6, 1)]) is None
    assert last_vllm_with_code([(6, 1), (8, 0)]) is None
    assert "nicosuter/vllm" in forks_for((6, 1))
    assert "cduk/vllm-pascal" not in forks_for((6, 1))
    assert forks_for((8, 0)) == ()


def test_0_4_0_alone_left_volta_out() -> None:
    rows = {name: vllm_row("vllm", name) for name in ("0.3.3", "0.4.0", "0.4.3")}
    assert [bool(row and serves(row["wheel_sm"], (7, 0))) for row in rows.values()] == [True, False, True]


def test_attention_below_8_0_is_not_flash() -> None:
    newest, older = vllm_row("vllm", "0.33.0"), vllm_row("vllm", "0.10.0")
    assert newest is not None
    assert older is not None
    assert attention_backends(newest, (7, 5)) == ("TRITON_ATTN", "FLEX_ATTENTION")
    assert "FLASH_ATTN" in attention_backends(newest, (9, 0))
    assert attention_backends(older, (7, 0)) == ("XFORMERS",)


def on_driver(hardware: Hardware, version: str, python: str = "3.12.8") -> Hardware:
    return replace(hardware, driver=Driver(version=version), software=replace(hardware.software, python=python))


def test_vllm_is_chosen_by_card_driver_and_python() -> None:
    assert vllm_releases(on_driver(machine(V100), "580.95.05"))[0]["vllm"] == "0.19.1"
    assert vllm_releases(on_driver(machine(T4), "580.95.05"))[0]["vllm"] == "0.33.0"
    assert vllm_releases(on_driver(machine(T4), "550.54.14"))[0]["vllm"] == "0.19.1"
    assert vllm_releases(on_driver(machine(A100), "580.95.05", "3.15.0")) == ()
    assert vllm_releases(on_driver(machine(P40), "580.95.05")) == ()
    assert vllm_releases(on_driver(machine(A100, P40), "580.95.05")) == ()


def test_releases_that_need_an_older_transformers_are_not_offered() -> None:
    offered = {row["vllm"] for row in vllm_releases(on_driver(machine(A100), "580.95.05"))}

    assert {"0.19.1", "0.33.0"} <= offered
    assert not {"0.18.1", "0.10.2", "0.8.0"} & offered


@pytest.mark.parametrize(
    ("version", "cuda", "file"),
    [
        ("0.50.2", "12.6", "libbitsandbytes_cuda126.so"),
        ("0.50.2", "12.9", "libbitsandbytes_cuda128.so"),
        ("0.50.2", "12.0", "libbitsandbytes_cuda121.so"),
        ("0.50.2", "13.1", "libbitsandbytes_cuda130.so"),
        ("0.60.0", "13.4", "libbitsandbytes_cuda132.so"),
        ("0.49.0", "12.9", "libbitsandbytes_cuda129.so"),
        ("0.47.0", "13.0", None),
        ("0.44.1", "12.8", "libbitsandbytes_cuda126.so"),
    ],
)
def test_the_library_of_bitsandbytes_follows_the_cuda_of_torch(version: str, cuda: str, file: str | None) -> None:
    library = find_library(version, cuda)
    assert (library.file if library else None) == file


def test_an_override_is_taken_to_the_letter() -> None:
    assert find_library("0.50.2", "12.9", exact=True) is None
    assert find_library("0.50.2", "12.6", exact=True) is not None


@pytest.mark.parametrize(
    ("version", "cuda", "capability", "runs"),
    [
        ("0.50.2", "12.6", (6, 1), True),
        ("0.50.2", "12.6", (5, 2), False),
        ("0.47.0", "12.6", (5, 2), True),
        ("0.50.2", "12.8", (6, 1), False),
        ("0.46.1", "12.8", (7, 0), False),
        ("0.47.0", "12.8", (7, 0), True),
        ("0.50.2", "13.0", (7, 0), False),
        ("0.50.2", "12.8", (12, 1), True),
        ("0.50.2", "12.6", (12, 0), True),
    ],
)
def test_each_library_has_code_for_its_cards(version: str, cuda: str, capability: tuple[int, int], runs: bool) -> None:
    library = find_library(version, cuda)
    assert library is not None
    assert wheel_supports(library.arch_list, capability, cuda=cuda) is runs


def test_old_wheels_served_maxwell() -> None:
    assert minimum("nf4", "0.47.0") == (5, 0)
    assert minimum("nf4", "0.48.0") == (6, 0)
    assert minimum("llm_int8", "0.47.0") == (7, 5)


def with_bitsandbytes(hardware: Hardware, version: str, *, cuda: str, **environment: str) -> Hardware:
    torch = TorchBuild(version=f"2.10.0+cu{cuda.replace('.', '')}", cuda=cuda, cuda_available=True)
    packages = {**hardware.software.packages, "bitsandbytes": version}
    software = replace(hardware.software, packages=packages, torch=torch, bitsandbytes_library="cuda")
    return replace(hardware, software=software, environment=environment)


def test_the_installed_version_decides_what_is_missing() -> None:
    old, new = (with_bitsandbytes(machine(V100), version, cuda="12.8") for version in ("0.46.1", "0.50.2"))

    assert (
        "`libbitsandbytes_cuda128.so` of `bitsandbytes` 0.46.1 has no code for device 0"
        in missing(old, feature="nf4")[0]
    )
    assert missing(new, feature="nf4") == ()


def test_an_override_decides_against_the_cuda_of_torch() -> None:
    plain = with_bitsandbytes(machine(P100), "0.50.2", cuda="12.8")
    overridden = with_bitsandbytes(machine(P100), "0.50.2", cuda="12.8", BNB_CUDA_VERSION="126")
    absent = with_bitsandbytes(machine(P100), "0.50.2", cuda="12.8", BNB_CUDA_VERSION="127")

    assert missing(plain, feature="optimizer_8bit")
    assert missing(overridden, feature="optimizer_8bit") == ()
    assert missing(absent, feature="optimizer_8bit") == ("`bitsandbytes` 0.50.2 has no library for CUDA 12.7",)


def test_a_newer_version_is_taken_to_hold_what_the_newest_known_does() -> None:
    assert missing(with_bitsandbytes(machine(P40), "0.70.0", cuda="12.6"), feature="nf4") == ()
    assert missing(with_bitsandbytes(machine(P40), "0.70.0", cuda="13.0"), feature="nf4") != ()


def test_wheels_for_other_processors_are_not_judged_by_those_of_x86() -> None:
    hardware = with_bitsandbytes(machine(V100), "0.50.2", cuda="13.0")
    arm = replace(hardware, host=replace(hardware.host, platform="Linux aarch64"))

    assert missing(hardware, feature="nf4") != ()
    assert missing(arm, feature="nf4") == ()
