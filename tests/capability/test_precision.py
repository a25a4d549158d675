"""Number formats by device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, GTX_1660, H200, P40, T4, V100, gpu, machine

from rl_compat.capability.devices import has_tensor_cores
from rl_compat.capability.precision import against_dtype, unwise_compute_dtype


@pytest.mark.parametrize("device", [P40, V100, T4, GTX_1660])
def test_bf16_is_refused_below_8_0_with_both_values(device) -> None:
    """A-ENV-03."""
    major, minor = device.compute_capability

    answer = against_dtype(machine(device), "bf16")

    assert answer == (f"needs compute capability 8.0, device 0 ({device.name}) has {major}.{minor}",)


def test_a_flag_that_says_bf16_works_does_not_make_it_native_on_a_t4() -> None:
    """A-ENV-03."""
    assert against_dtype(machine(replace(T4, bf16_native=True)), "bf16")


def test_a_card_of_8_0_that_only_emulates_bf16_is_refused() -> None:
    answer = against_dtype(machine(replace(A100, bf16_native=False)), "bf16")

    assert answer == ("device 0 (NVIDIA A100-SXM4-80GB) only emulates bf16",)


@pytest.mark.parametrize("device", [A100, H200])
def test_bf16_works_from_8_0(device) -> None:
    assert not against_dtype(machine(device), "bf16")


def test_the_weakest_device_decides() -> None:
    assert against_dtype(machine(A100, P40), "bf16") == ("needs compute capability 8.0, device 1 (Tesla P40) has 6.1",)


@pytest.mark.parametrize(("device", "wise"), [(P40, False), (GTX_1660, False), (V100, True), (T4, True)])
def test_fp16_is_a_good_default_only_with_tensor_cores(device, wise) -> None:
    hardware = machine(device)

    assert not against_dtype(hardware, "fp16")
    assert (unwise_compute_dtype(hardware, "fp16") == ()) is wise


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla T4", True),
        ("NVIDIA GeForce RTX 2080 Ti", True),
        ("NVIDIA TITAN RTX", True),
        ("Quadro RTX 4000", True),
        ("NVIDIA GeForce GTX 1650", False),
        ("GeForce GTX 1660 SUPER", False),
        ("NVIDIA GeForce MX450", False),
        ("NVIDIA T400 4GB", False),
        ("NVIDIA T1000", False),
        ("Quadro T2000", False),
    ],
)
def test_cards_of_7_5_are_told_apart_by_name(name, expected) -> None:
    assert has_tensor_cores(gpu(name, (7, 5))) is expected


def test_half_precision_on_a_cpu_is_possible_and_never_a_default() -> None:
    cpu = machine()

    assert not against_dtype(cpu, "bf16")
    assert unwise_compute_dtype(cpu, "bf16") != ()
    assert unwise_compute_dtype(cpu, "fp32") == ()
