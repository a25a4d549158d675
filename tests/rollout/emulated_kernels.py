"""The decode kernels run on the CPU, each CUDA thread a fiber: slow, exact, and without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from rl_compat.rollout.kernels.cuda_kernels import Argument, c_value, kernel_source

HERE = Path(__file__).parent
RUNNERS = {"decode_kernels": HERE / "run_kernels.cpp", "linear_kernels": HERE / "run_linear.cpp"}
COMPILER = shutil.which("g++")


class EmulatedKernels:
    """Launches as `CudaKernels` does, and is done when it returns."""

    def __init__(self, macros: Mapping[str, str | int], source: str = "decode_kernels") -> None:
        self._library = _library(source, tuple(f"-D{name}={value}" for name, value in macros.items()))
        self.launched: list[str] = []

    def launch(self, name: str, grid: tuple[int, int], num_threads: int, arguments: Sequence[Argument]) -> None:
        self.launched.append(name)
        getattr(self._library, f"run_{name}")(*grid, num_threads, *(c_value(argument) for argument in arguments))


@cache
def _library(source: str, macros: tuple[str, ...]) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    target, kernels = folder / "kernels.so", write_source(folder, source)
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-w", *macros, f'-DKERNELS="{kernels}"', f"-I{HERE}"]
    subprocess.run([*command, str(RUNNERS[source]), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


def write_source(folder: Path, source: str) -> Path:
    path = folder / f"{source}.cu"
    path.write_text(kernel_source(source))
    return path
