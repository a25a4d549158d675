"""Which GPUs this process has, what keeps the others from it, and what CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.cards.gpu import check_gpu
from rl_compat.doctor.checks.cards.memory import check_mig
from rl_compat.doctor.checks.cards.visible_devices import check_visible_devices
from rl_compat.doctor.diagnosis import findings_of, run_checks
from rl_compat.doctor.findings import Certainty, Finding, Severity, Step
from rl_compat.doctor.table import CHECKS
from rl_compat.doctor.verdict import judge
from rl_compat.hardware.gpu.join import set_apart_other_vendors
from rl_compat.hardware.recording import load_recording, save_recording
from rl_compat.hardware.types import Device, Driver, Hardware, MemoryHealth, PciGpu, Process, TorchBuild, Xid

SECOND = "GPU-21111111-2222-3333-4444-555555555555"
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def driven(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, driver=replace(hardware.driver, **facts))  # type: ignore[arg-type]


def without_cards(hardware: Hardware, **facts: object) -> Hardware:
    """The machine with its cards on the bus only and a torch that sees none."""
    torch = hardware.software.torch
    assert torch is not None
    blind = replace(hardware.software, torch=replace(torch, cuda_available=False))
    return driven(replace(hardware, devices=(), hidden_devices=(), software=blind), **facts)


def changed(hardware: Hardware, **facts: object) -> Hardware:
    """The machine with its first card changed."""
    return replace(hardware, devices=(replace(hardware.devices[0], **facts), *hardware.devices[1:]))  # type: ignore[arg-type]


def hiding(value: str | None, *, cards: tuple[Device, ...], picked: tuple[int, ...]) -> Hardware:
    """Two RTX 3090 of which CUDA shows those."""
    base = recorded("visible_second")
    return replace(
        base,
        devices=tuple(replace(cards[place], index=index) for index, place in enumerate(picked)),
        hidden_devices=tuple(replace(card, index=place) for place, card in enumerate(cards) if place not in picked),
        environment={} if value is None else {"CUDA_VISIBLE_DEVICES": value},
        warnings=(),
    )


def two_cards() -> tuple[Device, Device]:
    base = recorded("visible_second")
    return base.hidden_devices[0], base.devices[0]


def told(value: str, picked: tuple[int, ...]) -> dict[str, Finding]:
    return found(check_visible_devices, hiding(value, cards=two_cards(), picked=picked))


def test_visible_cards_are_listed_with_capability_and_memory() -> None:
    finding = found(check_gpu, recorded("p40"))["gpu.visible"]
    assert finding.severity is Severity.OK
    assert finding.what == "1 visible: cuda:0 Tesla P40 (6.1, 22.5 GiB)"


@pytest.mark.parametrize("name", ["laptop_no_gpu", "server_no_gpu", "ci_no_gpu", "aarch64_no_gpu"])
def test_no_card_at_all_is_a_note_and_means_cpu_mode(name: str) -> None:
    """A-ENV-15."""
    findings = found(check_gpu, recorded(name))
    assert list(findings) == ["gpu.none"]
    assert findings["gpu.none"].severity is Severity.NOTE
    assert "CPU mode" in findings["gpu.none"].what


def test_wsl_without_a_card_sends_to_windows() -> None:
    (remedy,) = found(check_gpu, recorded("wsl_no_gpu"))["gpu.none"].remedies
    assert "in Windows" in remedy.what
    assert remedy.commands == ()


def test_a_card_held_by_nouveau_gets_a_driver() -> None:
    finding = found(check_gpu, recorded("rtx3060_nouveau"))["gpu.nouveau"]
    assert finding.severity is Severity.FAILURE
    assert finding.remedies[0].step is Step.DRIVER
    assert commands(finding) == "sudo apt-get install nvidia-driver-580-open"
    assert finding.remedies[0].certainty is Certainty.UNCERTAIN


def test_a_second_card_held_by_nouveau_does_not_stop_training() -> None:
    base = recorded("rtx3060")
    other = PciGpu(bus_id="0000:09:00.0", device_id="1b38", kernel_driver="nouveau")
    finding = found(check_gpu, replace(base, pci_gpus=(*(base.pci_gpus or ()), other)))["gpu.nouveau"]
    assert finding.severity is Severity.WARNING
    assert "Tesla P40 at PCI 0000:09:00.0" in finding.what


def test_a_card_set_aside_for_a_guest_is_a_warning_or_fine_beside_another() -> None:
    alone = recorded("rtx3090_vfio")
    guest = PciGpu(bus_id="0000:09:00.0", device_id="1b38", kernel_driver="vfio-pci")
    with_guest = replace(recorded("rtx3060"), pci_gpus=(guest,))
    assert found(check_gpu, alone)["gpu.reserved"].severity is Severity.WARNING
    assert found(check_gpu, with_guest)["gpu.reserved"].severity is Severity.OK


def test_a_card_that_a_fitting_driver_does_not_list_points_to_its_address_space() -> None:
    """The entry `bar1` of the table of errors: a Tesla P40 without `Above 4G decoding`."""
    machine = replace(
        without_cards(recorded("p40_r580")),
        pci_gpus=(PciGpu(bus_id="0000:01:00.0", device_id="1b38", kernel_driver=None),),
    )
    finding = found(check_gpu, machine)["gpu.refused"]
    assert finding.severity is Severity.FAILURE
    assert any("Above 4G decoding" in remedy.what for remedy in finding.remedies)


def test_cards_hidden_on_purpose_are_named_and_quiet_while_one_is_left() -> None:
    finding = found(check_gpu, recorded("visible_second"))["gpu.hidden"]
    assert finding.severity is Severity.OK
    assert "NVIDIA GeForce RTX 3090" in finding.what


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "none", " "])
def test_hiding_every_card_is_a_warning_that_names_them(value: str) -> None:
    machine = hiding(value, cards=two_cards(), picked=())
    finding = found(check_gpu, machine)["gpu.all_hidden"]
    assert finding.severity is Severity.WARNING
    assert finding.what == f"CUDA_VISIBLE_DEVICES=`{value}` hides every GPU: 2 × NVIDIA GeForce RTX 3090"
    assert commands(finding) == "unset CUDA_VISIBLE_DEVICES"
    assert found(check_visible_devices, machine)["visible_devices.none"].severity is Severity.OK


def test_a_value_that_cuda_cannot_read_is_told_once() -> None:
    machine = recorded("visible_garbage")
    assert "gpu.all_hidden" not in found(check_gpu, machine)
    assert "see `visible_devices.unmatched`" in found(check_gpu, machine)["gpu.none"].what


def test_a_prohibited_card_is_given_back_by_one_command() -> None:
    finding = found(check_gpu, recorded("rtx3090_prohibited"))["gpu.prohibited"]
    assert finding.severity is Severity.FAILURE
    assert commands(finding) == "sudo nvidia-smi -i GPU-11111111-2222-3333-4444-555555555555 -c DEFAULT"


def test_a_hidden_prohibited_card_is_a_warning_beside_one_that_works() -> None:
    first, second = two_cards()
    machine = hiding(None, cards=(first, replace(second, compute_mode="prohibited")), picked=(0,))
    findings = found(check_gpu, machine)
    assert findings["gpu.prohibited"].severity is Severity.WARNING
    assert "gpu.not_shown" not in findings


def test_an_exclusive_card_is_a_note_until_somebody_holds_it() -> None:
    free = changed(recorded("rtx3090"), compute_mode="exclusive_process", processes=())
    held = changed(free, processes=(Process(pid=977, name="python"),))
    assert found(check_gpu, free)["gpu.exclusive"].severity is Severity.NOTE
    assert found(check_gpu, held)["gpu.taken"].severity is Severity.FAILURE
    assert "process 977" in found(check_gpu, held)["gpu.taken"].what
    drawing = changed(free, processes=(Process(pid=12, name="/usr/lib/xorg/Xorg"),))
    assert "gpu.exclusive" in found(check_gpu, drawing)
    assert "kill" not in commands(found(check_gpu, held)["gpu.taken"])


def test_cuda_showing_fewer_cards_than_nvml_for_no_reason_is_said() -> None:
    finding = found(check_gpu, hiding(None, cards=two_cards(), picked=(0,)))["gpu.not_shown"]
    assert finding.severity is Severity.WARNING
    assert found(check_gpu, hiding(None, cards=two_cards(), picked=()))["gpu.not_shown"].severity is Severity.FAILURE


def test_closed_device_files_name_the_group_to_join() -> None:
    finding = found(check_gpu, recorded("rtx3060_no_permission"))["gpu.nodes_closed"]
    assert finding.severity is Severity.FAILURE
    assert 'sudo usermod -aG video,render "$USER"' in commands(finding)


def test_files_of_cards_that_a_scheduler_gave_to_others_are_no_finding() -> None:
    machine = driven(recorded("rtx3090"), closed_device_nodes=("/dev/nvidia1",))
    assert set(found(check_gpu, machine)) == {"gpu.visible"}


def test_a_container_without_gpus_is_told_how_to_be_started() -> None:
    finding = found(check_gpu, recorded("docker_without_gpus"))["gpu.not_in_container"]
    assert finding.severity is Severity.FAILURE
    assert commands(finding) == "docker run --gpus all IMAGE"
    assert finding.remedies[0].certainty is Certainty.PLACEHOLDER


@pytest.mark.parametrize(("kind", "words"), [("podman", "nvidia.com/gpu=all"), ("lxc", "lxc config device add")])
def test_each_kind_of_container_has_its_own_command(kind: str, words: str) -> None:
    base = recorded("docker_without_gpus")
    machine = replace(base, host=replace(base.host, container=kind))
    assert words in commands(found(check_gpu, machine)["gpu.not_in_container"])


def test_a_pod_asks_for_the_card_in_its_limits() -> None:
    base = recorded("docker_without_gpus")
    machine = replace(base, host=replace(base.host, container="kubernetes"))
    (remedy,) = found(check_gpu, machine)["gpu.not_in_container"].remedies
    assert "nvidia.com/gpu: 1" in remedy.what
    assert remedy.commands == ()


@pytest.mark.parametrize("value", ["void", "none"])
def test_a_container_that_was_given_no_gpu_on_purpose_is_a_warning(value: str) -> None:
    machine = replace(recorded("docker_without_gpus"), environment={"NVIDIA_VISIBLE_DEVICES": value})
    finding = found(check_gpu, machine)["gpu.not_given"]
    assert finding.severity is Severity.WARNING
    assert f"NVIDIA_VISIBLE_DEVICES=`{value}`" in finding.what


def test_cards_of_the_host_that_a_container_was_not_given_are_no_finding() -> None:
    base = recorded("docker_a10")
    other = PciGpu(bus_id="0000:99:00.0", device_id="1b38", kernel_driver="nvidia")
    assert set(found(check_gpu, replace(base, pci_gpus=(*(base.pci_gpus or ()), other)))) == {"gpu.visible"}


def test_missing_device_files_are_made_by_nvidias_helper() -> None:
    machine = without_cards(recorded("rtx3090"), device_nodes=(), nvml_error="Driver Not Loaded")
    assert commands(found(check_gpu, machine)["gpu.no_nodes"]) == "sudo nvidia-modprobe -c 0 -u"


@pytest.mark.parametrize(
    "said",
    [
        "NVML cannot read GPU 1: GPU is lost",
        "NVML cannot read GPU 1: Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error",
        "NVML cannot read GPU 1: GPU has fallen off the bus",
    ],
)
def test_a_lost_card_is_a_warning_beside_one_that_works(said: str) -> None:
    finding = found(check_gpu, replace(recorded("rtx3090"), warnings=(said,)))["gpu.lost"]
    assert finding.severity is Severity.WARNING
    assert said in finding.what


def test_the_only_card_lost_is_a_failure() -> None:
    machine = without_cards(recorded("p40"), nvml_error="GPU is lost")
    assert found(check_gpu, machine)["gpu.lost"].severity is Severity.FAILURE


def test_a_driver_that_hangs_is_a_failure() -> None:
    machine = without_cards(recorded("p40"), nvml_error="NVML gave no answer within 5 s")
    finding = found(check_gpu, machine)["gpu.hung"]
    assert finding.severity is Severity.FAILURE
    assert "no answer within 5 s" in finding.what


def test_a_card_out_of_reach_for_an_unknown_reason_is_a_failure() -> None:
    machine = without_cards(recorded("rtx3090"), nvml_error="Uninitialized")
    finding = found(check_gpu, machine)["gpu.unreachable"]
    assert finding.severity is Severity.FAILURE
    assert not missing(finding.what, "NVIDIA GeForce RTX 3090", "Uninitialized")


@pytest.mark.parametrize("name", ["rtx3060_no_driver", "p40_r590_driver", "p40_open_module", "a100_mig_without_slices"])
def test_a_cause_that_another_check_explains_is_only_referred_to(name: str) -> None:
    findings = found(check_gpu, recorded(name))
    assert list(findings) == ["gpu.none"]
    assert "see `" in findings["gpu.none"].what


def test_an_emulated_card_is_named_and_nothing_else_is_asked() -> None:
    machine = replace(recorded("visible_garbage"), emulated="Tesla P40")
    assert set(found(check_gpu, machine)) == {"gpu.emulated"}
    assert found(check_visible_devices, machine) == {}


@pytest.mark.parametrize("name", ["visible_by_uuid", "visible_by_uuid_prefix", "visible_second"])
def test_a_uuid_or_its_beginning_picks_one_card(name: str) -> None:
    """A-ENV-04."""
    finding = found(check_visible_devices, recorded(name))["visible_devices.understood"]
    assert finding.severity is Severity.OK
    assert "leaves cuda:0 NVIDIA GeForce RTX 3090" in finding.what


@pytest.mark.parametrize(
    ("value", "picked", "case", "remedy"),
    [
        ("2", (), "out_of_range", "unset CUDA_VISIBLE_DEVICES"),
        ("0,5", (0,), "out_of_range", "export CUDA_VISIBLE_DEVICES=0"),
        ("cuda:0", (), "unmatched", "export CUDA_VISIBLE_DEVICES=0"),
        ('"0,1"', (), "unmatched", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("[1]", (), "unmatched", "export CUDA_VISIBLE_DEVICES=1"),
        ("all", (), "unmatched", "unset CUDA_VISIBLE_DEVICES"),
        ("GPU-9", (), "uuid_gone", "unset CUDA_VISIBLE_DEVICES"),
        ("GPU-", (), "uuid_gone", "unset CUDA_VISIBLE_DEVICES"),
        ("MIG-81111111-2222", (), "slice_gone", "unset CUDA_VISIBLE_DEVICES"),
        ("0,0", (), "repeated", "export CUDA_VISIBLE_DEVICES=0"),
        (f"1,{SECOND}", (), "repeated", "unset CUDA_VISIBLE_DEVICES"),
        ("0,,1", (0,), "empty_entry", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("0 1", (0,), "half_read", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("0;1", (0,), "half_read", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("0-1", (0,), "half_read", "export CUDA_VISIBLE_DEVICES=0,1"),
    ],
)
def test_an_entry_that_cuda_cannot_place_is_named_with_what_to_write(
    value: str, picked: tuple[int, ...], case: str, remedy: str
) -> None:
    finding = told(value, picked)[f"visible_devices.{case}"]
    assert finding.severity is (Severity.WARNING if picked else Severity.FAILURE)
    assert f"`{value}`" in finding.what
    assert finding.remedies[0].commands == (remedy,)


@pytest.mark.parametrize("value", ["0", "1,0", " 1 , 0 ", "0,", "0,-1,1", SECOND, "gpu-2111"])
def test_what_cuda_understands_is_fine(value: str) -> None:
    picked = {"0": (0,), "0,": (0,), "0,-1,1": (0,), SECOND: (1,), "gpu-2111": (1,)}.get(value, (1, 0))
    assert set(told(value, picked)) == {"visible_devices.understood"}


def test_an_ambiguous_beginning_is_named() -> None:
    first, second = two_cards()
    cards = (replace(first, uuid="GPU-aa11"), replace(second, uuid="GPU-aa22"))
    machine = hiding("GPU-aa", cards=cards, picked=())
    assert "visible_devices.ambiguous" in found(check_visible_devices, machine)


def test_a_mig_slice_by_name_is_fine_and_one_beside_another_device_is_not() -> None:
    base = recorded("a100_mig_3g20gb")
    value = base.environment["CUDA_VISIBLE_DEVICES"]
    assert set(found(check_visible_devices, base)) == {"visible_devices.understood"}
    whole = replace(two_cards()[0], uuid="GPU-99", nvml_index=1)
    both = replace(base, hidden_devices=(whole,), environment={"CUDA_VISIBLE_DEVICES": f"{value},GPU-99"})
    finding = found(check_visible_devices, both)["visible_devices.beside_a_slice"]
    assert finding.remedies[0].commands == (f"export CUDA_VISIBLE_DEVICES={value}",)


def test_without_nvml_only_the_number_of_entries_is_compared() -> None:
    base = recorded("wsl_rtx3070")
    one = replace(base, environment={"CUDA_VISIBLE_DEVICES": "0"})
    two = replace(base, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert set(found(check_visible_devices, one)) == {"visible_devices.understood"}
    assert found(check_visible_devices, two)["visible_devices.fewer"].severity is Severity.WARNING


def test_a_variable_on_a_machine_without_a_card_is_no_finding() -> None:
    machine = replace(recorded("laptop_no_gpu"), environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert found(check_visible_devices, machine) == {}


def test_an_order_that_cuda_does_not_know_is_a_warning() -> None:
    machine = replace(recorded("rtx3090"), environment={"CUDA_DEVICE_ORDER": "PCI"})
    finding = found(check_visible_devices, machine)["visible_devices.unknown_order"]
    assert commands(finding) == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"


def test_numbers_of_different_cards_are_open_when_their_order_is_a_guess() -> None:
    base = recorded("mixed_t400_rtx4090")
    guessed = tuple(replace(device, sources={**device.sources, "name": "nvml"}) for device in base.devices)
    machine = replace(base, devices=guessed, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "visible_devices.order_open" in found(check_visible_devices, machine)
    by_bus = replace(machine, environment={"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert "visible_devices.order_open" not in found(check_visible_devices, by_bus)


def test_a_recording_without_the_newer_facts_is_not_guessed_about() -> None:
    base = recorded("rtx3090")
    old = replace(base, pci_gpus=None, driver=Driver(version="580.95.05", cuda_version="13.0"))
    assert set(found(check_gpu, old)) == {"gpu.visible"}


def amd_machine(**torch: Any) -> Hardware:
    """What a ROCm build of torch shows: a card under CUDA's names, without NVML or an NVIDIA card on the bus."""
    card = replace(recorded("h100").devices[0], name="AMD Instinct MI210", sources={"name": "cuda"}, uuid=None)
    build = TorchBuild(version="2.9.1+rocm6.4", **torch)
    base = recorded("ci_no_gpu")
    software = replace(base.software, torch=build, packages={**base.software.packages, "torch": build.version})
    return replace(base, devices=(card,), software=software, environment={"HIP_VISIBLE_DEVICES": "0"})


def test_an_amd_card_is_named_and_nothing_of_cuda_is_recommended() -> None:
    hardware = set_apart_other_vendors(amd_machine(cuda_available=True))

    findings = findings_of(run_checks(CHECKS, hardware))
    by_id = {finding.id: finding for finding in findings}

    assert (hardware.devices, hardware.other_gpus) == ((), ("AMD Instinct MI210",))
    assert "AMD Instinct MI210" in by_id["gpu.other_vendor"].what
    assert "2.9.1+rocm6.4" in by_id["torch.other_vendor"].what
    assert not [finding for finding in findings if finding.severity >= Severity.WARNING]
    assert "cu13" not in str(findings)
    assert "cu12" not in str(findings)
    assert judge(hardware).profile == "cpu"


def test_a_recording_of_an_amd_card_is_read_the_same_way(tmp_path: Path) -> None:
    save_recording(amd_machine(cuda_available=True), tmp_path / "amd.json")

    loaded = load_recording(tmp_path / "amd.json")

    assert (loaded.devices, loaded.other_gpus) == ((), ("AMD Instinct MI210",))


def test_a_rocm_build_with_an_nvidia_card_is_replaced() -> None:
    base = recorded("rtx3090")
    build = TorchBuild(version="2.9.1+rocm6.4", cuda_error="RuntimeError: No HIP GPUs are available")
    hardware = set_apart_other_vendors(replace(base, software=replace(base.software, torch=build)))

    findings = {finding.id: finding for finding in findings_of(run_checks(CHECKS, hardware))}

    assert hardware.devices == base.devices
    assert findings["torch.other_build"].severity is Severity.FAILURE


def test_the_variables_of_rocm_select_no_nvidia_card() -> None:
    hardware = replace(recorded("rtx3090"), environment={"HIP_VISIBLE_DEVICES": "1"})

    assert "environment.hip_not_read" in {finding.id for finding in findings_of(run_checks(CHECKS, hardware))}


def with_health(*healths: MemoryHealth | None, xids: tuple[Xid, ...] = ()) -> Hardware:
    base = recorded("rtx4090_two")
    devices = tuple(replace(device, memory_health=it) for device, it in zip(base.devices, healths, strict=True))
    return replace(base, devices=devices, driver=replace(base.driver, xids=xids))


@pytest.mark.parametrize(
    ("health", "severity", "part"),
    [
        (MemoryHealth(uncorrected_errors=2, retired_pages=1), Severity.WARNING, "2 uncorrected"),
        (MemoryHealth(uncorrected_errors=0, retired_pages=3, repair_pending=True), Severity.WARNING, "3 retired"),
        (MemoryHealth(uncorrected_errors=0, retired_pages=64), Severity.WARNING, "64 retired"),
        (MemoryHealth(repair_failed=True), Severity.WARNING, "cuda:0"),
        (MemoryHealth(uncorrected_errors=0, retired_pages=3), Severity.NOTE, "3 retired"),
        (MemoryHealth(uncorrected_errors=0, retired_pages=0), None, ""),
        (None, None, ""),
    ],
)
def test_a_card_with_memory_errors_is_named_and_avoided(health, severity, part) -> None:
    hardware = with_health(health, MemoryHealth(uncorrected_errors=0, retired_pages=0))

    finding = found(check_gpu, hardware).get("gpu.memory_errors")

    assert (finding and finding.severity) == severity
    if finding is not None and severity is Severity.WARNING:
        assert part in finding.what
        assert finding.remedies[0].commands == (f"export CUDA_VISIBLE_DEVICES={hardware.devices[1].uuid}",)


def test_a_card_with_an_error_in_the_kernel_log_is_named_and_avoided() -> None:
    bus = (with_health(None, None).devices[1].pci_bus_id or "").removeprefix("0000").partition(".")[0]
    hardware = with_health(None, None, xids=(Xid(bus_id=bus, number=79), Xid(bus_id="0000:ff:00", number=48)))

    finding = found(check_gpu, hardware)["gpu.xid"]

    assert (finding.severity, finding.affects) == (Severity.WARNING, ("cuda:1", "training"))
    assert "Xid 79" in finding.what
    assert finding.remedies[0].commands == (f"export CUDA_VISIBLE_DEVICES={hardware.devices[0].uuid}",)


def test_an_error_of_a_program_is_no_error_of_the_card() -> None:
    bus = (with_health(None, None).devices[1].pci_bus_id or "").removeprefix("0000").partition(".")[0]

    assert "gpu.xid" not in found(check_gpu, with_health(None, None, xids=(Xid(bus_id=bus, number=31),)))


@pytest.mark.parametrize("error", ["GPU is lost", "Unknown Error", "Insufficient Permissions", "GPU requires reset"])
def test_a_card_that_nvml_cannot_read_is_named_while_the_others_work(error: str) -> None:
    hardware = replace(recorded("rtx3090"), warnings=(f"NVML cannot read GPU 1: {error}",))

    findings = [finding for finding in check_gpu(hardware) if finding.severity >= Severity.WARNING]

    assert [finding.severity for finding in findings] == [Severity.WARNING]
    assert error in findings[0].what


@pytest.mark.parametrize("nvml_error", [None, "Unknown Error"])
@pytest.mark.parametrize("slices", [None, 0, 2])
def test_two_names_of_slices_give_one_slice_whatever_nvml_lists(slices: int | None, nvml_error: str | None) -> None:
    base = recorded("a100_mig_3g20gb")
    (device,) = base.devices
    hardware = replace(
        base,
        devices=(replace(device, mig_slices=slices),),
        driver=replace(base.driver, nvml_error=nvml_error),
        environment={"CUDA_VISIBLE_DEVICES": f"{device.uuid},MIG-91111111-2222-3333-4444-555555555555"},
    )

    finding = found(check_visible_devices, hardware)["visible_devices.beside_a_slice"]

    assert finding.remedies[0].commands == (f"export CUDA_VISIBLE_DEVICES={device.uuid}",)
    assert found(check_mig, hardware)["mig.one_slice"].severity is Severity.NOTE


def test_a_gpu_with_one_slice_needs_no_note() -> None:
    base = recorded("a100_mig_3g20gb")

    assert "mig.one_slice" not in found(check_mig, replace(base, devices=(replace(base.devices[0], mig_slices=1),)))
