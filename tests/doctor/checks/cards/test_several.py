"""Cards of different kinds, their numbering, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.cards.several import check_links, check_mixed_devices, check_nccl
from rl_compat.doctor.checks.cards.visible_devices import check_device_order
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.hardware.types import Hardware, Link
from rl_compat.units import GIB

SEVERAL = (check_mixed_devices, check_device_order, check_links, check_nccl)


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def linked(hardware: Hardware, kind: str, *, peer_access: bool) -> Hardware:
    return replace(hardware, links=(Link(first=0, second=1, kind=kind, peer_access=peer_access),))


def together(*names: str) -> Hardware:
    """The first machine with the first card of each."""
    machines = [recorded(name) for name in names]
    devices = tuple(
        replace(machine.devices[0], index=index, nvml_index=index, uuid=f"GPU-{index}")
        for index, machine in enumerate(machines)
    )
    return replace(machines[0], devices=devices)


@pytest.mark.parametrize("name", ["p40", "laptop_no_gpu", "a100_mig_3g20gb"])
def test_one_card_or_none_has_no_others(name: str) -> None:
    assert [finding for check in SEVERAL for finding in check(recorded(name))] == []


@pytest.mark.parametrize("name", ["h100_eight", "v100_four_nvlink", "p40_two", "rtx4090_two"])
def test_cards_alike_are_fine(name: str) -> None:
    findings = [finding for check in SEVERAL for finding in check(recorded(name))]
    assert max(finding.severity for finding in findings) is Severity.OK
    assert found(check_mixed_devices, recorded(name)) == {}


def test_the_weakest_card_decides_and_what_that_costs_is_told() -> None:
    finding = found(check_mixed_devices, recorded("mixed_p40_a100"))["mixed_devices.capabilities"]
    assert finding.severity is Severity.NOTE
    assert not missing(finding.why, "bf16, flash attention, Triton and torch.compile", "Tesla P40")
    assert commands(finding) == f"export CUDA_VISIBLE_DEVICES={recorded('mixed_p40_a100').devices[0].uuid}"


def test_a_t4_beside_an_a100_costs_bf16_and_flash_attention_but_not_triton() -> None:
    """A-ENV-11, variant."""
    finding = found(check_mixed_devices, recorded("mixed_a100_t4_flash_attn"))["mixed_devices.capabilities"]
    assert not missing(finding.why, "without bf16, flash attention,", "Tesla T4")


def test_one_build_of_torch_for_both_cards_is_fine() -> None:
    finding = found(check_mixed_devices, recorded("mixed_p40_a100"))["mixed_devices.one_build"]
    assert finding.severity is Severity.OK
    assert "torch 2.14.1+cu126" in finding.what


def test_cards_that_no_one_build_serves_are_named() -> None:
    machine = together("rtx5090", "p40_r580")
    finding = found(check_mixed_devices, machine)["mixed_devices.no_common_build"]
    assert finding.severity is Severity.WARNING
    assert "NVIDIA GeForce RTX 5090" in finding.what
    assert commands(finding) == "export CUDA_VISIBLE_DEVICES=GPU-1"


def test_different_memory_alone_is_only_told() -> None:
    findings = found(check_mixed_devices, together("a100", "a100_40gb"))
    assert set(findings) == {"mixed_devices.memories"}
    assert findings["mixed_devices.memories"].severity is Severity.OK


def test_a_weaker_first_card_is_a_warning_since_a_run_takes_it() -> None:
    finding = found(check_mixed_devices, together("a100_40gb", "a100"))["mixed_devices.weaker_first"]
    assert finding.severity is Severity.WARNING
    assert commands(finding) == "export CUDA_VISIBLE_DEVICES=GPU-1"


def test_an_older_first_card_with_more_memory_is_nobodys_mistake() -> None:
    assert "mixed_devices.weaker_first" not in found(check_mixed_devices, together("p40", "rtx3060"))


def test_numbers_that_differ_are_a_warning_and_the_remedy_keeps_the_first_card() -> None:
    """A-ENV-05."""
    finding = found(check_device_order, recorded("mixed_t400_rtx4090"))["device_order.differs"]
    assert finding.severity is Severity.WARNING
    assert "cuda:0 `NVIDIA GeForce RTX 4090` is 1 there, cuda:1 `NVIDIA T400 4GB` is 0 there" in finding.what
    assert finding.remedies[0].commands == ("export CUDA_DEVICE_ORDER=PCI_BUS_ID", "export CUDA_VISIBLE_DEVICES=1,0")


def test_a_number_that_is_another_card_in_nvidia_smi_is_a_warning() -> None:
    """A-ENV-05: nvidia-smi's 0 is the display card, CUDA's 0 the big one."""
    base = recorded("mixed_t400_rtx4090")
    machine = replace(
        base,
        devices=base.devices[:1],
        hidden_devices=base.devices[1:],
        environment={"CUDA_VISIBLE_DEVICES": "0"},
    )
    finding = found(check_device_order, machine)["device_order.another_card"]
    assert finding.severity is Severity.WARNING
    assert not missing(finding.what, "0 is `NVIDIA GeForce RTX 4090`", "nvidia-smi numbers 1")
    assert commands(finding).startswith("export CUDA_DEVICE_ORDER=PCI_BUS_ID")


@pytest.mark.parametrize("value", ["1,0", "GPU-21111111-2222-3333-4444-555555555555,0"])
def test_an_order_that_was_asked_for_is_fine(value: str) -> None:
    base = recorded("mixed_t400_rtx4090")
    machine = replace(base, environment={"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert found(check_device_order, machine)["device_order.agrees"].severity is Severity.OK


def test_an_order_that_nvml_does_not_tell_is_not_guessed() -> None:
    base = recorded("mixed_t400_rtx4090")
    unknown = tuple(replace(device, nvml_index=None) for device in base.devices)
    assert found(check_device_order, replace(base, devices=unknown)) == {}


def test_the_way_between_cards_is_told() -> None:
    finding = found(check_links, recorded("h100_eight"))["links.topology"]
    assert not missing(finding.what, "28 pairs", "NVLink", "28 of 28")


def test_geforce_cards_without_peer_access_are_as_they_are_made() -> None:
    finding = found(check_links, recorded("rtx4090_two"))["links.no_peer_access"]
    assert (finding.severity, finding.remedies) == (Severity.OK, ())


def test_data_centre_cards_without_peer_access_are_a_note() -> None:
    finding = found(check_links, linked(recorded("p40_two"), "system", peer_access=False))["links.no_peer_access"]
    assert finding.severity is Severity.NOTE


def test_peer_access_that_a_geforce_cannot_have_is_a_warning_unless_nccl_is_told() -> None:
    machine = linked(recorded("rtx4090_two"), "pcie_host_bridge", peer_access=True)
    told = replace(machine, environment={"NCCL_P2P_DISABLE": "1"})
    finding = found(check_links, machine)["links.doubtful_peer_access"]
    assert finding.severity is Severity.WARNING
    assert commands(finding) == "export NCCL_P2P_DISABLE=1"
    assert set(found(check_links, told)) == {"links.topology"}


def test_a_way_that_is_switched_off_is_a_note_where_it_would_work() -> None:
    off = {"NCCL_P2P_DISABLE": "1"}
    nvlink = replace(recorded("v100_four_nvlink"), environment=off)
    assert found(check_links, nvlink)["links.switched_off"].severity is Severity.NOTE
    assert commands(found(check_links, nvlink)["links.switched_off"]) == "unset NCCL_P2P_DISABLE"
    assert "links.switched_off" not in found(check_links, replace(recorded("rtx4090_two"), environment=off))
    sockets = replace(recorded("rtx4090_two"), environment={"NCCL_SHM_DISABLE": "1"})
    assert "network sockets" in found(check_links, sockets)["links.switched_off"].why


@pytest.mark.parametrize("value", ["0", ""])
def test_a_variable_that_is_zero_switches_nothing_off(value: str) -> None:
    machine = replace(recorded("v100_four_nvlink"), environment={"NCCL_P2P_DISABLE": value})
    assert "links.switched_off" not in found(check_links, machine)


def test_unknown_links_are_not_guessed() -> None:
    assert found(check_links, replace(recorded("p40_two"), links=())) == {}


def test_nccl_without_code_for_maxwell_leaves_one_card() -> None:
    machine = together("gtx980ti", "gtx980ti")
    packages = {**machine.software.packages, "nvidia-nccl-cu12": "2.29.3"}
    finding = found(check_nccl, replace(machine, software=replace(machine.software, packages=packages)))["nccl.no_code"]
    assert finding.severity is Severity.WARNING
    assert not missing(finding.what, "NCCL 2.29.3", "2 × NVIDIA GeForce GTX 980 Ti (compute capability 5.2)")


@pytest.mark.parametrize(("version", "case"), [("2.21.5", "has_code"), ("2.29.3", "no_code"), ("9.0.0", None)])
def test_nccl_is_judged_by_the_table_and_a_newer_one_is_not(version: str, case: str | None) -> None:
    machine = together("gtx980ti", "gtx980ti")
    packages = {**machine.software.packages, "nvidia-nccl-cu12": version}
    findings = found(check_nccl, replace(machine, software=replace(machine.software, packages=packages)))
    assert list(findings) == ([f"nccl.{case}"] if case else [])


def test_pascal_cards_have_nccl() -> None:
    assert found(check_nccl, recorded("p40_two"))["nccl.has_code"].severity is Severity.OK


def test_emulated_cards_have_no_others() -> None:
    machine = replace(recorded("mixed_t400_rtx4090"), emulated="Tesla P40")
    assert [finding for check in SEVERAL for finding in check(machine)] == []


def test_larger_memory_of_the_same_kind_is_told_first() -> None:
    base = recorded("rtx4090_two")
    first = replace(base.devices[0], memory_total_bytes=12 * GIB, memory_free_bytes=12 * GIB)
    findings = found(check_mixed_devices, replace(base, devices=(first, base.devices[1])))
    assert set(findings) == {"mixed_devices.memories", "mixed_devices.weaker_first"}
