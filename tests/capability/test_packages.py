"""What depends on installed packages: 8-bit optimizers, quantized weights, rollout engines, torch itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, H200, P40, T4, V100, machine, recorded

from rl_compat.capability.devices import select_devices, torch_build
from rl_compat.capability.optimizers import host_budget_bytes, offload, optimizer
from rl_compat.capability.precision import quantization
from rl_compat.capability.rollout_engines import rollout_engine, vllm_minimum
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.units import GIB


def with_bitsandbytes(hardware: Hardware, library: str | None = "cuda", *, cuda: str = "12.6") -> Hardware:
    software = hardware.software
    assert software.torch is not None
    packages = {**software.packages, "bitsandbytes": "0.50.2"}
    torch = replace(software.torch, cuda=cuda)
    return replace(hardware, software=replace(software, packages=packages, bitsandbytes_library=library, torch=torch))


def test_a_p40_has_8_bit_optimizers_and_4_bit_weights_with_the_cuda_12_6_libraries() -> None:
    hardware = with_bitsandbytes(machine(P40))

    assert optimizer(hardware, "adamw8bit").supported
    assert quantization(hardware, "nf4", lora_rank=16).supported


@pytest.mark.parametrize(
    ("device", "cuda", "works"), [(P40, "12.8", False), (V100, "12.8", True), (V100, "13.0", False)]
)
def test_the_libraries_of_newer_cuda_leave_old_cards_out(device, cuda, works) -> None:
    assert optimizer(with_bitsandbytes(machine(device), cuda=cuda), "adamw8bit").supported is works


@pytest.mark.parametrize("library", ["cpu", "libcudart.so.12: cannot open shared object file"])
def test_bitsandbytes_without_a_gpu_library_serves_nothing(library) -> None:
    """A-ENV-08."""
    hardware = with_bitsandbytes(machine(A100), library)

    assert not optimizer(hardware, "adamw8bit").supported
    assert not quantization(hardware, "nf4", lora_rank=16).supported


def test_a_missing_bitsandbytes_is_named() -> None:
    answer = optimizer(machine(A100), "adamw8bit")

    assert answer.reasons_against == ("needs the package `bitsandbytes`, which is not installed",)


def test_quantized_weights_cannot_be_trained() -> None:
    answer = quantization(with_bitsandbytes(machine(A100)), "nf4", lora_rank=0)

    assert "`model.lora_rank=0`" in answer.reasons_against[0]


@pytest.mark.parametrize("hardware", [machine(), machine(P40), machine(T4)])
def test_an_int8_base_needs_adapters_and_nothing_of_the_card(hardware: Hardware) -> None:
    assert quantization(hardware, "int8", lora_rank=8).supported
    assert not quantization(hardware, "int8", lora_rank=0).supported


@pytest.mark.parametrize(
    ("version", "minimum"),
    [
        ("0.19.1", (7, 0)),
        ("0.19.5", (7, 0)),
        ("0.20.0", (7, 5)),
        ("0.33.0", (7, 5)),
        ("0.40.0", (7, 5)),
        ("0.1", (7, 0)),
    ],
)
def test_the_lowest_capability_of_a_vllm_wheel_comes_from_the_table(version, minimum) -> None:
    assert vllm_minimum(version) == minimum


def test_vllm_never_runs_below_7_0() -> None:
    answer = rollout_engine(machine(P40, vllm="0.10.0"), "vllm")

    assert answer.reasons_against[0] == "needs compute capability 7.0, device 0 (Tesla P40) has 6.1"


def test_a_new_vllm_has_no_code_for_a_v100() -> None:
    reasons = rollout_engine(machine(V100, vllm="0.33.0"), "vllm").reasons_against

    assert "needs compute capability 7.5, device 0 (Tesla V100-SXM2-32GB) has 7.0" in reasons


def test_the_engines_of_this_program_run_anywhere() -> None:
    for hardware in (machine(), machine(P40), machine(H200)):
        assert rollout_engine(hardware, "native").supported
        assert rollout_engine(hardware, "transformers").supported


def test_a_wheel_without_code_for_the_card_cannot_be_used() -> None:
    """A-ENV-01."""
    answer = torch_build(recorded("p40_cu128_wheel"))

    assert "torch 2.8.0+cu128 for CUDA 12.8 has no code for device 0 (Tesla P40)" in answer.reasons_against[0]
    assert "6.1" in answer.reasons_against[0]


def test_a_wheel_with_code_for_6_0_runs_on_6_1() -> None:
    """A-ENV-02."""
    assert torch_build(recorded("p40")).supported


def test_a_cpu_build_of_torch_is_its_own_cause() -> None:
    """A-ENV-10."""
    assert torch_build(recorded("rtx3060_cpu_torch")).reasons_against == ("torch 2.6.0+cpu is a CPU build",)


def test_a_driver_that_torch_cannot_reach_and_a_torch_that_does_not_import_are_told_apart() -> None:
    """A-ENV-09, A-ENV-13."""
    assert "cannot reach the driver" in torch_build(recorded("rtx3090_old_driver")).reasons_against[0]
    assert "does not import" in torch_build(recorded("rtx3090_library_conflict")).reasons_against[0]


def test_an_emulated_card_is_not_held_against_the_wheel() -> None:
    assert torch_build(replace(recorded("p40_cu128_wheel"), emulated="Tesla P40")).supported


def test_host_memory_is_bounded_by_the_container() -> None:
    """A-MEM-05."""
    hardware = recorded("container_32gib_two_a10")

    assert host_budget_bytes(hardware, fraction=1.0) == hardware.host.ram_available_bytes <= 32 * GIB
    refused = offload(hardware, num_bytes=78 * GIB, fraction=1.0)
    assert [fact in refused.reasons_against[0] for fact in ("78.0 GiB", "30.0 GiB")] == [True, True]


def test_a_cpu_has_nothing_to_offload_to() -> None:
    assert not offload(machine(), num_bytes=0, fraction=0.9).supported


def test_more_devices_than_are_visible_are_refused_with_both_numbers() -> None:
    with pytest.raises(HardwareError, match=": 2, visible: 1") as caught:
        select_devices(machine(A100), 2)

    assert caught.value.exit_code == 2
    assert caught.value.hint == "set `plan.num_devices=1`"
