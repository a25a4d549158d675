"""The driver: there, whole, of a branch and with a kernel module that drive the cards, and NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.cards.driver import check_driver, check_kernel_module, check_nvml
from rl_compat.doctor.findings import Certainty, Finding, Severity, Step
from rl_compat.doctor.tables.cards import all_cards
from rl_compat.doctor.tables.drivers import first_driver, install_driver, last_branch, needed_module, recommended_branch
from rl_compat.hardware.gpu.catalogue import all_gpus
from rl_compat.hardware.types import Hardware, PciGpu


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def driven(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, driver=replace(hardware.driver, **facts))  # type: ignore[arg-type]


def in_docker(hardware: Hardware) -> Hardware:
    return replace(hardware, host=replace(hardware.host, container="docker"))


def on_the_bus(hardware: Hardware, device_id: str, kernel_driver: str | None = None) -> Hardware:
    """The machine with one more card, which the driver does not list."""
    card = PciGpu(bus_id="0000:77:00.0", device_id=device_id, kernel_driver=kernel_driver)
    return replace(hardware, pci_gpus=(*(hardware.pci_gpus or ()), card))


def alone(hardware: Hardware, device_id: str, **driver: object) -> Hardware:
    """That card only, unlisted, under that driver."""
    return driven(on_the_bus(replace(hardware, devices=(), pci_gpus=()), device_id), **driver)


@pytest.mark.parametrize(
    ("capability", "last", "module"),
    [
        ((3, 7), 470, "proprietary"),
        ((5, 2), 580, "proprietary"),
        ((6, 0), 580, "proprietary"),
        ((6, 1), 580, "proprietary"),
        ((7, 0), 580, "proprietary"),
        ((7, 5), None, None),
        ((8, 9), None, None),
        ((9, 0), None, None),
        ((10, 0), None, "open"),
        ((12, 0), None, "open"),
        ((13, 0), None, "open"),
    ],
)
def test_the_last_branch_and_the_module_of_each_generation(
    capability: tuple[int, int], last: int | None, module: str | None
) -> None:
    assert (last_branch(capability), needed_module(capability)) == (last, module)


def test_every_card_of_the_catalogue_is_driven_by_the_branch_that_is_recommended_for_it() -> None:
    for gpu in all_gpus():
        branch = recommended_branch([gpu.compute_capability])
        first, last = first_driver(gpu.compute_capability), last_branch(gpu.compute_capability)
        assert first is None or int(first.partition(".")[0]) <= branch, gpu.name
        assert last is None or branch <= last, gpu.name


def test_a_missing_driver_is_a_failure_with_the_branch_for_the_card() -> None:
    finding = found(check_driver, recorded("rtx3060_no_driver"))["driver.missing"]
    assert finding.severity is Severity.FAILURE
    assert not missing(finding.what, "NVIDIA GeForce RTX 3060", "PCI 0000:01:00.0")
    assert finding.remedies[0].commands == ("sudo apt-get install nvidia-driver-580-open",)
    assert finding.remedies[0].certainty is Certainty.UNCERTAIN


def test_a_card_that_nouveau_holds_is_left_to_the_check_of_gpus() -> None:
    assert not [f for f in check_driver(recorded("rtx3060_nouveau")) if f.severity > Severity.OK]


def test_no_card_and_no_driver_is_no_finding() -> None:
    machine = recorded("laptop_no_gpu")
    assert [*check_driver(machine), *check_kernel_module(machine), *check_nvml(machine)] == []


def test_an_emulated_card_has_no_driver_of_its_own() -> None:
    machine = replace(recorded("rtx5090"), emulated="Tesla P40")
    assert [*check_driver(machine), *check_kernel_module(machine), *check_nvml(machine)] == []


def test_libraries_newer_than_the_loaded_module_want_a_restart() -> None:
    finding = found(check_driver, recorded("rtx3090_driver_library_mismatch"))["driver.mismatch"]
    assert finding.severity is Severity.FAILURE
    assert not missing(finding.what, "575.57.08", "580.95.05")
    assert finding.remedies[0].step is Step.DRIVER
    assert "sudo modprobe nvidia" in commands(finding)


def test_in_a_container_a_mismatch_wants_a_new_container_first() -> None:
    finding = found(check_driver, in_docker(recorded("rtx3090_driver_library_mismatch")))["driver.mismatch"]
    assert [remedy.step for remedy in finding.remedies] == [Step.CONTAINER]
    assert commands(finding) == ""


def test_a_mismatch_is_known_from_nvmls_words_alone() -> None:
    machine = driven(recorded("rtx3090_driver_library_mismatch"), version="575.57.08")
    finding = found(check_driver, machine)["driver.mismatch"]
    assert "575.57.08" in finding.what


def test_a_branch_past_the_last_of_the_card_is_named_with_the_last() -> None:
    finding = found(check_driver, recorded("p40_r590_driver"))["driver.legacy"]
    assert finding.severity is Severity.FAILURE
    assert not missing(finding.what, "590.48.01", "Tesla P40", "R580")
    assert finding.remedies[0].commands == (
        "sudo apt-get install nvidia-driver-580",
        "sudo apt-mark hold nvidia-driver-580",
    )


def test_an_old_card_beside_a_new_one_under_a_new_driver_is_a_warning() -> None:
    machine = on_the_bus(driven(recorded("rtx3090"), version="595.58.03", module_version="595.58.03"), "1b38")
    assert found(check_driver, machine)["driver.legacy"].severity is Severity.WARNING


def test_kepler_ends_with_r470_which_is_not_worth_installing_since_no_torch_has_code_for_it() -> None:
    machine = alone(recorded("p40_r580"), "102d", version="580.95.05")
    finding = found(check_driver, machine)["driver.legacy"]
    assert "Tesla K80: R470" in finding.what
    assert finding.remedies[0].commands[0] == "export CUDA_VISIBLE_DEVICES="
    assert not any("nvidia-driver" in line for remedy in finding.remedies for line in remedy.commands)


def test_an_old_card_that_no_torch_has_code_for_does_not_decide_the_driver_of_a_newer_one() -> None:
    """A K80 on the bus and a listed RTX 4090: no driver supports both, and that of the newer one stays."""
    newer = recorded("rtx4090")
    together = replace(newer, pci_gpus=(*(newer.pci_gpus or ()), PciGpu(bus_id="0000:81:00.0", device_id="102d")))

    findings = found(check_driver, together)

    assert findings["driver.no_common"].severity is Severity.NOTE
    assert findings["driver.fits"].severity is Severity.OK
    assert not any(finding.remedies for finding in findings.values())


def test_the_word_legacy_of_nvml_is_enough_where_the_bus_is_unknown() -> None:
    machine = driven(
        replace(recorded("p40"), devices=(), pci_gpus=None),
        version="595.58.03",
        module_version="595.58.03",
        nvml_error="the GPU is supported by the legacy 580.xx driver releases",
    )
    assert "R580" in found(check_driver, machine)["driver.legacy"].what


def test_blackwell_needs_570_or_newer() -> None:
    machine = alone(recorded("rtx3090"), id_of("rtx5090"), version="550.163.01", module_version=None)
    finding = found(check_driver, machine)["driver.too_old_for_card"]
    assert finding.severity is Severity.FAILURE
    assert not missing(finding.what, "550.163.01", "NVIDIA GeForce RTX 5090", "570.26")
    assert finding.remedies[0].commands == ("sudo apt-get install nvidia-driver-580-open",)


def id_of(recording: str) -> str:
    """The PCI id of that recording's card."""
    gpus = recorded(recording).pci_gpus
    assert gpus is not None
    return gpus[0].device_id


@pytest.mark.parametrize(
    ("day", "severity", "case"),
    [
        (date(2026, 6, 30), Severity.OK, "branch"),
        (date(2026, 7, 1), Severity.NOTE, "branch_ended"),
    ],
)
def test_the_end_of_a_branch_is_the_end_of_its_month(day: date, severity: Severity, case: str) -> None:
    findings = {finding.id: finding for finding in check_driver(recorded("p40"), today=day)}
    assert findings[f"driver.{case}"].severity is severity
    assert "R535" in findings[f"driver.{case}"].what


def test_the_day_of_the_recording_counts_when_none_is_given() -> None:
    machine = recorded("p40")
    assert "driver.branch_ended" in found(check_driver, machine)
    assert "driver.branch" in found(check_driver, replace(machine, recorded_at="2026-05-01T12:00:00+00:00"))


def test_an_ended_branch_is_not_noted_where_it_is_the_last_for_the_card() -> None:
    finding = found(check_driver, recorded("k80"))["driver.branch_ended"]
    assert (finding.severity, finding.remedies) == (Severity.OK, ())


def test_a_branch_newer_than_the_table_is_not_judged() -> None:
    machine = driven(recorded("rtx4090"), version="700.10.01", module_version="700.10.01")
    assert set(found(check_driver, machine)) == {"driver.fits"}


def test_the_cuda_version_of_nvidia_smi_is_noted_only_where_it_misleads() -> None:
    fine, wrong = recorded("p40_r580"), recorded("v100_cu132_wheel")
    assert found(check_driver, fine)["driver.cuda_version_misleads"].severity is Severity.OK
    finding = found(check_driver, wrong)["driver.cuda_version_misleads"]
    assert finding.severity is Severity.NOTE
    assert "CUDA 13.0" in finding.what
    assert "driver.cuda_version_misleads" not in found(check_driver, recorded("rtx3090"))
    assert "driver.cuda_version_misleads" not in found(check_driver, recorded("v100"))


def test_under_wsl_the_driver_is_that_of_windows() -> None:
    for name in ("wsl_rtx3070", "wsl_rtx4070_nvml", "wsl_rtx4070_old_driver"):
        findings = found(check_driver, recorded(name))
        assert set(findings) == {"driver.windows"}
        assert found(check_kernel_module, recorded(name)) == {}


def test_a_linux_driver_inside_wsl_is_a_warning() -> None:
    machine = driven(recorded("wsl_rtx4070_nvml"), cuda_library="/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    finding = found(check_driver, machine)["driver.linux_in_wsl"]
    assert finding.severity is Severity.WARNING
    assert finding.remedies[0].commands == (
        'export LD_LIBRARY_PATH="/usr/lib/wsl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
    )


def test_in_a_container_a_driver_is_the_hosts_business() -> None:
    machine = in_docker(recorded("rtx3060_no_driver"))
    remedy = install_driver(machine, all_cards(machine))
    assert "on the host" in remedy.what
    assert remedy.commands == ()


def test_under_wsl_a_driver_is_the_business_of_windows() -> None:
    machine = recorded("wsl_rtx3070")
    remedy = install_driver(machine, all_cards(machine))
    assert "in Windows" in remedy.what
    assert remedy.commands == ()


def test_the_open_module_does_not_drive_a_p40() -> None:
    finding = found(check_kernel_module, recorded("p40_open_module"))["kernel_module.open_below_7_5"]
    assert finding.severity is Severity.FAILURE
    assert "Tesla P40 has 6.1" in finding.what
    assert finding.remedies[0].commands == ("sudo apt-get install nvidia-driver-580",)


def test_the_proprietary_module_does_not_drive_blackwell() -> None:
    finding = found(check_kernel_module, recorded("rtx5090_proprietary_module"))
    assert finding["kernel_module.proprietary_on_blackwell"].severity is Severity.FAILURE
    assert commands(finding["kernel_module.proprietary_on_blackwell"]).endswith("nvidia-driver-580-open")


def test_a_p40_beside_a_blackwell_card_has_no_common_module() -> None:
    finding = found(check_kernel_module, recorded("mixed_p40_rtx5090"))["kernel_module.no_common"]
    assert finding.severity is Severity.WARNING
    assert not missing(finding.what, "open", "proprietary", "Tesla P40")
    assert "second machine" in finding.remedies[0].what


def test_a_fitting_module_is_fine_and_an_unknown_one_is_not_guessed() -> None:
    assert found(check_kernel_module, recorded("p40_r580"))["kernel_module.fits"].severity is Severity.OK
    assert found(check_kernel_module, driven(recorded("p40_r580"), kernel_module=None)) == {}


def test_nvml_missing_under_wsl_is_a_warning_without_advice_for_linux() -> None:
    """A-ENV-06."""
    finding = found(check_nvml, recorded("wsl_rtx3070"))["nvml.under_wsl"]
    assert finding.severity is Severity.WARNING
    assert "CUDA" in finding.what
    assert "Windows" in finding.why
    assert "apt" not in commands(finding)


def test_nvml_not_loaded_under_wsl_as_reported_is_a_warning_too() -> None:
    """A-ENV-06."""
    machine = driven(recorded("wsl_rtx3070"), nvml_error="driver not loaded")
    findings = [*check_nvml(machine), *check_driver(machine), *check_kernel_module(machine)]
    assert max(finding.severity for finding in findings) is Severity.WARNING
    assert not any("apt" in commands(finding) for finding in findings)


def test_the_missing_python_package_of_nvml_is_installed_for_this_python() -> None:
    machine = driven(recorded("rtx3060"), nvml_error="`nvidia-ml-py` is not installed")
    finding = found(check_nvml, machine)["nvml.not_installed"]
    assert finding.severity is Severity.NOTE
    assert commands(finding) == "/home/ada/rl/.venv/bin/python -m pip install nvidia-ml-py"


def test_nvidia_smi_does_in_place_of_the_package() -> None:
    finding = found(check_nvml, recorded("rtx3060_nvml_package_missing"))["nvml.answers"]
    assert finding.severity is Severity.OK
    assert "nvidia-smi answers" in finding.what


def test_a_container_without_the_tools_of_the_driver_names_the_variable() -> None:
    base = replace(recorded("docker_a10"), environment={"NVIDIA_DRIVER_CAPABILITIES": "compute,video"})
    finding = found(check_nvml, driven(base, nvml_error="NVML Shared Library Not Found"))["nvml.capability"]
    assert "NVIDIA_DRIVER_CAPABILITIES=`compute,video` lacks `utility`" in finding.what
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in commands(finding)


def test_a_container_that_lost_its_cards_is_started_anew() -> None:
    base = recorded("docker_nvml_lost")
    assert found(check_nvml, base)["nvml.container_lost"].severity is Severity.WARNING
    assert found(check_nvml, replace(base, devices=()))["nvml.container_lost"].severity is Severity.FAILURE
    assert found(check_nvml, base)["nvml.container_lost"].remedies[0].step is Step.CONTAINER


def test_a_user_who_may_not_ask_nvml_is_told_where_to_look() -> None:
    machine = driven(recorded("rtx3090"), nvml_error="Insufficient Permissions")
    assert found(check_nvml, machine)["nvml.not_permitted"].severity is Severity.WARNING


def test_an_integrated_card_has_no_nvml_and_that_is_fine() -> None:
    machine = driven(recorded("jetson_orin"), nvml_error="Not Supported")
    assert found(check_nvml, machine)["nvml.integrated"].severity is Severity.OK


def test_nvml_that_answers_is_fine_and_a_silent_one_without_cards_is_left_to_others() -> None:
    assert found(check_nvml, recorded("p40"))["nvml.answers"].severity is Severity.OK
    assert found(check_nvml, recorded("rtx3060_no_driver"))["nvml.silent"].severity is Severity.OK
    assert found(check_nvml, recorded("rtx3090_driver_library_mismatch")) == {}


def test_cards_of_unknown_id_are_told_by_it() -> None:
    machine = on_the_bus(replace(recorded("laptop_no_gpu"), pci_gpus=()), "ffff")
    assert "NVIDIA card 10de:ffff" in found(check_driver, machine)["driver.missing"].what
