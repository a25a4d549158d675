"""Attention implementations and the kernels beneath them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, P40, T4, V100, gpu, machine, recorded

from rl_compat.capability.attention import against_attention, against_repeated_keys, sdpa_backends
from rl_compat.hardware.types import Hardware, TorchBuild


def with_torch(hardware: Hardware, version: str) -> Hardware:
    build = hardware.software.torch
    assert build is not None
    return replace(hardware, software=replace(hardware.software, torch=replace(build, version=version)))


@pytest.mark.parametrize("devices", [(V100,), (A100, T4)])
def test_an_installed_flash_attention_is_not_used_when_one_card_is_too_old(devices) -> None:
    """A-ENV-11: the weakest selected card decides."""
    answer = against_attention(machine(*devices, flash_attn="2.6.3"), "flash_attention_2", compute_dtype="fp16")

    assert len(answer) == 1
    assert answer[0].startswith("needs compute capability 8.0, device")


def test_flash_attention_needs_the_package_and_half_precision() -> None:
    with_package = machine(A100, flash_attn="2.8.3")

    assert not against_attention(with_package, "flash_attention_2", compute_dtype="bf16")
    assert against_attention(with_package, "flash_attention_2", compute_dtype="fp32")
    assert against_attention(machine(A100), "flash_attention_2", compute_dtype="bf16")


def test_a_flash_attention_that_does_not_import_counts_as_absent_with_the_reason() -> None:
    hardware = machine(A100, flash_attn="2.8.3")
    symbol = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
    broken = replace(hardware, software=replace(hardware.software, import_errors={"flash-attn": symbol}))

    (reason,) = against_attention(broken, "flash_attention_2", compute_dtype="bf16")

    assert symbol in reason
    assert "`flash-attn` 2.8.3" in reason


def test_flash_attention_needs_a_gpu() -> None:
    answer = against_attention(machine(), "flash_attention_2", compute_dtype="bf16")

    assert answer == ("needs a CUDA device",)


@pytest.mark.parametrize("device", [gpu("Tesla M40", (5, 2)), P40, V100, T4])
def test_below_8_0_sdpa_has_the_memory_efficient_kernel_and_math(device) -> None:
    assert sdpa_backends(machine(device)) == ("efficient", "math")


def test_from_8_0_and_on_a_cpu_sdpa_keeps_all_kernels() -> None:
    everything = ("flash", "efficient", "math")

    assert sdpa_backends(machine(A100)) == everything
    assert sdpa_backends(machine()) == everything


@pytest.mark.parametrize(("torch", "repeats"), [("2.6.0+cu126", True), ("2.13.1", True), ("2.14.1+cu126", False)])
def test_grouped_keys_are_repeated_below_8_0_before_torch_2_14(torch, repeats) -> None:
    hardware = with_torch(machine(P40), torch)

    assert bool(against_repeated_keys(hardware, compute_dtype="fp32")) is not repeats


def test_grouped_keys_in_fp32_are_repeated_on_new_cards_too_because_flash_takes_none() -> None:
    hardware = with_torch(machine(A100), "2.11.0")

    assert not against_repeated_keys(hardware, compute_dtype="fp32")
    assert against_repeated_keys(hardware, compute_dtype="bf16")


def test_an_unknown_torch_gets_repeated_keys() -> None:
    hardware = machine(P40)
    unknown = replace(hardware, software=replace(hardware.software, torch=None))

    assert not against_repeated_keys(unknown, compute_dtype="fp32")


def test_a_recorded_p40_with_torch_2_14_needs_no_repeated_keys() -> None:
    assert isinstance(recorded("p40").software.torch, TorchBuild)
    assert against_repeated_keys(recorded("p40"), compute_dtype="fp32")
