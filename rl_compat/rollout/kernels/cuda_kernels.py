"""CUDA source compiled on demand by the NVRTC library that ships with torch, launched on torch's stream, and timed.

It needs no installed compiler, toolkit or headers.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

Argument = Tensor | int | float | None
C_TYPES = {torch.float32: "float", torch.float16: "f16", torch.bfloat16: "b16"}
"names of dtypes in the sources"


class Kernels(Protocol):
    """A kernel function and its launch."""

    def launch(self, name: str, grid: tuple[int, int], num_threads: int, arguments: Sequence[Argument]) -> None: ...


class KernelError(Exception):
    """Kernels cannot be compiled or loaded; the message has the reason."""


class CudaKernels:
    """The kernels of one source file on one device."""

    def __init__(
        self, source: str, macros: Mapping[str, str | int], *, device: torch.device, architecture: str | None = None
    ) -> None:
        """Compile for an architecture such as `sm_61`, or to PTX that the driver compiles for the device.

        Raises KernelError if the source cannot be compiled or loaded.
        """
        self._device = device
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._module = ctypes.c_void_p()
        self._driver = _driver()
        binary = compiled(source, macros, architecture=architecture)
        with torch.cuda.device(device):
            torch.cuda.current_stream(device)
            self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), binary))

    def launch(self, name: str, grid: tuple[int, int], num_threads: int, arguments: Sequence[Argument]) -> None:
        """Launch a kernel on the current stream, where a graph capture records it."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
        values = [c_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        self._check(
            self._driver.cuLaunchKernel(function, grid[0], grid[1], 1, num_threads, 1, 1, 0, stream, pointers, None)
        )

    def _check(self, status: int) -> None:
        if status != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise KernelError(f"the driver returned `{(text.value or b'unknown error').decode()}`")


def kernel_source(name: str) -> str:
    """The CUDA source of a file in this folder, after the common source."""
    folder = files("rl_compat.rollout.kernels")
    return folder.joinpath("kernel_base.cu").read_text() + folder.joinpath(f"{name}.cu").read_text()


def loaded_kernels(
    name: str, macros: Mapping[str, str | int], *, device: torch.device, architecture: str | None
) -> CudaKernels:
    """The kernels of a file, compiled for the architecture if NVRTC supports it, else by the driver.

    Raises KernelError, also if a library is missing or too old.
    """
    source = kernel_source(name)
    ways = [None] if architecture is None else [architecture, None]
    for way in ways:
        try:
            return CudaKernels(source, macros, device=device, architecture=way)
        except (KernelError, OSError, AttributeError) as error:
            reason = error
    raise KernelError(str(reason)) from reason


def c_value(argument: Argument) -> Any:
    """A kernel argument: the address of a tensor's data, an `int` or a `float`."""
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)


def compiled(source: str, macros: Mapping[str, str | int], *, architecture: str | None = None) -> bytes:
    """Machine code for an architecture, or PTX for the oldest one that NVRTC supports, which runs on all later ones.

    Raises KernelError with the compiler's log.
    """
    library = nvrtc_library()
    program = ctypes.c_void_p()
    _nvrtc(library, library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    options = ["--std=c++17", *(f"-D{name}={value}" for name, value in macros.items())]
    options += [] if architecture is None else [f"--gpu-architecture={architecture}"]
    pointers = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        status = library.nvrtcCompileProgram(program, len(options), pointers)
        if status != 0:
            log = _text(library, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode(errors="replace")
            raise KernelError(f"NVRTC does not compile for `{architecture}`: {log.strip(chr(0)).strip() or status}")
        if architecture is None:
            return _text(library, program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        return _text(library, program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def nvrtc_library() -> ctypes.CDLL:
    """The NVRTC library that torch was built with. Raises KernelError if there is none."""
    for name in _library_names():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise KernelError("the NVRTC library is not found")


def _library_names() -> Iterator[str]:
    major = (torch.version.cuda or "12").split(".")[0]
    site = Path(torch.__file__).parent
    if sys.platform == "win32":
        yield from (str(path) for path in sorted((site / "lib").glob("nvrtc64_*_0.dll")))
        return
    yield f"libnvrtc.so.{major}"
    folders = (site.parent / "nvidia").glob("*/lib"), [site / "lib", Path("/usr/local/cuda/lib64")]
    for folder in (folder for group in folders for folder in group):
        yield from (str(path) for path in sorted(folder.glob(f"libnvrtc*.so.{major}*")) if "builtins" not in path.name)


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
    size = ctypes.c_size_t()
    _nvrtc(library, getattr(library, size_of)(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _nvrtc(library, getattr(library, get)(program, buffer))
    return buffer.raw


def _nvrtc(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise KernelError(f"NVRTC returned `{library.nvrtcGetErrorString(status).decode()}`")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


Seconds = Callable[[Callable[[], object]], float]
"seconds of one run of an operation"
REPEATS = 10
"runs of an operation in one measurement"


def captured_seconds(run: Callable[[], object]) -> float:
    """Seconds of one run without its launch: several runs in one graph, the best of five replays."""
    run()
    stream = _side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(REPEATS):
                run()
    times: list[float] = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000 / REPEATS)
    return min(times)


@cache
def _side_stream() -> torch.cuda.Stream:
    """The stream of all measurements. cuBLAS keeps a workspace, 32 MiB on Hopper, for every stream that it has used."""
    return torch.cuda.Stream()


def launched_seconds(run: Callable[[], object]) -> float:
    """Seconds of one run including its launch: several runs, the best of five rounds."""
    run()
    times: list[float] = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / REPEATS)
    return min(times)
