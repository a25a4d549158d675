"""The driver's library through ctypes, with the functions of `pynvml` that the probe calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from functools import partial
from typing import Any

LIBRARY_PLACES = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
)
UNKNOWN_BYTES = 2**64 - 1
"NVML_VALUE_NOT_AVAILABLE"
INSUFFICIENT_SIZE = 7


class MemoryInfo(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Bar1Info(ctypes.Structure):
    _fields_ = (("bar1Total", c_ulonglong), ("bar1Free", c_ulonglong), ("bar1Used", c_ulonglong))


class PciInfo(ctypes.Structure):
    _fields_ = (("legacy", c_char * 16), ("numbers", c_uint * 5), ("busId", c_char * 32))


class SliceAttributes(ctypes.Structure):
    _fields_ = (("multiprocessorCount", c_uint), ("others", c_uint * 7), ("memorySizeMB", c_ulonglong))


class RunningProcess(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("bytes", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))

    @property
    def usedGpuMemory(self) -> int | None:  # noqa: N802
        return None if self.bytes == UNKNOWN_BYTES else int(self.bytes)


Text = c_char * 96

FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nvmlInit": ("nvmlInit_v2", ()),
    "nvmlShutdown": ("nvmlShutdown", ()),
    "nvmlSystemGetDriverVersion": ("nvmlSystemGetDriverVersion", (Text,)),
    "nvmlSystemGetCudaDriverVersion_v2": ("nvmlSystemGetCudaDriverVersion_v2", (c_int,)),
    "nvmlSystemGetProcessName": ("nvmlSystemGetProcessName", (Text,)),
    "nvmlDeviceGetCount": ("nvmlDeviceGetCount_v2", (c_uint,)),
    "nvmlDeviceGetHandleByIndex": ("nvmlDeviceGetHandleByIndex_v2", (c_void_p,)),
    "nvmlDeviceGetName": ("nvmlDeviceGetName", (Text,)),
    "nvmlDeviceGetUUID": ("nvmlDeviceGetUUID", (Text,)),
    "nvmlDeviceGetPciInfo": ("nvmlDeviceGetPciInfo_v3", (PciInfo,)),
    "nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo", (MemoryInfo,)),
    "nvmlDeviceGetBAR1MemoryInfo": ("nvmlDeviceGetBAR1MemoryInfo", (Bar1Info,)),
    "nvmlDeviceGetCudaComputeCapability": ("nvmlDeviceGetCudaComputeCapability", (c_int, c_int)),
    "nvmlDeviceGetComputeMode": ("nvmlDeviceGetComputeMode", (c_uint,)),
    "nvmlDeviceGetCurrPcieLinkWidth": ("nvmlDeviceGetCurrPcieLinkWidth", (c_uint,)),
    "nvmlDeviceGetMaxPcieLinkWidth": ("nvmlDeviceGetMaxPcieLinkWidth", (c_uint,)),
    "nvmlDeviceGetP2PStatus": ("nvmlDeviceGetP2PStatus", (c_uint,)),
    "nvmlDeviceGetTopologyCommonAncestor": ("nvmlDeviceGetTopologyCommonAncestor", (c_uint,)),
    "nvmlDeviceGetMigMode": ("nvmlDeviceGetMigMode", (c_uint, c_uint)),
    "nvmlDeviceGetMaxMigDeviceCount": ("nvmlDeviceGetMaxMigDeviceCount", (c_uint,)),
    "nvmlDeviceGetMigDeviceHandleByIndex": ("nvmlDeviceGetMigDeviceHandleByIndex", (c_void_p,)),
    "nvmlDeviceGetTotalEccErrors": ("nvmlDeviceGetTotalEccErrors", (c_ulonglong,)),
    "nvmlDeviceGetRetiredPagesPendingStatus": ("nvmlDeviceGetRetiredPagesPendingStatus", (c_uint,)),
    "nvmlDeviceGetRemappedRows": ("nvmlDeviceGetRemappedRows", (c_uint, c_uint, c_uint, c_uint)),
    "nvmlDeviceGetAttributes": ("nvmlDeviceGetAttributes_v2", (SliceAttributes,)),
}
"by the name in pynvml: the library's name, and the types of what it writes after its arguments"


class DriverLibraryError(Exception):
    """An error of the library, with its code."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class DriverLibrary:
    """libnvidia-ml at a path, with pynvml's functions. Raises OSError if it cannot be loaded."""

    NVMLError = DriverLibraryError

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            return partial(self._processes, name)
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return partial(self._answer, *FUNCTIONS[name])

    def _answer(self, function: str, kinds: tuple[Any, ...], *arguments: Any) -> Any:
        """What a function writes: a text, a number, a record or a handle, or a tuple of several."""
        if kinds == (Text,):
            text = Text()
            self._call(function, *arguments, text, c_uint(ctypes.sizeof(Text)))
            return text.value.decode(errors="replace")
        written = [kind() for kind in kinds]
        self._call(function, *arguments, *map(byref, written))
        answers = tuple(item.value if isinstance(item, c_uint | c_int | c_ulonglong) else item for item in written)
        return answers[0] if len(answers) == 1 else answers

    def _call(self, function: str, *arguments: Any) -> None:
        entry = getattr(self._library, function, None)
        if entry is None:
            raise DriverLibraryError("Function Not Found")
        code = entry(*arguments)
        if code != 0:
            raise DriverLibraryError(self._error_text(code), code)

    def _error_text(self, code: int) -> str:
        entry = getattr(self._library, "nvmlErrorString", None)
        if entry is None:
            return f"NVML error {code}"
        entry.restype = c_char_p
        return (entry(code) or b"").decode(errors="replace") or f"NVML error {code}"

    def nvmlDeviceGetRetiredPages(self, handle: c_void_p, cause: int) -> list[int]:  # noqa: N802
        """Their addresses are not read: as many zeros as there are pages."""
        count = c_uint(0)
        try:
            self._call("nvmlDeviceGetRetiredPages", handle, cause, byref(count), None)
        except DriverLibraryError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
        return [0] * count.value

    def _processes(self, function: str, handle: c_void_p) -> list[RunningProcess]:
        """Asked twice: for their number, then for the processes, whose number may have grown."""
        newest = function + ("_v3" if hasattr(self._library, f"{function}_v3") else "_v2")
        count = c_uint(0)
        try:
            self._call(newest, handle, byref(count), None)
            return []
        except DriverLibraryError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
        count.value = count.value * 2 + 5
        found = (RunningProcess * count.value)()
        self._call(newest, handle, byref(count), found)
        return list(found[: count.value])
