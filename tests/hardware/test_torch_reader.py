"""torch in a child process: what it says, and what happens when it cannot."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rl_compat.hardware.gpu.readings import TorchReading
from rl_compat.hardware.torch_child import MARK, PATIENCE_SECONDS
from rl_compat.hardware.torch_reader import parse_child_output, read_torch
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
    assert parse_child_output(lines({"stage": "torch", "error": text}), failure=None).error == text


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


def begun(name: str) -> dict[str, object]:
    return {"stage": "begin", "of": name}


def test_a_crash_belongs_to_the_stage_that_was_begun() -> None:
    reading = parse_child_output(
        lines(
            TORCH,
            CUDA,
            begun("import transformers"),
            {"stage": "import transformers"},
            begun("import xformers"),
            {"stage": "import xformers", "error": "ImportError: no"},
            begun("import flash-attn"),
        ),
        failure="killed by signal 11 (SIGSEGV)",
    )
    assert reading.import_errors == {"xformers": "ImportError: no", "flash-attn": "killed by signal 11 (SIGSEGV)"}
    assert reading.stopped == "at `import flash-attn`: killed by signal 11 (SIGSEGV)"
    assert (reading.cuda_error, reading.bitsandbytes_library) == (None, None)


def test_a_crash_of_bitsandbytes_is_its_own() -> None:
    reading = parse_child_output(lines(TORCH, CUDA, begun("bitsandbytes")), failure="killed by signal 6 (SIGABRT)")
    assert reading.bitsandbytes_library == "killed by signal 6 (SIGABRT)"


def test_a_crash_after_the_last_stage_takes_nothing_back() -> None:
    stages = (TORCH, CUDA, begun("bitsandbytes"), {"stage": "bitsandbytes", "library": "cuda"})
    reading = parse_child_output(lines(*stages), failure="killed by signal 11 (SIGSEGV)")
    assert (reading.bitsandbytes_library, reading.stopped, reading.cuda_error) == ("cuda", None, None)


def test_a_crash_of_cuda_keeps_torch_and_is_in_its_build() -> None:
    reading = parse_child_output(lines(TORCH, begun("cuda")), failure="killed by signal 11 (SIGSEGV)")
    assert reading.build is not None
    assert reading.build.cuda_error == reading.cuda_error == "killed by signal 11 (SIGSEGV)"


def test_peer_access_and_the_time_of_the_import_are_read() -> None:
    peers = {"stage": "peers", "access": [[0, 1, True], [1, 0, False]]}
    reading = parse_child_output(lines({**TORCH, "seconds": 1.5}, CUDA, peers), failure=None)
    assert reading.peer_access == {(0, 1): True, (1, 0): False}
    assert reading.seconds == 1.5


def package(folder: Path, name: str, code: str, *, distribution: str | None = None) -> None:
    """A module, and the metadata that makes it an installed distribution."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution or name}\nVersion: 1.0\n")


TORCH_STUB = """
__version__ = "2.6.0"
class version: cuda = "12.6"
class _C: pass
class cuda:
    is_available = staticmethod(lambda: False)
"""


def real_child(folder: Path, *, packages: bool = True) -> TorchReading:
    """The program itself, in an environment of nothing but the folder's packages."""
    program = Path(read_torch.__code__.co_filename).with_name("torch_child.py")
    command = [sys.executable, "-S", "-P", str(program)]
    environment = {"PYTHONPATH": str(folder)}
    return read_torch(environment=environment, timeout_seconds=20, packages=packages, command=command)


def test_broken_packages_are_told_apart(tmp_path: Path) -> None:
    """A-ENV-13: the crash of one does not lose what was known before it."""
    package(tmp_path, "torch", TORCH_STUB)
    package(tmp_path, "transformers", "print('half a line', end='')")
    package(tmp_path, "triton", "raise ImportError('libcuda.so cannot be found')")
    package(
        tmp_path,
        "flash_attn",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        distribution="flash-attn",
    )
    package(tmp_path, "xformers", "raise SystemExit(3)")
    package(tmp_path, "vllm", "raise ImportError('not reached after a crash')")
    reading = real_child(tmp_path)
    assert reading.build == TorchBuild(version="2.6.0", cuda="12.6")
    assert reading.stopped == "at `import flash-attn`: killed by signal 11 (SIGSEGV)"
    assert reading.import_errors == {
        "triton": "ImportError: libcuda.so cannot be found",
        "xformers": "SystemExit: 3",
        "flash-attn": "killed by signal 11 (SIGSEGV)",
    }


def test_a_crash_of_a_slow_package_leaves_bitsandbytes_known(tmp_path: Path) -> None:
    """They are asked at the same time, in a child each."""
    package(tmp_path, "torch", TORCH_STUB)
    package(tmp_path, "vllm", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    (tmp_path / "bitsandbytes").mkdir()
    (tmp_path / "bitsandbytes/__init__.py").write_text("import torch\ntorch.compile(dynamic=True)(print)")
    (tmp_path / "bitsandbytes/cextension.py").write_text("class lib: compiled_with_cuda = True")
    reading = real_child(tmp_path)
    assert reading.import_errors == {"vllm": "killed by signal 11 (SIGSEGV)"}
    assert reading.bitsandbytes_library == "cuda"


def test_packages_are_left_alone_where_nobody_asks_for_them(tmp_path: Path) -> None:
    package(tmp_path, "torch", TORCH_STUB)
    package(tmp_path, "transformers", "raise ImportError('asked')")
    assert real_child(tmp_path, packages=False).import_errors == {}
    assert real_child(tmp_path).import_errors == {"transformers": "ImportError: asked"}


def test_a_package_that_a_plan_may_use_is_imported_for_a_plan_too(tmp_path: Path) -> None:
    package(tmp_path, "torch", TORCH_STUB)
    package(tmp_path, "flash_attn", "raise ImportError('undefined symbol')", distribution="flash-attn")
    assert real_child(tmp_path, packages=False).import_errors == {"flash-attn": "ImportError: undefined symbol"}


def test_importing_fetches_nothing(tmp_path: Path) -> None:
    package(tmp_path, "torch", TORCH_STUB)
    package(tmp_path, "transformers", "import os\nraise ImportError(os.environ['HF_HUB_OFFLINE'])")
    assert real_child(tmp_path).import_errors == {"transformers": "ImportError: 1"}


def test_a_package_that_is_not_installed_is_no_error(tmp_path: Path) -> None:
    package(tmp_path, "torch", TORCH_STUB)
    (tmp_path / "xformers.py").write_text("raise ImportError('not installed, only lying there')")
    reading = real_child(tmp_path)
    assert (reading.import_errors, reading.stopped, reading.bitsandbytes_library) == ({}, None, None)
    assert reading.seconds is not None


def test_native_code_that_xformers_only_warns_of_is_an_error(tmp_path: Path) -> None:
    package(tmp_path, "torch", TORCH_STUB)
    package(tmp_path, "xformers", "")
    (tmp_path / "xformers.py").unlink()
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers/__init__.py").write_text("from . import _cpp_lib")
    (tmp_path / "xformers/_cpp_lib.py").write_text(
        "_cpp_library_load_exception = RuntimeError('xFormers was built for PyTorch 2.9')"
    )
    assert real_child(tmp_path).import_errors == {"xformers": "RuntimeError: xFormers was built for PyTorch 2.9"}


def test_native_code_is_loaded_where_the_package_has_such_a_module(tmp_path: Path) -> None:
    package(tmp_path, "torch", TORCH_STUB)
    for name, native in (("vllm", "_C"), ("liger_kernel", None)):
        package(tmp_path, name, "")
        (tmp_path / f"{name}.py").unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        if native:
            (tmp_path / name / f"{native}.py").write_text("raise ImportError('_C.abi3.so: undefined symbol: x')")
    assert real_child(tmp_path).import_errors == {"vllm": "ImportError: _C.abi3.so: undefined symbol: x"}


def test_peers_that_cannot_be_asked_are_said() -> None:
    failed = {"stage": "peers", "error": "RuntimeError: no"}
    assert parse_child_output(lines(TORCH, CUDA, begun("peers"), failed), failure=None).stopped == (
        "at `peers`: RuntimeError: no"
    )


def test_an_alarm_is_a_hang_of_its_stage() -> None:
    said = lines(TORCH, CUDA, begun("import triton"))
    program = f"import signal, os; print({said!r}, flush=True); os.kill(os.getpid(), signal.SIGALRM)"
    assert child(program).import_errors == {"triton": f"no answer within {PATIENCE_SECONDS} s"}  # type: ignore[attr-defined]


def test_a_child_that_leaves_others_behind_ends_at_the_timeout() -> None:
    program = "import subprocess, time; subprocess.Popen(['sleep', '3600']); time.sleep(3600)"
    reading = child(program, timeout_seconds=0.5)
    assert reading.error == "no answer within 0.5 s"  # type: ignore[attr-defined]


def test_a_python_that_does_not_exist_is_an_error() -> None:
    reading = read_torch(environment={}, timeout_seconds=5, command=["/nonexistent/python"])
    assert reading.error is not None
    assert "could not be started" in reading.error
