"""The memory of the cards, who holds it, the way into it, and MIG slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.cards.memory import check_device_memory, check_mig, share_of
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.hardware.types import Hardware, Process
from rl_compat.units import GIB, MIB


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def changed(hardware: Hardware, **facts: object) -> Hardware:
    """The machine with its first card changed."""
    return replace(hardware, devices=(replace(hardware.devices[0], **facts), *hardware.devices[1:]))  # type: ignore[arg-type]


def using(hardware: Hardware, used_bytes: int, *processes: Process) -> Hardware:
    """The machine with that much of its first card in use."""
    total = hardware.devices[0].memory_total_bytes
    return changed(hardware, memory_free_bytes=total - used_bytes, processes=processes)


def memory(hardware: Hardware) -> dict[str, Finding]:
    return found(check_device_memory, hardware)


def test_free_memory_is_fine_and_told_with_its_total() -> None:
    finding = memory(recorded("p40"))["device_memory.free"]
    assert finding.severity is Severity.OK
    assert finding.what == "cuda:0 has 22.4 GiB free of 22.5 GiB"


def test_no_card_has_no_memory() -> None:
    assert [*check_device_memory(recorded("laptop_no_gpu")), *check_mig(recorded("laptop_no_gpu"))] == []


def test_a_card_held_by_somebody_else_is_a_warning_with_process_and_amount() -> None:
    """A-ENV-14: nothing is ever killed."""
    finding = memory(recorded("rtx3090_shared"))["device_memory.held"]
    assert finding.severity is Severity.WARNING
    assert not missing(finding.what, "3.0 GiB free of 24.0 GiB", "process 4321 (python)", "20.5 GiB")
    assert commands(finding) == "ps -o pid,user,etime,args -p 4321"


def test_another_card_with_room_comes_first_among_the_remedies() -> None:
    base = recorded("rtx4090_two")
    held = using(base, 20 * GIB, Process(pid=7, used_bytes=20 * GIB))
    finding = memory(held)["device_memory.held"]
    assert finding.remedies[0].commands == (f"export CUDA_VISIBLE_DEVICES={base.devices[1].uuid}",)
    assert memory(held)["device_memory.free"].what.startswith("cuda:1 ")


def test_no_remedy_kills_anything() -> None:
    machines = [recorded("rtx3090_shared"), using(recorded("docker_a10"), 12 * GIB, Process(pid=9))]
    assert not any("kill" in commands(finding) for machine in machines for finding in check_device_memory(machine))


def test_a_process_whose_amount_is_not_known_says_so() -> None:
    finding = memory(using(recorded("rtx3090"), 12 * GIB, Process(pid=9)))["device_memory.held"]
    assert "process 9 " in finding.what


@pytest.mark.parametrize(("used", "severity"), [(1500 * MIB, None), (4 * GIB, Severity.OK), (8 * GIB, Severity.NOTE)])
def test_a_desktop_is_noted_when_it_takes_much(used: int, severity: Severity | None) -> None:
    desktop = Process(pid=1200, name="/usr/lib/xorg/Xorg", used_bytes=used)
    finding = memory(using(recorded("rtx3090"), used, desktop)).get("device_memory.display")
    assert (finding and finding.severity) == severity


@pytest.mark.parametrize(("used", "severity"), [(3 * GIB, Severity.OK), (12 * GIB, Severity.WARNING)])
def test_memory_that_nobody_is_seen_to_hold_is_told(used: int, severity: Severity) -> None:
    machine = using(recorded("docker_a10"), used)
    finding = memory(machine)["device_memory.in_use"]
    assert finding.severity is severity
    assert "outside this container" in finding.what
    assert (
        "unknown" in memory(changed(using(recorded("rtx3090"), 12 * GIB), processes=None))["device_memory.in_use"].what
    )


def test_what_windows_draws_with_is_no_alarm_under_wsl() -> None:
    finding = memory(recorded("wsl_rtx3070"))["device_memory.in_use"]
    assert finding.severity is Severity.OK
    assert "Windows" in finding.what


def test_free_memory_that_nobody_could_read_is_a_note() -> None:
    base = recorded("rtx3090")
    machine = changed(base, sources={**base.devices[0].sources, "memory_free_bytes": "rule"})
    assert memory(machine)["device_memory.free_unknown"].severity is Severity.NOTE


def test_a_card_below_4_gib_is_a_warning_unless_a_larger_one_is_there() -> None:
    small = changed(recorded("gtx1660"), memory_total_bytes=2 * GIB, memory_free_bytes=2 * GIB)
    small_second = changed(recorded("mixed_t400_rtx4090"), memory_total_bytes=2 * GIB, memory_free_bytes=2 * GIB)
    larger = replace(small_second.devices[1], memory_total_bytes=24 * GIB, memory_free_bytes=24 * GIB)
    assert memory(small)["device_memory.small"].severity is Severity.WARNING
    assert (
        memory(replace(small_second, devices=(small_second.devices[0], larger)))["device_memory.small"].severity
        is Severity.OK
    )
    assert "device_memory.small" not in memory(recorded("gtx1660"))


def test_cuda_and_nvml_disagreeing_on_the_total_is_a_note_with_both() -> None:
    finding = memory(changed(recorded("rtx4090"), nvml_memory_total_bytes=48 * GIB))["device_memory.disagreement"]
    assert finding.severity is Severity.NOTE
    assert not missing(finding.what, "24.0 GiB", "48.0 GiB")


@pytest.mark.parametrize(("width", "told"), [(16, False), (8, False), (4, True), (1, True)])
def test_few_lanes_are_a_note_for_one_card_and_a_warning_for_several(width: int, told: bool) -> None:
    one = changed(recorded("p40"), pcie_width=width, pcie_width_max=16)
    two = changed(recorded("p40_two"), pcie_width=width, pcie_width_max=16)
    assert ("device_memory.pcie_lanes" in memory(one)) == told
    if told:
        assert memory(one)["device_memory.pcie_lanes"].severity is Severity.NOTE
        assert memory(two)["device_memory.pcie_lanes"].severity is Severity.WARNING
        assert f"{width} of 16 PCIe lanes" in memory(one)["device_memory.pcie_lanes"].what


def test_a_small_window_is_noted_for_data_centre_cards_among_several() -> None:
    finding = memory(changed(recorded("p40_two"), bar1_total_bytes=256 * MIB))["device_memory.bar1"]
    assert finding.severity is Severity.NOTE
    assert "256.0 MiB" in finding.what
    assert "Above 4G decoding" in finding.remedies[0].what
    assert "device_memory.bar1" not in memory(changed(recorded("p40_two"), bar1_total_bytes=32 * GIB))
    assert "device_memory.bar1" not in memory(changed(recorded("p40"), bar1_total_bytes=256 * MIB))
    assert "device_memory.bar1" not in memory(changed(recorded("rtx4090_two"), bar1_total_bytes=256 * MIB))


def test_a_recording_without_lanes_and_window_says_nothing_of_them() -> None:
    machine = changed(recorded("p40_two"), pcie_width=None, pcie_width_max=None, bar1_total_bytes=None)
    assert set(memory(machine)) == {"device_memory.free"}


def test_a_slice_is_told_with_its_share() -> None:
    findings = found(check_mig, recorded("a100_mig_3g20gb"))
    values = ("cuda:0", "`3g.20gb`", "`NVIDIA A100-SXM4-40GB`", "3 of 7", "19.5 GiB")
    assert not missing(findings["mig.slice"].what, *values)
    assert "NCCL" in findings["mig.one_slice"].why


@pytest.mark.parametrize(
    ("name", "profile", "share"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "1g.10gb", "1 of 7"),
        ("NVIDIA A30", "2g.12gb", "2 of 4"),
        ("NVIDIA Unheard", "2g.12gb", None),
        ("NVIDIA A30", "slice", None),
    ],
)
def test_the_share_of_a_profile_is_that_of_its_gpu(name: str, profile: str, share: str | None) -> None:
    assert share_of(name, profile) == share


def test_mig_mode_without_a_slice_leaves_no_gpu() -> None:
    finding = found(check_mig, recorded("a100_mig_without_slices"))["mig.no_slices"]
    assert finding.severity is Severity.FAILURE
    assert finding.remedies[0].commands == ("sudo nvidia-smi -i 0 -mig 0",)
    assert finding.remedies[1].commands == ("sudo nvidia-smi mig -i 0 -cgi 7g.40gb -C",)


def test_mig_mode_without_a_slice_beside_a_gpu_is_a_warning_and_the_hosts_business_in_a_container() -> None:
    base, other = recorded("a100_mig_without_slices"), recorded("a100_40gb")
    machine = replace(base, devices=other.devices, host=replace(base.host, container="docker"))
    finding = found(check_mig, machine)["mig.no_slices"]
    assert finding.severity is Severity.WARNING
    assert commands(finding) == ""


def test_slices_that_cuda_does_not_show_are_chosen_by_name() -> None:
    other = replace(recorded("a100_mig_without_slices").hidden_devices[0], mig_slices=3)
    machine = replace(recorded("a100_40gb"), hidden_devices=(other,))
    assert "CUDA_VISIBLE_DEVICES=MIG-" in found(check_mig, machine)["mig.unused_slices"].why


def test_memory_of_other_slices_is_not_counted_against_a_slice() -> None:
    machine = using(recorded("a100_mig_3g20gb"), 10 * GIB, Process(pid=3, used_bytes=10 * GIB))
    assert set(memory(machine)) == {"device_memory.free"}
