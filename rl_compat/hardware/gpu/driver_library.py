"""The driver's library through ctypes, with the functions of `pynvml` that the probe calls."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
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
TEXT_BYTES = 96


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


class DriverLibraryError(Exception):
    """An error of the library, with its code."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class DriverLibrary:
    """libnvidia-ml at a path. Raises OSError if it cannot be loaded."""

    NVMLError = DriverLibraryError

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

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

    def _number(self, function: str, *arguments: Any) -> int:
        value = c_uint()
        self._call(function, *arguments, byref(value))
        return value.value

    def _text(self, function: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self._call(function, *arguments, buffer, c_uint(TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def _fill(self, record: Any, function: str, *arguments: Any) -> Any:
        self._call(function, *arguments, byref(record))
        return record

    def _handle(self, function: str, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        self._call(function, *arguments, byref(handle))
        return handle

    def nvmlInit(self) -> None:  # noqa: N802
        self._call("nvmlInit_v2")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._call("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self._text("nvmlSystemGetDriverVersion")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return self._number("nvmlSystemGetCudaDriverVersion_v2")

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        return self._text("nvmlSystemGetProcessName", c_uint(pid))

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> c_void_p:  # noqa: N802
        return self._handle("nvmlDeviceGetHandleByIndex_v2", c_uint(index))

    def nvmlDeviceGetName(self, handle: c_void_p) -> str:  # noqa: N802
        return self._text("nvmlDeviceGetName", handle)

    def nvmlDeviceGetUUID(self, handle: c_void_p) -> str:  # noqa: N802
        return self._text("nvmlDeviceGetUUID", handle)

    def nvmlDeviceGetPciInfo(self, handle: c_void_p) -> Any:  # noqa: N802
        return self._fill(PciInfo(), "nvmlDeviceGetPciInfo_v3", handle)

    def nvmlDeviceGetMemoryInfo(self, handle: c_void_p) -> Any:  # noqa: N802
        return self._fill(MemoryInfo(), "nvmlDeviceGetMemoryInfo", handle)

    def nvmlDeviceGetBAR1MemoryInfo(self, handle: c_void_p) -> Any:  # noqa: N802
        return self._fill(Bar1Info(), "nvmlDeviceGetBAR1MemoryInfo", handle)

    def nvmlDeviceGetCudaComputeCapability(self, handle: c_void_p) -> tuple[int, int]:  # noqa: N802
        major, minor = c_int(), c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", handle, byref(major), byref(minor))
        return major.value, minor.value

    def nvmlDeviceGetComputeMode(self, handle: c_void_p) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetComputeMode", handle)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: c_void_p) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetCurrPcieLinkWidth", handle)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: c_void_p) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetMaxPcieLinkWidth", handle)

    def nvmlDeviceGetP2PStatus(self, first: c_void_p, second: c_void_p, capability: int) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetP2PStatus", first, second, c_uint(capability))

    def nvmlDeviceGetTopologyCommonAncestor(self, first: c_void_p, second: c_void_p) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetTopologyCommonAncestor", first, second)

    def nvmlDeviceGetMigMode(self, handle: c_void_p) -> tuple[int, int]:  # noqa: N802
        current, pending = c_uint(), c_uint()
        self._call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending))
        return current.value, pending.value

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: c_void_p) -> int:  # noqa: N802
        return self._number("nvmlDeviceGetMaxMigDeviceCount", handle)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: c_void_p, index: int) -> c_void_p:  # noqa: N802
        return self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(index))

    def nvmlDeviceGetAttributes(self, handle: c_void_p) -> Any:  # noqa: N802
        return self._fill(SliceAttributes(), "nvmlDeviceGetAttributes_v2", handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: c_void_p) -> list[RunningProcess]:  # noqa: N802
        return self._processes("nvmlDeviceGetComputeRunningProcesses", handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: c_void_p) -> list[RunningProcess]:  # noqa: N802
        return self._processes("nvmlDeviceGetGraphicsRunningProcesses", handle)

    def _processes(self, function: str, handle: c_void_p) -> list[RunningProcess]:
        name = next((f"{function}{suffix}" for suffix in ("_v3", "_v2") if self._has(f"{function}{suffix}")), None)
        if name is None:
            raise DriverLibraryError("Function Not Found")
        count = c_uint(0)
        try:
            self._call(name, handle, byref(count), None)
            return []
        except DriverLibraryError as error:
            if error.code != INSUFFICIENT_SIZE:
                raise
        count.value = count.value * 2 + 5
        found = (RunningProcess * count.value)()
        self._call(name, handle, byref(count), found)
        return list(found[: count.value])

    def _has(self, function: str) -> bool:
        return getattr(self._library, function, None) is not None
