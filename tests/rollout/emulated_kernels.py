"""The decode kernels run on the CPU, each CUDA thread a fiber: slow, exact, and without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from rl_compat.rollout.cuda_kernels import Argument, c_value

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "rl_compat" / "rollout" / "decode_kernels.cu"
COMPILER = shutil.which("g++")


class EmulatedKernels:
    """Launches as `CudaKernels` does, and is done when it returns."""

    def __init__(self, macros: Mapping[str, str | int]) -> None:
        self._library = _library(tuple(f"-D{name}={value}" for name, value in macros.items()))
        self.launched: list[str] = []

    def launch(self, name: str, grid: tuple[int, int], num_threads: int, arguments: Sequence[Argument]) -> None:
        self.launched.append(name)
        getattr(self._library, f"run_{name}")(*grid, num_threads, *(c_value(argument) for argument in arguments))


@cache
def _library(macros: tuple[str, ...]) -> ctypes.CDLL:
    target = Path(tempfile.mkdtemp()) / "kernels.so"
    command = [COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-w", *macros, f'-DKERNELS="{KERNELS}"']
    subprocess.run([*command, str(HERE / "run_kernels.cpp"), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))
