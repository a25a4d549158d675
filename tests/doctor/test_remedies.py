"""Remedies for torch: the build that suits the machine, with its Python, driver and packages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.findings import Certainty, Remedy, Step
from rl_compat.doctor.remedies import torch_remedies, update_driver
from rl_compat.doctor.tables.target import known_driver, target_of
from rl_compat.hardware.types import Driver, Hardware, PciGpu

PYTHON = "/home/ada/rl/.venv/bin/python"
P40_ON_THE_BUS = PciGpu(bus_id="0000:01:00.0", device_id="1B38")


def with_software(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, software=replace(hardware.software, **facts))  # type: ignore[arg-type]


def with_driver(hardware: Hardware, version: str | None, cuda: str | None = None) -> Hardware:
    return replace(hardware, driver=Driver(version=version, cuda_version=cuda))


def on(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, host=replace(hardware.host, **facts))  # type: ignore[arg-type]


def without(hardware: Hardware, **packages: str) -> Hardware:
    """The machine without torch and with only those packages."""
    installed = {name.replace("_", "-"): version for name, version in packages.items()}
    return with_software(hardware, torch=None, packages=installed)


def line(remedy: Remedy) -> str:
    (command,) = remedy.commands
    return command


def test_the_build_for_card_driver_and_python_is_installed_by_the_python_that_was_looked_at() -> None:
    remedy = torch_remedies(without(recorded("p40")))[0]
    assert line(remedy) == (
        f"{PYTHON} -m pip install --index-url https://download.pytorch.org/whl/cu126 torch==2.14.1+cu126"
    )
    assert remedy.step is Step.TORCH
    assert "torch 2.14.1" in remedy.what


def test_packages_that_go_with_one_torch_are_installed_with_it() -> None:
    old = with_driver(without(recorded("p40"), torch="2.14.0", torchvision="0.29.0", torchaudio="2.11.0"), "470.86")
    remedy = torch_remedies(old)[0]
    assert line(remedy).endswith("torch==2.7.1+cu118 torchvision==0.22.1 torchaudio==2.7.1")
    assert "torchvision==0.22.1 and torchaudio==2.7.1" in remedy.what


def test_packages_that_were_built_for_another_torch_are_named() -> None:
    remedy = torch_remedies(without(recorded("rtx3090"), torch="2.11.0", vllm="0.25.0", xformers="0.0.35"))[0]
    assert "`vllm` and `xformers`" in remedy.what
    same = torch_remedies(without(recorded("rtx3090"), torch="2.15.0", vllm="0.25.0"))[0]
    assert "vllm" not in same.what


def test_the_same_version_is_installed_anew_only_by_force() -> None:
    broken = without(recorded("p40"), torch="2.14.1+cu126")
    assert "--force-reinstall" in line(torch_remedies(broken)[0])
    assert "--force-reinstall" not in line(torch_remedies(without(recorded("p40"), torch="2.14.1+cpu"))[0])


class TestPython:
    def test_one_that_is_too_new_for_the_card_is_replaced(self) -> None:
        (remedy,) = torch_remedies(with_software(without(recorded("p40")), python="3.15.0"))
        assert (remedy.step, remedy.certainty) == (Step.PYTHON, Certainty.UNCERTAIN)
        assert remedy.commands[0] == "python3.14 -m venv .venv"
        assert "with Python 3.14" in remedy.what
        assert "`uv venv --seed --python 3.14 .venv`" in remedy.what

    def test_one_that_rl_compat_refuses_is_replaced_although_torch_would_take_it(self) -> None:
        (remedy,) = torch_remedies(with_software(without(recorded("p40")), python="3.10.14"))
        assert remedy.commands[0] == "python3.11 -m venv .venv"
        assert remedy.commands[1].endswith("torch==2.14.1+cu126")

    def test_with_an_old_driver_another_python_comes_before_another_driver(self) -> None:
        """3.14 has no torch for CUDA 11.8, 3.13 has."""
        python, driver = torch_remedies(with_software(with_driver(without(recorded("p40")), "470.86"), python="3.14.1"))
        assert python.commands[0] == "python3.13 -m venv .venv"
        assert python.commands[1].endswith("torch==2.7.1+cu118")
        assert driver.step is Step.DRIVER
        assert "525.60.13 or newer" in driver.what

    def test_without_any_torch_for_the_card_the_environment_comes_first(self) -> None:
        environment, cpu = torch_remedies(with_software(without(recorded("k80")), python="3.10.14"))
        assert environment.commands == ("python3.11 -m venv .venv",)
        assert cpu.commands[0] == "export CUDA_VISIBLE_DEVICES="


class TestDriver:
    def test_one_that_runs_no_torch_of_our_range_is_updated(self) -> None:
        (remedy,) = torch_remedies(with_driver(without(recorded("rtx3090")), "440.100"))
        assert remedy.step is Step.DRIVER
        assert "450.80.02" in remedy.what

    def test_a_blackwell_card_needs_a_newer_one(self) -> None:
        (remedy,) = torch_remedies(with_driver(without(recorded("rtx5090")), "470.86"))
        assert "525.60.13" in remedy.what

    def test_an_old_card_is_not_sent_past_its_last_branch(self) -> None:
        assert "up to R580" in update_driver(recorded("p40"), "525.60.13").what
        assert "up to R" not in update_driver(recorded("rtx3090"), "525.60.13").what

    def test_under_wsl_it_is_one_of_windows_and_in_a_container_the_hosts(self) -> None:
        windows = update_driver(recorded("wsl_rtx3070"), "580")
        assert (windows.commands, "in Windows" in windows.what) == ((), True)
        inside = update_driver(on(recorded("rtx3090"), container="docker"), "580")
        assert "on the host" in inside.what

    @pytest.mark.parametrize(
        ("cuda", "build"),
        [("13.0", "2.15.0+cu132"), ("12.4", "2.14.1+cu126"), ("11.4", "2.7.1+cu118"), (None, "2.15.0+cu132")],
    )
    def test_of_a_driver_whose_version_nobody_tells_its_cuda_decides(self, cuda: str | None, build: str) -> None:
        """A-ENV-06: NVML is missing and CUDA answers."""
        hardware = with_driver(without(recorded("rtx3090")), None, cuda)
        assert line(torch_remedies(hardware)[0]).endswith(f"torch=={build}")

    def test_under_wsl_the_version_is_one_of_windows_and_its_cuda_decides(self) -> None:
        assert known_driver(on(with_driver(recorded("rtx3090"), "551.86", "12.4"), wsl=True)) == "550.54.14"
        assert known_driver(with_driver(recorded("rtx3090"), "551.86", "12.4")) == "551.86"


class TestCards:
    def test_a_card_that_no_torch_serves_is_hidden(self) -> None:
        (remedy,) = torch_remedies(without(recorded("k80")))
        assert remedy.commands[0] == "export CUDA_VISIBLE_DEVICES="
        assert remedy.commands[1].endswith("whl/cpu torch==2.15.0+cpu")
        assert not missing(remedy.what, "2.6", "3.7", "x86_64")

    def test_a_card_that_only_the_bus_shows_counts(self) -> None:
        bare = replace(without(recorded("laptop_no_gpu")), pci_gpus=(P40_ON_THE_BUS,))
        assert line(torch_remedies(bare)[0]).endswith("torch==2.14.1+cu126")

    def test_one_that_is_reserved_for_a_virtual_machine_does_not(self) -> None:
        reserved = replace(P40_ON_THE_BUS, kernel_driver="vfio-pci")
        bare = replace(without(recorded("laptop_no_gpu")), pci_gpus=(reserved,))
        assert line(torch_remedies(bare)[0]).endswith("torch==2.15.0+cpu")

    def test_hidden_cards_count_where_none_is_visible(self) -> None:
        base = without(recorded("p40"))
        hidden = replace(base, devices=(), hidden_devices=base.devices)
        assert target_of(hidden).cards == ((6, 1),)

    def test_an_emulated_card_needs_no_build_of_its_own(self) -> None:
        emulated = replace(recorded("laptop_no_gpu"), devices=recorded("p40").devices, emulated="Tesla P40")
        assert target_of(emulated).cards == ()


class TestMachines:
    def test_arm_servers_have_builds_of_their_own(self) -> None:
        arm = on(without(recorded("h100")), platform="Linux aarch64")
        assert line(torch_remedies(arm)[0]).endswith("torch==2.15.0+cu132")
        old_card = on(without(recorded("v100")), platform="Linux aarch64")
        assert "on aarch64" in torch_remedies(old_card)[0].what

    def test_macs_install_from_the_package_index(self) -> None:
        mac = on(without(recorded("laptop_no_gpu")), platform="Darwin arm64")
        assert line(torch_remedies(mac)[0]).endswith("-m pip install torch==2.15.0")

    def test_a_processor_without_torch_is_named_and_nothing_is_run(self) -> None:
        (remedy,) = torch_remedies(on(without(recorded("rtx3090")), platform="Linux armv7l"))
        assert remedy.commands == ()
        assert not missing(remedy.what, "x86_64", "aarch64", "armv7l")
