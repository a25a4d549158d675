"""What depends on installed packages: 8-bit optimizers, quantized weights, rollout engines, torch itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, H200, P40, T4, V100, machine, recorded

from rl_compat.capability.devices import against_torch
from rl_compat.capability.optimizers import against_optimizer, against_quantization, host_budget_bytes
from rl_compat.capability.rollout_engines import against_engine, vllm_minimum
from rl_compat.config.types import PlanConfig
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.decide import selected_hardware
from rl_compat.planning.workload import Requests
from rl_compat.units import GIB


def with_bitsandbytes(hardware: Hardware, library: str | None = "cuda", *, cuda: str = "12.6") -> Hardware:
    software = hardware.software
    assert software.torch is not None
    packages = {**software.packages, "bitsandbytes": "0.50.2"}
    torch = replace(software.torch, cuda=cuda)
    return replace(hardware, software=replace(software, packages=packages, bitsandbytes_library=library, torch=torch))


def test_a_p40_has_8_bit_optimizers_and_4_bit_weights_with_the_cuda_12_6_libraries() -> None:
    hardware = with_bitsandbytes(machine(P40))

    assert not against_optimizer(hardware, "adamw8bit")
    assert not against_quantization(hardware, "nf4", lora_rank=16)


@pytest.mark.parametrize(
    ("device", "cuda", "works"), [(P40, "12.8", False), (V100, "12.8", True), (V100, "13.0", False)]
)
def test_the_libraries_of_newer_cuda_leave_old_cards_out(device, cuda, works) -> None:
    assert bool(against_optimizer(with_bitsandbytes(machine(device), cuda=cuda), "adamw8bit")) is not works


@pytest.mark.parametrize("library", ["cpu", "libcudart.so.12: cannot open shared object file"])
def test_bitsandbytes_without_a_gpu_library_serves_nothing(library) -> None:
    """A-ENV-08."""
    hardware = with_bitsandbytes(machine(A100), library)

    assert against_optimizer(hardware, "adamw8bit")
    assert against_quantization(hardware, "nf4", lora_rank=16)


def test_a_missing_bitsandbytes_is_named() -> None:
    answer = against_optimizer(machine(A100), "adamw8bit")

    assert answer == ("needs the package `bitsandbytes`, which is not installed",)


def test_quantized_weights_cannot_be_trained() -> None:
    answer = against_quantization(with_bitsandbytes(machine(A100)), "nf4", lora_rank=0)

    assert "`model.lora_rank=0`" in answer[0]


@pytest.mark.parametrize("hardware", [machine(), machine(P40), machine(T4)])
def test_an_int8_base_needs_adapters_and_nothing_of_the_card(hardware: Hardware) -> None:
    assert not against_quantization(hardware, "int8", lora_rank=8)
    assert against_quantization(hardware, "int8", lora_rank=0)


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
    answer = against_engine(machine(P40, vllm="0.10.0"), "vllm")

    assert answer[0] == "needs compute capability 7.0, device 0 (Tesla P40) has 6.1"


def test_a_new_vllm_has_no_code_for_a_v100() -> None:
    reasons = against_engine(machine(V100, vllm="0.33.0"), "vllm")

    assert "needs compute capability 7.5, device 0 (Tesla V100-SXM2-32GB) has 7.0" in reasons


def test_the_engines_of_this_program_run_anywhere() -> None:
    for hardware in (machine(), machine(P40), machine(H200)):
        assert not against_engine(hardware, "native")
        assert not against_engine(hardware, "transformers")


def test_a_wheel_without_code_for_the_card_cannot_be_used() -> None:
    """A-ENV-01."""
    answer = against_torch(recorded("p40_cu128_wheel"))

    assert "torch 2.8.0+cu128 for CUDA 12.8 has no code for device 0 (Tesla P40)" in answer[0]
    assert "6.1" in answer[0]


def test_a_wheel_with_code_for_6_0_runs_on_6_1() -> None:
    """A-ENV-02."""
    assert not against_torch(recorded("p40"))


def test_a_cpu_build_of_torch_is_its_own_cause() -> None:
    """A-ENV-10."""
    assert against_torch(recorded("rtx3060_cpu_torch")) == ("torch 2.6.0+cpu is a CPU build",)


def test_a_driver_that_torch_cannot_reach_and_a_torch_that_does_not_import_are_told_apart() -> None:
    """A-ENV-09, A-ENV-13."""
    assert "cannot reach the driver" in against_torch(recorded("rtx3090_old_driver"))[0]
    assert "does not import" in against_torch(recorded("rtx3090_library_conflict"))[0]


def test_an_emulated_card_is_not_held_against_the_wheel() -> None:
    assert not against_torch(replace(recorded("p40_cu128_wheel"), emulated="Tesla P40"))


def test_host_memory_is_bounded_by_the_container() -> None:
    """A-MEM-05."""
    hardware = recorded("container_32gib_two_a10")

    assert host_budget_bytes(hardware, fraction=1.0) == hardware.host.ram_available_bytes <= 32 * GIB


def test_more_devices_than_are_visible_are_refused_with_both_numbers() -> None:
    with pytest.raises(HardwareError, match=r": 2, .*: 1") as caught:
        selected_hardware(Requests(plan=PlanConfig(num_devices=2)), machine(A100))

    assert caught.value.exit_code == 2
    assert caught.value.hint == "set `plan.num_devices=1`"
