"""GPUs and driver as nvidia-smi prints them, including old and broken drivers."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Mapping, Sequence

from rl_compat.hardware.gpu.readings import NvmlDevice, NvmlReading
from rl_compat.hardware.system.timeouts import Finished, no_answer, run_program
from rl_compat.hardware.types import Driver
from rl_compat.units import MIB

DRIVER_NOT_LOADED = "Driver Not Loaded"
NO_DEVICES = "No devices were found"
FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "pci.bus_id",
    "memory.total",
    "memory.free",
    "compute_cap",
    "compute_mode",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "mig.mode.current",
)
"drivers before R510 do not know `compute_cap`, before R450 `mig.mode.current`"


def read_smi(program: str, *, timeout_seconds: float) -> NvmlReading:
    """The reading of nvidia-smi. Raises OSError if it cannot run, TimeoutError if it hangs, ValueError if it fails."""
    finished, fields = _ask(program, timeout_seconds)
    text = finished.stdout
    if finished.returncode != 0 and not _rows(text, fields)[0] and NO_DEVICES not in text:
        said = _nvml_error(f"{text} {finished.stderr}")
        raise ValueError(said or f"nvidia-smi ended with exit code {finished.returncode}")
    return parse_smi(text, fields)


def _ask(program: str, timeout_seconds: float) -> tuple[Finished, list[str]]:
    """The output and its fields; a second query leaves out fields that this driver does not know."""
    deadline = time.monotonic() + timeout_seconds
    fields = list(FIELDS)
    while True:
        command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        finished = run_program(command, timeout_seconds=max(0.1, deadline - time.monotonic()))
        if finished.returncode is None:
            raise TimeoutError(f"`nvidia-smi` gave {no_answer(timeout_seconds)}")
        unknown = re.search(r'Field "([^"]+)" is not a valid field', finished.stdout + finished.stderr)
        if unknown is None or unknown.group(1) not in fields:
            return finished, fields
        fields.remove(unknown.group(1))


def parse_smi(text: str, fields: Sequence[str] = FIELDS) -> NvmlReading:
    """The lines of `--query-gpu=… --format=csv,noheader,nounits`; memory is in MiB.

    An unexpected line becomes a warning. Raises ValueError if there are such lines and no rows.
    """
    rows, strange = _rows(text, fields)
    if strange and not rows and NO_DEVICES not in text:
        raise ValueError(f"nvidia-smi answers with the unexpected line `{strange[0]}`")
    return NvmlReading(
        devices=tuple(_device(row, position) for position, row in enumerate(rows)),
        driver=Driver(version=next((row["driver_version"] for row in rows if row["driver_version"]), None)),
        warnings=tuple(f"NVML cannot read a GPU, nvidia-smi says: {line}" for line in strange) if rows else (),
        source="nvidia-smi",
    )


def _device(row: Mapping[str, str | None], position: int) -> NvmlDevice:
    capability = re.fullmatch(r"([0-9]+)\.([0-9]+)", row.get("compute_cap") or "")
    return NvmlDevice(
        index=_whole(row.get("index")) if row.get("index") else position,  # type: ignore[arg-type]
        name=row.get("name") or "unknown",
        compute_capability=(int(capability.group(1)), int(capability.group(2))) if capability else None,
        uuid=row.get("uuid"),
        pci_bus_id=row.get("pci.bus_id"),
        memory_total_bytes=_mebibytes(row.get("memory.total")),
        memory_free_bytes=_mebibytes(row.get("memory.free")),
        mig_enabled=row.get("mig.mode.current") == "Enabled",
        compute_mode=(row.get("compute_mode") or "").lower() or None,
        pcie_width=_whole(row.get("pcie.link.width.current")),
        pcie_width_max=_whole(row.get("pcie.link.width.max")),
    )


def _rows(text: str, fields: Sequence[str]) -> tuple[list[dict[str, str | None]], list[str]]:
    """Rows by field, with None for unknown values, and the unexpected lines."""
    rows: list[dict[str, str | None]] = []
    strange: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        values = [value.strip() for value in next(csv.reader([line], skipinitialspace=True))]
        if len(values) == len(fields):
            rows.append({field: _known(value) for field, value in zip(fields, values, strict=True)})
        else:
            strange.append(_one_line(line))
    return rows, strange


def _known(value: str) -> str | None:
    """None for `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `ERR!` and the like."""
    return None if not value or value.startswith("[") or value in ("N/A", "ERR!") else value


def _whole(value: str | None) -> int | None:
    return int(value) if value and value.isdigit() else None


def _mebibytes(value: str | None) -> int | None:
    number = _whole(value)
    return None if number is None else number * MIB


def _nvml_error(text: str) -> str:
    """NVML's name of an error that nvidia-smi prints, or else the printed text."""
    if "couldn't communicate with the NVIDIA driver" in text:
        return DRIVER_NOT_LOADED
    return _one_line(text).removeprefix("Failed to initialize NVML: ")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
