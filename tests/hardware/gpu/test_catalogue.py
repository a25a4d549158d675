"""The table of cards, and hardware that pretends to have one."""

from __future__ import annotations

import re

import pytest
from recordings.compose import RECORDINGS

from rl_compat.errors import HardwareError
from rl_compat.hardware.gpu.catalogue import (
    all_gpus,
    choose_gpu,
    emulated_hardware,
    find_gpu,
    shared_memory_optin_bytes,
)
from rl_compat.units import GIB


def test_every_card_is_found_by_each_of_its_names() -> None:
    assert len(all_gpus()) == 122
    for gpu in all_gpus():
        for name in gpu.names:
            found = find_gpu(name, gpu.memory_bytes)
            assert found is not None
            assert (found.compute_capability, found.memory_bytes) == (gpu.compute_capability, gpu.memory_bytes)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("tesla p40", "p40"),
        ("P40", "p40"),
        ("NVIDIA Tesla P40", "p40"),
        ("GeForce RTX 4090", "rtx4090"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-sxm4-40"),
        ("NVIDIA A40-48Q", "a40"),
        ("  NVIDIA   H200 ", "h200-sxm"),
    ],
)
def test_names_are_understood_as_drivers_and_people_write_them(name: str, gpu: str) -> None:
    found = find_gpu(name)
    assert found is not None
    assert found.id == gpu


def test_cards_that_share_a_name_are_told_apart_by_memory() -> None:
    twelve = find_gpu("NVIDIA GeForce RTX 3080", 12 * GIB)
    ten = find_gpu("NVIDIA GeForce RTX 3080", 10 * GIB)
    assert (twelve and twelve.id, ten and ten.id) == ("rtx3080-12", "rtx3080")


def test_the_name_that_drivers_give_to_cards_they_do_not_know_is_no_card() -> None:
    assert find_gpu("NVIDIA Graphics Device") is None
    cmp = find_gpu("NVIDIA CMP 170HX")
    assert (cmp and cmp.id, cmp and cmp.name) == ("cmp170hx", "NVIDIA CMP 170HX")


def test_an_unknown_card_names_the_nearest() -> None:
    assert find_gpu("Tesla P41") is None
    with pytest.raises(HardwareError) as caught:
        emulated_hardware("Tesla P41", RECORDINGS["laptop_no_gpu"]())
    assert "`Tesla P41`" in caught.value.message
    assert "`Tesla P40`" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("4090", "rtx4090"),
        ("RTX 4090", "rtx4090"),
        ("rtx4090", "rtx4090"),
        ("rtx 4090 d", "rtx4090d"),
        ("3080 Ti", "rtx3080ti"),
        ("3080ti", "rtx3080ti"),
        ("RTX 3080 12GB", "rtx3080-12"),
        ("4060 ti 16 GiB", "rtx4060ti-16"),
        ("2080 super", "rtx2080s"),
        ("h200", "h200-sxm"),
        ("h100 sxm", "h100-sxm"),
        ("a100 pcie 40gb", "a100-pcie-40"),
        ("V100 SXM2 32GB", "v100-sxm2-32"),
        ("rtx 6000 ada", "rtx6000ada"),
        ("l40", "l40"),
        ("titan x pascal", "titanx-pascal"),
        ("gtx titan x", "titanx-maxwell"),
        ("titan xp", "titanxp"),
        ("gh200 144gb", "gh200-144"),
        ("NVIDIA RTX A2000", "a2000-6"),
    ],
)
def test_any_unambiguous_name_chooses_its_card(name: str, gpu: str) -> None:
    assert choose_gpu(name).id == gpu


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("h100", {"h100-sxm", "h100-pcie", "h100-nvl"}),
        ("a100 80gb", {"a100-sxm4-80", "a100-pcie-80"}),
        ("RTX 3080", {"rtx3080", "rtx3080-12"}),
        ("rtx 4000", {"qrtx4000", "rtx4000ada", "rtxpro4000"}),
        ("a2000", {"a2000-6", "a2000-12"}),
        ("orin", {"orin-agx-64", "orin-nano-8"}),
        ("titan x", {"titanx-maxwell", "titanx-pascal"}),
        ("titanx", {"titanx-maxwell", "titanx-pascal"}),
        ("titan", {"titanx-maxwell", "titanx-pascal", "titanxp", "titanv", "titanrtx"}),
        ("gh200", {"gh200-96", "gh200-144"}),
    ],
)
def test_an_ambiguous_name_lists_all_its_cards(name: str, ids: set[str]) -> None:
    with pytest.raises(HardwareError) as caught:
        choose_gpu(name)
    assert caught.value.exit_code == 2
    assert set(re.findall(r"`([^`]+)`", caught.value.hint or "")) == ids
    assert all(choose_gpu(card).id == card for card in ids)


@pytest.mark.parametrize("name", ["nvidia", "", "rtx", "RTX 4090 Laptop", "MI210"])
def test_a_name_of_no_card_chooses_none(name: str) -> None:
    with pytest.raises(HardwareError, match=f"`{name}`"):
        choose_gpu(name)


def test_an_emulated_p40_has_a_p40s_limits() -> None:
    base = RECORDINGS["h200"]()
    hardware = emulated_hardware("p40", base)
    device = hardware.devices[0]
    assert (hardware.emulated, device.name, device.compute_capability) == ("Tesla P40", "Tesla P40", (6, 1))
    assert (device.memory_total_bytes, device.memory_free_bytes) == (24 * GIB, int(22.5 * GIB))
    assert (device.num_multiprocessors, device.shared_memory_optin_bytes) == (30, 48 * 1024)
    assert device.bf16_native is False
    assert hardware.software == base.software
    assert hardware.host == base.host
    assert hardware.warnings == base.warnings


def test_emulating_a_larger_card_than_there_is_is_said() -> None:
    hardware = emulated_hardware("NVIDIA H200", RECORDINGS["p40"]())
    assert hardware.warnings[-1].startswith("`NVIDIA H200` is emulated with 141.0 GiB, `Tesla P40` has 22.4 GiB free")


@pytest.mark.parametrize(
    ("capability", "kib"), [((6, 1), 48), ((7, 0), 96), ((7, 5), 64), ((8, 0), 163), ((8, 9), 99), ((9, 0), 227)]
)
def test_shared_memory_follows_the_capability(capability: tuple[int, int], kib: int) -> None:
    assert shared_memory_optin_bytes(capability) == kib * 1024


def test_every_capability_of_the_catalogue_has_its_shared_memory() -> None:
    assert all(shared_memory_optin_bytes(gpu.compute_capability) for gpu in all_gpus())


def test_the_measured_h200_agrees_with_the_tables() -> None:
    device = RECORDINGS["h200"]().devices[0]
    gpu = find_gpu(device.name)
    assert gpu is not None
    assert gpu.num_multiprocessors == device.num_multiprocessors == 132
    assert shared_memory_optin_bytes((9, 0)) == device.shared_memory_optin_bytes == 232448
    assert abs(gpu.memory_bytes - device.memory_total_bytes) < GIB
