"""`rlc probe`: what this machine is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_compat.cli.common import AsJson, HardwareFile, load_hardware, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_table, print_warning
from rl_compat.units import format_bytes

if TYPE_CHECKING:
    from rl_compat.hardware.types import Device, Hardware

app = new_app()

COLUMNS = ("device", "name", "capability", "memory free / total", "SMs", "bf16", "others on it", "id")


@app.command()
def probe(
    hardware: HardwareFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Also write the recording to this file.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the GPUs, the driver, the host and the installed software, as this process sees them.

    The JSON is a recording: given to any command with `--hardware`, it stands for this machine elsewhere.

    Example: rlc probe --json > p40.json
    """
    from rl_compat.hardware.recording import save_recording, to_json

    machine = load_hardware(hardware)
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
    for warning in machine.warnings:
        print_warning(warning)
    return 0


def describe(machine: Hardware) -> list[str]:
    """What is not a device, one fact a line."""
    host, software, driver = machine.host, machine.software, machine.driver
    facts = [
        ("GPU", "none that CUDA programs can use" if not machine.devices else None),
        ("driver", _driver(machine)),
        ("NVML", driver.nvml_error if machine.devices or machine.hidden_devices else None),
        ("cpu", f"{host.cpu_name}, {host.num_cores} cores usable{_features(host.cpu_features)}"),
        ("memory", _memory(machine)),
        ("/dev/shm", _of(host.shm_free_bytes, host.shm_total_bytes)),
        ("disk here", None if host.disk_free_bytes is None else f"{format_bytes(host.disk_free_bytes)} free"),
        ("system", _system(machine)),
        ("python", software.python),
        ("torch", _torch(machine)),
        ("bitsandbytes", _bitsandbytes(machine)),
        *((name, version) for name, version in software.packages.items() if name not in ("torch", "bitsandbytes")),
        *((name, value or "(empty)") for name, value in machine.environment.items()),
    ]
    shown = [(name, value) for name, value in facts if value]
    width = max(len(name) for name, _ in shown)
    return [f"{name:<{width}}  {value}" for name, value in shown]


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
        _others(device),
        device.uuid or device.pci_bus_id or "unknown",
    )


def _others(device: Device) -> str:
    if device.processes is None:
        return "unknown"
    return _joined(
        f"{process.pid} ({format_bytes(process.used_bytes) if process.used_bytes else 'unknown size'})"
        for process in device.processes
    )


def _driver(machine: Hardware) -> str | None:
    driver = machine.driver
    if driver.version is None and driver.cuda_version is None:
        return None
    module = f", {driver.kernel_module} kernel module" if driver.kernel_module else ""
    cuda = f", runs CUDA up to {driver.cuda_version}" if driver.cuda_version else ""
    return f"{driver.version or 'of unknown version'}{cuda}{module}"


def _memory(machine: Hardware) -> str:
    host = machine.host
    limit = f", limited to {format_bytes(host.ram_limit_bytes)}" if host.ram_limit_bytes < host.ram_total_bytes else ""
    return f"{format_bytes(host.ram_available_bytes)} available of {format_bytes(host.ram_total_bytes)}{limit}"


def _system(machine: Hardware) -> str:
    host = machine.host
    marks = _joined([*(["WSL"] if host.wsl else []), *([f"in {host.container}"] if host.container else [])])
    return f"{host.platform}, kernel {host.kernel}{', ' + marks if marks else ''}"


def _torch(machine: Hardware) -> str | None:
    build, error = machine.software.torch, machine.software.torch_error
    if build is None:
        return f"does not import: {error}" if error else machine.software.packages.get("torch")
    if build.cuda is None:
        return f"{build.version}, CPU build"
    sees = "sees the GPU" if build.cuda_available else "sees no GPU"
    return f"{build.version}, CUDA {build.cuda}, {sees}, code for {' '.join(build.arch_list) or 'unknown'}"


def _bitsandbytes(machine: Hardware) -> str | None:
    version = machine.software.packages.get("bitsandbytes")
    library = machine.software.bitsandbytes_library
    return f"{version}, library: {library or 'not looked at'}" if version else None


def _of(free: int | None, total: int | None) -> str | None:
    return None if free is None or total is None else f"{format_bytes(free)} free of {format_bytes(total)}"


def _features(features: tuple[str, ...]) -> str:
    return f", {' '.join(features)}" if features else ""


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)
