"""`rlc probe`: the hardware and software of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_compat.cli.common import AsJson, HardwareFile, load_hardware, new_app
from rl_compat.cli.machine_lines import describe
from rl_compat.cli.render import print_json, print_lines, print_note, print_table, print_warning
from rl_compat.errors import UsageError
from rl_compat.units import format_bytes

if TYPE_CHECKING:
    from rl_compat.hardware.types import Device, Folder, Hardware

app = new_app()

COLUMNS = ("device", "name", "capability", "memory free / total", "SMs", "bf16", "PCIe lanes", "others on it", "id")
FOLDER_COLUMNS = ("folder for", "free", "file system", "writable", "path")
NETWORK_SECONDS = 5.0


@app.command()
def probe(
    hardware: HardwareFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Also write the recording to this file.")
    ] = None,
    network: Annotated[
        bool, typer.Option("--network", help="Also check whether the hub and the package indexes answer.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show the GPUs, the driver, the host and the installed software, as this process sees them.

    The JSON is a recording: pass it to any command with `--hardware` to use this machine's hardware elsewhere.

    Example: rlc probe --json > p40.json
    """
    from rl_compat.hardware.recording import save_recording, to_json

    machine = _machine(hardware, network=network)
    if output is not None:
        save_recording(machine, output)
        print_note(f"wrote {output}")
    if as_json:
        print_json(to_json(machine))
        return 0
    if machine.devices:
        print_table("devices", COLUMNS, (_row(device, f"cuda:{device.index}") for device in machine.devices))
    if machine.hidden_devices:
        rows = (_row(device, f"GPU {device.index}") for device in machine.hidden_devices)
        print_table("hidden devices", COLUMNS, rows)
    print_lines(describe(machine))
    if machine.host.folders:
        print_table("folders", FOLDER_COLUMNS, (_folder_row(folder) for folder in machine.host.folders))
    for warning in machine.warnings:
        print_warning(warning)
    return 0


def _machine(file: Path | None, *, network: bool) -> Hardware:
    """The recording, or this machine with all packages. Raises UsageError for `--network` with a recording."""
    from rl_compat.hardware.probe import probe as look

    if file is None:
        return look(network_timeout_seconds=NETWORK_SECONDS if network else None)
    if network:
        raise UsageError(
            f"`--network` contacts servers from this machine, and `{file}` is a recording", hint="use one of them"
        )
    return load_hardware(file)


def _row(device: Device, label: str) -> tuple[str, ...]:
    major, minor = device.compute_capability
    bf16 = {True: "native", False: "emulated only", None: "unknown"}[device.bf16_native]
    return (
        label,
        device.name,
        f"{major}.{minor}",
        f"{format_bytes(device.memory_free_bytes)} / {format_bytes(device.memory_total_bytes)}",
        str(device.num_multiprocessors or "unknown"),
        bf16,
        _lanes(device),
        _others(device),
        device.uuid or device.pci_bus_id or "unknown",
    )


def _others(device: Device) -> str:
    if device.processes is None:
        return "unknown"
    return ", ".join(
        f"{process.pid} ({format_bytes(process.used_bytes) if process.used_bytes else 'unknown size'})"
        for process in device.processes
    )


def _lanes(device: Device) -> str:
    if device.pcie_width is None:
        return "unknown"
    return f"{device.pcie_width} of {device.pcie_width_max}" if device.pcie_width_max else str(device.pcie_width)


def _folder_row(folder: Folder) -> tuple[str, ...]:
    free = "unknown" if folder.free_bytes is None else format_bytes(folder.free_bytes)
    writable = "yes" if folder.writable else f"no: {folder.error or 'the reason is not known'}"
    return folder.role.replace("_", " "), free, folder.file_system or "unknown", writable, folder.path
