"""Triton, compilation, CUDA graphs and TF32."""

from __future__ import annotations

import pytest
from fakes.machines import A100, P40, P100, T4, V100, machine

from rl_compat.capability.kernels import cuda_graphs, tf32, torch_compile, triton


@pytest.mark.parametrize("device", [P40, P100])
def test_there_is_no_triton_and_no_compile_below_7_0(device) -> None:
    """A-ENV-12: whatever is installed."""
    hardware = machine(device, triton="3.7.1", liger_kernel="0.8.5")

    assert "7.0" in triton(hardware).reasons_against[0]
    assert not torch_compile(hardware).supported


@pytest.mark.parametrize("device", [V100, T4, A100])
def test_triton_and_compile_work_from_7_0(device) -> None:
    assert triton(machine(device)).supported
    assert torch_compile(machine(device)).supported


def test_cuda_graphs_work_on_any_cuda_card_in_the_native_engine_only() -> None:
    assert cuda_graphs(machine(P40), engine="native").supported
    assert not cuda_graphs(machine(P40), engine="transformers").supported
    assert cuda_graphs(machine(), engine="native").reasons_against == ("needs a CUDA device",)


def test_tf32_is_for_the_fp32_products_beside_half_precision_from_8_0() -> None:
    assert tf32(machine(A100), compute_dtype="bf16").supported
    assert not tf32(machine(A100), compute_dtype="fp32").supported
    assert not tf32(machine(T4), compute_dtype="fp16").supported
    assert not tf32(machine(), compute_dtype="bf16").supported
