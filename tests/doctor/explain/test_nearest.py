"""Text that nothing recognises: what it resembles."""

from __future__ import annotations

import pytest

from rl_compat.doctor.explain.matching import looks_like_an_error
from rl_compat.doctor.explain.nearest import MOST, nearest_errors, words_of
from rl_compat.doctor.explain.reading import Line


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("RuntimeError: no binary of the kernel image exists for this device", "no_kernel_image"),
        ("nvcc fatal: Unsupported architecture compute_61", "nvcc_arch_old"),
        ("RuntimeError: Triton: shared memory resource limit exceeded, required 90112", "triton_smem"),
        ("OSError: cannot connect to huggingface.co to load config.json of model", "hub_unreachable"),
        ("ray.exceptions.RaySystemError: System error: the actor worker process exited", "ray_actor_died"),
        ("(WorkerDict pid=7) ValueError: Bfloat16 is not there with compute capability 7.5", "bf16_vllm"),
    ],
)
def test_a_reworded_message_has_its_error_nearest(text: str, nearest: str) -> None:
    found = nearest_errors([Line(7, text)])

    assert found[0].error.id == nearest
    assert found[0].line.number == 7
    assert 1 <= len(found) <= MOST


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'prompt'",
        "ZeroDivisionError: division by zero",
        "RuntimeError: The size of tensor a (128) must match the size of tensor b (256) at non-singleton dimension 1",
        "TypeError: unsupported operand type(s) for %: 'int' and 'NoneType'",
        "AssertionError",
    ],
)
def test_an_unrelated_message_has_none(text: str) -> None:
    assert nearest_errors([Line(1, text)]) == ()


def test_of_several_lines_each_error_keeps_the_one_that_resembles_it_most() -> None:
    close = Line(2, "nvcc fatal: Unsupported architecture compute_61")

    found = nearest_errors([Line(1, "nvcc: fatal, unsupported architecture"), close, Line(3, "nothing")])

    assert found[0].line is close
    assert len({candidate.error.id for candidate in found}) == len(found)


def test_rare_words_come_first() -> None:
    shared = nearest_errors([Line(1, "nvcc fatal: Unsupported architecture compute_61")])[0].shared

    assert shared.index("nvcc") < shared.index("compute")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CUBLAS_STATUS_ALLOC_FAILED", {"cublas", "status", "alloc"}),
        ("OutOfMemoryError", {"outofmemoryerror", "out", "memory"}),
        ("the error is in a file", set()),
        ("sm_61 at 0x7f", {"61"}),
    ],
)
def test_words(text: str, words: set[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ValueError: x", True),
        ("my.pkg.CustomException", True),
        ("KeyboardInterrupt", True),
        ("error: cannot read `x`", True),
        ("nvcc fatal   : something", True),
        ("Killed", True),
        ("Aborted (core dumped)", True),
        ("ERROR 11-22 10:09:02 something", True),
        ("process exited with exit code 3", True),
        ("command failed with status 2", True),
        ("python: x.cpp:36: f: Assertion `a == b' failed.", True),
        ("0 errors, 0 failed", False),
        ("errors 0 timeouts 0", False),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=1", False),
        ("    raise ValueError(", False),
        ("except torch.OutOfMemoryError:", False),
        ("tests/test_x.py::test_killed_worker PASSED", False),
        ("exit code 0", False),
        ("loss 2.3 error_rate 0.1", False),
    ],
)
def test_lines_that_look_like_an_error(text: str, expected: bool) -> None:
    assert looks_like_an_error(text) == expected
