"""A plan's card holds for as long as the context is open."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional

from rl_compat.distributed.local import WorkerThread
from rl_compat.emulation.device import emulate, lacking, refused, sdpa_backends, tf32
from rl_compat.errors import HardwareError
from rl_compat.planning.types import PoolPlan


def plan(**changes: object) -> PoolPlan:
    values: dict[str, object] = {
        "profile": "pascal",
        "devices": ("cpu",),
        "device_name": "Tesla P40",
        "budgets": (),
        "memory_available_bytes": 0,
        **changes,
    }
    return PoolPlan(**values)  # type: ignore[arg-type]


def enabled() -> tuple[bool, bool, bool, bool]:
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(),
        backends.cudnn_sdp_enabled(),
        backends.math_sdp_enabled(),
    )


def test_an_emulated_plan_refuses_what_its_card_lacks_and_only_inside() -> None:
    product = torch.ones(2, 2, dtype=torch.bfloat16)
    with emulate(plan(emulated="Tesla P40", emulated_capability=(6, 1))), pytest.raises(HardwareError, match="P40"):
        product @ product
    assert (product @ product)[0, 0] == 2


def test_a_plan_for_the_real_device_refuses_nothing() -> None:
    product = torch.ones(2, 2, dtype=torch.bfloat16)
    with emulate(plan()):
        assert (product @ product)[0, 0] == 2


def test_sdpa_keeps_to_the_named_kernels_and_they_come_back() -> None:
    before = enabled()
    query = torch.ones(1, 1, 2, 8)
    with sdpa_backends(("efficient", "math")):
        assert enabled() == (False, True, False, True)
        inside = functional.scaled_dot_product_attention(query, query, query)
    assert enabled() == before
    torch.testing.assert_close(inside, torch.ones_like(inside))


def test_the_kernels_come_back_after_an_error() -> None:
    before = enabled()
    with pytest.raises(ValueError, match="inside"), sdpa_backends(("math",)):
        raise ValueError("inside")
    assert enabled() == before


def test_tf32_is_off_inside_and_as_before_afterwards() -> None:
    before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    with tf32(True):
        assert torch.get_float32_matmul_precision() == "high"
        with tf32(False):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_compiling_is_refused_below_7_0_and_only_there() -> None:
    """A-ENV-12."""
    original = torch.compile
    with lacking(name="Tesla P40", capability=(6, 1)), pytest.raises(HardwareError) as caught:
        torch.compile(torch.nn.Linear(1, 1))
    assert caught.value.message == ("`torch.compile` needs compute capability 7.0, the emulated `Tesla P40` has 6.1")
    with lacking(name="Tesla V100-SXM2-32GB", capability=(7, 0)):
        assert torch.compile is original
    assert torch.compile is original


def test_a_launcher_is_refused_while_the_context_is_open() -> None:
    class Launcher:
        def run(self) -> str:
            return "ran"

    with (
        refused(Launcher, "run", name="Tesla P40", capability=(6, 1)),
        pytest.raises(HardwareError, match=r"Launcher\.run"),
    ):
        Launcher().run()
    assert Launcher().run() == "ran"


@pytest.mark.gpu
def test_the_memory_of_a_cuda_device_is_capped() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved("cuda:0")
    with emulate(plan(devices=("cuda:0",), memory_cap_bytes=held + (1 << 30))):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(3 << 30, dtype=torch.uint8, device="cuda:0")
        assert torch.empty(1 << 28, dtype=torch.uint8, device="cuda:0").numel() == 1 << 28


@pytest.mark.gpu
def test_attention_of_an_emulated_p40_runs_without_flash_forward_and_backward() -> None:
    card = plan(
        devices=("cuda:0",),
        emulated="Tesla P40",
        emulated_capability=(6, 1),
        sdpa_backends=("efficient", "math"),
    )
    query = torch.randn(1, 2, 16, 64, device="cuda:0", requires_grad=True)
    with emulate(card):
        functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    assert query.grad is not None


def refuses_bfloat16(seen: list[bool]) -> None:
    try:
        torch.ones(2, 2, dtype=torch.bfloat16)
    except HardwareError:
        seen.append(True)
    else:
        seen.append(False)


def test_every_thread_of_the_process_is_limited_to_the_card_until_the_context_closes() -> None:
    """F11: a plain thread, one of a pool, one that was there before, and one that goes on afterwards."""
    seen: list[bool] = []
    closed = threading.Event()
    older = WorkerThread("older")

    def waits() -> None:
        refuses_bfloat16(seen)
        closed.wait(10)
        refuses_bfloat16(seen)

    with emulate(plan(emulated="Tesla P40", emulated_capability=(6, 1))):
        plain = threading.Thread(target=refuses_bfloat16, args=(seen,))
        plain.start()
        plain.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(refuses_bfloat16, seen).result()
        older.submit(lambda: refuses_bfloat16(seen)).result()
        newer = WorkerThread("newer")
        newer.submit(lambda: refuses_bfloat16(seen)).result()
        lasting = threading.Thread(target=waits)
        lasting.start()
        while len(seen) < 5:
            closed.wait(0.01)
    assert seen == [True] * 5
    closed.set()
    lasting.join()
    for thread in (older, newer):
        thread.submit(lambda: refuses_bfloat16(seen)).result()
    assert seen[5:] == [False] * 3
