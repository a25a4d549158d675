"""Every card of the catalogue with every build of torch that was published: the verdict is the architecture rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import recorded

from rl_compat.doctor.checks.torch.build import check_architectures
from rl_compat.doctor.findings import Severity, Step
from rl_compat.doctor.remedies import torch_remedies
from rl_compat.doctor.tables.target import NoTorchBuildError, TorchInstall, target_of
from rl_compat.hardware.gpu.catalogue import Gpu, all_gpus
from rl_compat.hardware.types import Device, Hardware, TorchBuild

KNOWLEDGE = Path(__file__).parents[2] / "doctor" / "knowledge"
TORCH = json.loads((KNOWLEDGE / "torch.json").read_text())
DRIVERS = {row["cuda"]: row for row in json.loads((KNOWLEDGE / "drivers.json").read_text())["cuda_min_driver_linux"]}
RELEASES = {row["newest"]: row for row in TORCH["releases"]}
BASE = recorded("rtx3090")
INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7)}
OUR_OLDEST_TORCH, OUR_NEWEST_TORCH, OUR_OLDEST_PYTHON = (2, 6), (2, 15), (3, 11)
OLD_DRIVERS = ("390.157", "450.80.02", "470.256.02", "525.60.13", "535.288.01", "550.54.14", "570.26")
NEW_DRIVERS = ("580.95.05", "595.58.03", "620.10.01", None)
PYTHONS = ("3.9.18", "3.10.14", "3.11.9", "3.12.8", "3.13.1", "3.14.0", "3.15.0", "3.17.0")

Capability = tuple[int, int]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def at_least(driver: str, needed: str) -> bool:
    return numbers(driver) >= numbers(needed)


def dotted(variant: str) -> str:
    """`cu126` as `12.6`."""
    return f"{variant[2:4]}.{variant[4]}"


def runs(listed: list[str], card: Capability, cuda: str) -> tuple[bool, bool]:
    """Whether a card runs a wheel with those table entries, and whether it does so only by compiling PTX.

    A cubin for X.y runs on X.z with z >= y, on an integrated device before CUDA 13.2 with z = y alone; PTX for a
    capability compiles on that one and on every later one.
    """
    finished = compiled = False
    for entry in listed:
        major, minor = numbers(entry.partition("+")[0])
        alone = card in INTEGRATED and numbers(cuda) < (13, 2)
        finished |= (major, minor) == card if alone else major == card[0] and minor <= card[1]
        compiled |= entry.endswith("+PTX") and (major, minor) <= card
    return finished or compiled, compiled and not finished


def device_of(gpu: Gpu) -> Device:
    return replace(BASE.devices[0], name=gpu.name, compute_capability=gpu.compute_capability)


def machine(device: Device, *, python: str = "3.12.8", driver: str | None = "610.43.02") -> Hardware:
    return replace(
        BASE,
        devices=(device,),
        driver=replace(BASE.driver, version=driver, cuda_version=None),
        software=replace(BASE.software, python=python, torch=None, packages={}),
    )


def compiled_list(listed: list[str]) -> tuple[str, ...]:
    """The architectures of such a wheel: `sm_120` and `compute_120` for `12.0+PTX`."""
    names: list[str] = []
    for entry in listed:
        number = entry.partition("+")[0].replace(".", "")
        names += [f"sm_{number}", *([f"compute_{number}"] if entry.endswith("+PTX") else [])]
    return tuple(names)


def certain(listed: list[str]) -> list[str]:
    """Without the part of an entry that the table puts in brackets."""
    return [entry.partition("(")[0] for entry in listed]


def wheels() -> list[tuple[str, str, list[str]]]:
    """Every release with every variant of every processor, also those that rl_compat does not run with."""
    found = []
    for release in TORCH["releases"]:
        for variant, listed in release["x86_64_wheels"].items():
            found.append((release["newest"], variant, certain(listed)))
        for row in TORCH["aarch64"]:
            if row["variant"] in release["x86_64_wheels"] and numbers(release["torch"]) >= numbers(row["torch_min"]):
                found.append((release["newest"], row["variant"], row["archs"]))
    return found


def test_the_catalogue_and_the_table_are_whole() -> None:
    assert len(all_gpus()) == 122
    assert len(wheels()) >= 50
    assert len(RELEASES) == 16


def test_the_verdict_on_every_card_with_every_wheel_is_the_architecture_rule() -> None:
    """A-ENV-01, A-ENV-02: no exceptions."""
    devices = [device_of(gpu) for gpu in all_gpus()]
    verdicts = 0
    for version, variant, listed in wheels():
        cuda = dotted(variant)
        build = TorchBuild(
            version=f"{version}+{variant}", cuda=cuda, arch_list=compiled_list(listed), cuda_available=True
        )
        software = replace(BASE.software, torch=build)
        for device in devices:
            hardware = replace(machine(device), software=software)
            (finding,) = check_architectures(hardware)
            expected, by_ptx = runs(listed, device.compute_capability, cuda)
            case = "no_code" if not expected else "ptx_only" if by_ptx else "match"
            where = f"{device.name} {device.compute_capability} with {build.version} {build.arch_list}"
            assert finding.id == f"torch_architectures.{case}", where
            assert (finding.severity is Severity.FAILURE) is not expected, where
            verdicts += 1
    assert verdicts == 122 * len(wheels())


@pytest.mark.parametrize(
    ("archs", "cuda", "card", "case"),
    [
        (("sm_90a",), "12.8", (9, 0), "match"),
        (("sm_90a",), "12.8", (10, 0), "no_code"),
        (("compute_90a",), "12.8", (12, 0), "no_code"),
        (("sm_100f",), "13.0", (10, 3), "match"),
        (("sm_100f",), "13.0", (12, 0), "no_code"),
        (("sm_80",), "13.0", (8, 7), "no_code"),
        (("sm_80",), "13.2", (8, 7), "match"),
        (("sm_87",), "12.6", (8, 7), "match"),
        (("sm_61",), "12.6", (6, 0), "no_code"),
        (("compute_60",), "12.6", (6, 1), "ptx_only"),
        (("sm_70", "compute_70"), "12.6", (6, 1), "no_code"),
    ],
)
def test_suffixes_and_integrated_devices_follow_the_rule_too(
    archs: tuple[str, ...], cuda: str, card: Capability, case: str
) -> None:
    build = TorchBuild(version="2.14.1", cuda=cuda, arch_list=archs, cuda_available=True)
    hardware = machine(replace(BASE.devices[0], compute_capability=card))
    (finding,) = check_architectures(replace(hardware, software=replace(BASE.software, torch=build)))

    assert finding.id == f"torch_architectures.{case}"


def check_listed(build: TorchInstall, card: Capability, driver: str | None, python: str) -> None:
    """The tables have the build, and it runs on the card, with the driver and in the Python."""
    row = RELEASES[build.version]
    lower, upper = (numbers(bound.strip("<>= ")) for bound in row["python"].split(","))
    assert lower <= numbers(python)[:2] <= upper
    assert OUR_OLDEST_TORCH <= numbers(build.version)[:2] <= OUR_NEWEST_TORCH
    if build.variant == "cpu":
        assert build.index_url.endswith("/cpu")
        return
    cuda, listed = dotted(build.variant), certain(row["x86_64_wheels"][build.variant])
    serves, by_ptx = runs(listed, card, cuda)
    assert serves
    assert driver is None or at_least(driver, DRIVERS[cuda]["full" if by_ptx else "minor_compat"])
    assert build.index_url == TORCH["index_url"].replace("<tag>", build.variant)


@pytest.mark.parametrize("driver", [*OLD_DRIVERS, *NEW_DRIVERS])
def test_the_recommended_install_is_listed_for_card_driver_and_python(driver: str | None) -> None:
    """What is recommended exists and runs; where nothing is, no listed build would have run."""
    for card in sorted({gpu.compute_capability for gpu in all_gpus()}):
        for python in PYTHONS:
            hardware = machine(replace(BASE.devices[0], compute_capability=card), python=python, driver=driver)
            try:
                builds = target_of(hardware).builds()
            except NoTorchBuildError:
                assert fitting(card, driver, python) == set()
                continue
            for build in builds:
                check_listed(build, card, driver, python)
            assert {(build.version, build.variant) for build in builds} == fitting(card, driver, python)
            assert numbers(builds[0].version) == max(numbers(build.version) for build in builds)


def fitting(card: Capability, driver: str | None, python: str) -> set[tuple[str, str]]:
    """Every listed build of our range that goes with all three, found by going through the tables."""
    found = set()
    for version, row in RELEASES.items():
        lower, upper = (numbers(bound.strip("<>= ")) for bound in row["python"].split(","))
        if numbers(version)[:2] < OUR_OLDEST_TORCH or not lower <= numbers(python)[:2] <= upper:
            continue
        for variant, listed in row["x86_64_wheels"].items():
            serves, by_ptx = runs(certain(listed), card, dotted(variant))
            needed = DRIVERS[dotted(variant)]["full" if by_ptx else "minor_compat"]
            if serves and (driver is None or at_least(driver, needed)):
                found.add((version, variant))
    return found


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.id)
def test_every_card_gets_a_way_to_a_torch_that_works(gpu: Gpu) -> None:
    """With every driver and Python: a build for both, another Python, a newer driver, or the CPU; never nothing."""
    for driver in ("470.256.02", "550.54.14", "580.95.05"):
        for python in ("3.10.14", "3.12.8", "3.15.0"):
            hardware = machine(device_of(gpu), python=python, driver=driver)
            first = torch_remedies(hardware)[0]
            assert first.commands or first.step is Step.DRIVER
            if first.step is not Step.TORCH or "export CUDA_VISIBLE_DEVICES=" in first.commands:
                continue
            build = target_of(hardware).builds()[0]
            check_listed(build, gpu.compute_capability, driver, python)
            assert first.commands[-1].endswith(f"--index-url {build.index_url} {build.requirement}")
            assert numbers(python)[:2] >= OUR_OLDEST_PYTHON
