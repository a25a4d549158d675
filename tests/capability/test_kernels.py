"""Triton, compilation, CUDA graphs and TF32."""

from __future__ import annotations

import pytest
from fakes.machines import A100, P40, P100, T4, V100, machine

from rl_compat.capability.kernels import against_compile, against_graphs, against_tf32, against_triton


@pytest.mark.parametrize("device", [P40, P100])
def test_there_is_no_triton_and_no_compile_below_7_0(device) -> None:
    """A-ENV-12: whatever is installed."""
    hardware = machine(device, triton="3.7.1", liger_kernel="0.8.5")

    assert "7.0" in against_triton(hardware)[0]
    assert against_compile(hardware)


@pytest.mark.parametrize("device", [V100, T4, A100])
def test_triton_and_compile_work_from_7_0(device) -> None:
    assert not against_triton(machine(device))
    assert not against_compile(machine(device))


def test_cuda_graphs_work_on_any_cuda_card_in_the_native_engine_only() -> None:
    assert not against_graphs(machine(P40), engine="native")
    assert against_graphs(machine(P40), engine="transformers")
    assert against_graphs(machine(), engine="native") == ("needs a CUDA device",)


def test_tf32_is_for_the_fp32_products_beside_half_precision_from_8_0() -> None:
    assert not against_tf32(machine(A100), compute_dtype="bf16")
    assert against_tf32(machine(A100), compute_dtype="fp32")
    assert against_tf32(machine(T4), compute_dtype="fp16")
    assert against_tf32(machine(), compute_dtype="bf16")
