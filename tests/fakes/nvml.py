"""A driver library with the functions of pynvml that the probe calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What the library raises when it does not know."""


@dataclass
class FakeGpu:
    name: str
    capability: tuple[int, int] | None = (8, 0)
    uuid: str = "GPU-1"
    total: int | None = 1000
    free: int = 900
    processes: Sequence[tuple[int, str, int | None]] | None = ()
    slices: Sequence[FakeGpu] = ()
    mig: bool | None = None
    broken: bool = False
    mode: int | None = None
    widths: tuple[int, int] | None = None
    bar1: int | None = None
    bus: str = "00000000:01:00.0"
    ecc_errors: int | None = None
    retired: tuple[int, int] | None = None
    "pages, by cause"
    remapped: tuple[int, int, int, int] | None = None


@dataclass
class FakeNvml:
    gpus: Sequence[FakeGpu] = ()
    driver: str = "535.274.02"
    cuda: int = 12020
    error: str | None = None
    closed: bool = field(default=False)
    nvlinks: Collection[tuple[str, str]] = ()
    "pairs of bus ids, lower first"
    ancestors: Mapping[tuple[str, str], int] = field(default_factory=dict)

    NVMLError = NVMLError

    def nvmlInit(self) -> None:  # noqa: N802
        if self.error:
            raise NVMLError(self.error)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed = True

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return self.driver.encode()

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return self.cuda

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        return next(name for gpu in self.gpus for known, name, _ in gpu.processes or () if known == pid)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        if self.gpus[index].broken:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(busId=gpu.bus.encode())

    def nvmlDeviceGetComputeMode(self, gpu: FakeGpu) -> int:  # noqa: N802
        return _known(gpu.mode)

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: FakeGpu) -> int:  # noqa: N802
        return _known(gpu.widths)[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:  # noqa: N802
        return _known(gpu.widths)[1]

    def nvmlDeviceGetBAR1MemoryInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(bar1Total=_known(gpu.bar1))

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (1, 0)
        return _known(gpu.ecc_errors)

    def nvmlDeviceGetRetiredPages(self, gpu: FakeGpu, cause: int) -> list[int]:  # noqa: N802
        return [0] * _known(gpu.retired)[cause]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: FakeGpu) -> int:  # noqa: N802
        return int(_known(gpu.retired)[1] > 0)

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:  # noqa: N802
        return _known(gpu.remapped)

    def nvmlDeviceGetP2PStatus(self, first: FakeGpu, second: FakeGpu, capability: int) -> int:  # noqa: N802
        return 0 if capability == 2 and (first.bus, second.bus) in self.nvlinks else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, first: FakeGpu, second: FakeGpu) -> int:  # noqa: N802
        return _known(self.ancestors.get((first.bus, second.bus)))

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return _known(gpu.capability)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(total=_known(gpu.total), free=gpu.free)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, _, used in _known(gpu.processes)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        raise NVMLError("Not Supported")

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        return [int(_known(gpu.mig)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        if index >= len(gpu.slices):
            raise NVMLError("Not Found")
        return gpu.slices[index]

    def nvmlDeviceGetAttributes(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(multiprocessorCount=14)


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError("Not Supported")
    return value
