"""torch in a child process: what it says, and what happens when it cannot."""

from __future__ import annotations

import json
import os
import sys

from rl_compat.hardware.cuda import parse_child_output, read_torch
from rl_compat.hardware.torch_child import MARK
from rl_compat.hardware.types import TorchBuild

DEVICE = {
    "index": 0,
    "name": "Tesla P40",
    "compute_capability": [6, 1],
    "memory_total_bytes": 100,
    "memory_free_bytes": 90,
    "uuid": "1111",
    "pci_bus_id": "00000000:01:00.0",
    "num_multiprocessors": 30,
    "shared_memory_optin_bytes": 49152,
    "bf16_native": False,
}
TORCH = {"stage": "torch", "version": "2.14.1+cu126", "cuda": "12.6", "arch_list": ["sm_60"]}
CUDA = {"stage": "cuda", "available": True, "devices": [DEVICE], "driver": 12020, "error": None}


def lines(*stages: dict[str, object]) -> str:
    return "\n".join(["noise", *(MARK + json.dumps(stage) for stage in stages)])


def child(program: str, *, timeout_seconds: float = 20.0) -> object:
    return read_torch(environment=os.environ, timeout_seconds=timeout_seconds, command=[sys.executable, "-c", program])


def test_the_stages_become_a_reading() -> None:
    reading = parse_child_output(lines(TORCH, CUDA, {"stage": "bitsandbytes", "library": "cuda"}), failure=None)
    assert reading.build == TorchBuild(version="2.14.1+cu126", cuda="12.6", arch_list=("sm_60",), cuda_available=True)
    assert reading.devices[0].compute_capability == (6, 1)
    assert reading.devices[0].bf16_native is False
    assert (reading.driver_cuda_version, reading.bitsandbytes_library) == ("12.2", "cuda")


def test_torch_that_is_not_installed_is_no_error() -> None:
    reading = parse_child_output(lines({"stage": "absent"}), failure=None)
    assert (reading.build, reading.error) == (None, None)


def test_a_failed_import_is_the_error() -> None:
    """A-ENV-13."""
    text = "ImportError: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"
    assert parse_child_output(lines({"stage": "import_error", "error": text}), failure=None).error == text


def test_an_undefined_symbol_in_the_child_is_reported_on_one_line() -> None:
    """A-ENV-13: the child's own import error, not this process's."""
    program = "import ctypes; ctypes.CDLL(None).__nvJitLinkComplete_12_4"
    reading = child(program)
    assert "exit code 1" in reading.error  # type: ignore[attr-defined]
    assert "__nvJitLinkComplete_12_4" in reading.error  # type: ignore[attr-defined]


def test_a_crash_names_the_signal() -> None:
    reading = child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert reading.error == "killed by signal 11 (SIGSEGV)"  # type: ignore[attr-defined]


def test_a_hang_ends_at_the_timeout() -> None:
    reading = child("import time; time.sleep(60)", timeout_seconds=0.5)
    assert reading.error == "no answer within 0.5 s"  # type: ignore[attr-defined]


def test_torchs_version_survives_a_hang_of_cuda() -> None:
    program = f"import time; print({lines(TORCH)!r}, flush=True); time.sleep(60)"
    reading = child(program, timeout_seconds=2)
    assert reading.build.version == "2.14.1+cu126"  # type: ignore[attr-defined]
    assert reading.cuda_error == "no answer within 2 s"  # type: ignore[attr-defined]
    assert reading.error is None  # type: ignore[attr-defined]


def test_a_python_that_does_not_exist_is_an_error() -> None:
    reading = read_torch(environment={}, timeout_seconds=5, command=["/nonexistent/python"])
    assert reading.error is not None
    assert "could not be started" in reading.error
