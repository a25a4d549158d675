"""`rlc probe`: the hardware and software of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from rl_compat.cli.common import HardwareFile, load_hardware
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_table, print_warning
from rl_compat.errors import UsageError
from rl_compat.hardware.probe import probe as look
from rl_compat.hardware.recording import save_recording, to_json
from rl_compat.hardware.types import Device, Endpoint, Folder, Hardware, Host, Link
from rl_compat.units import format_bytes

app = new_app()

COLUMNS = ("device", "name", "capability", "memory free / total", "SMs", "bf16", "PCIe lanes", "others on it", "id")
FOLDER_COLUMNS = ("folder for", "free", "file system", "writable", "path")
NETWORK_SECONDS = 5.0
UNNAMED = ("torch", "bitsandbytes")
"packages with a separate line"


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


def describe(machine: Hardware) -> list[str]:
    """Every known fact with its name, in aligned columns."""
    shown = [(name, value) for name, value in _facts(machine) if value]
    width = max(len(name) for name, _ in shown)
    return [f"{name:<{width}}  {value}" for name, value in shown]


def _facts(machine: Hardware) -> Iterator[tuple[str, str | None]]:
    host, software, driver = machine.host, machine.software, machine.driver
    yield "GPU", "none that CUDA programs can use" if not machine.devices else None
    if not machine.devices:
        for gpu in machine.pci_gpus or ():
            bound = f"served by `{gpu.kernel_driver}`" if gpu.kernel_driver else "served by no driver"
            yield "on the PCI bus", f"{gpu.bus_id} 10de:{gpu.device_id}, {bound}"
    yield "driver", _driver(machine)
    yield "NVML", driver.nvml_error if machine.devices or machine.hidden_devices or machine.pci_gpus else None
    yield "closed to us", ", ".join(driver.closed_device_nodes)
    special = [device for device in machine.devices if device.compute_mode not in (None, "default")]
    yield "compute mode", ", ".join(f"cuda:{device.index} {device.compute_mode}" for device in special)
    yield from _links(machine.links)
    features = f", {' '.join(host.cpu_features)}" if host.cpu_features else ""
    yield "cpu", f"{host.cpu_name}, {host.num_cores} cores usable{features}"
    yield "memory", _memory(host)
    if host.shm_free_bytes is not None and host.shm_total_bytes is not None:
        yield "/dev/shm", f"{format_bytes(host.shm_free_bytes)} free of {format_bytes(host.shm_total_bytes)}"
    if not host.folders and host.disk_free_bytes is not None:
        yield "disk here", f"{format_bytes(host.disk_free_bytes)} free"
    marks = [", WSL" if host.wsl else "", f", in {host.container}" if host.container else ""]
    yield "system", f"{host.platform}, kernel {host.kernel}{''.join(marks)}"
    yield "encoding", host.locale_encoding if host.locale_encoding not in (None, "utf-8") else None
    yield "python", _python(machine)
    yield "torch", _torch(machine)
    if version := software.packages.get("bitsandbytes"):
        yield "bitsandbytes", f"{version}, library: {software.bitsandbytes_library or 'not looked at'}"
    yield from ((name, _package(machine, name)) for name in software.packages if name not in UNNAMED)
    yield from ((f"{name} in", ", ".join(found)) for name, found in software.locations.items() if len(found) > 1)
    yield "before torch's", ", ".join(software.shadowing_libraries)
    yield from ((name, value or "(empty)") for name, value in machine.environment.items())
    yield from ((endpoint.role.replace("_", " "), _endpoint(endpoint)) for endpoint in machine.network or ())


def _driver(machine: Hardware) -> str | None:
    driver = machine.driver
    if driver.version is None and driver.cuda_version is None:
        return None
    module = f", {driver.kernel_module} kernel module" if driver.kernel_module else ""
    if driver.module_version and driver.module_version != driver.version:
        module += f" {driver.module_version}"
    cuda = f", runs CUDA up to {driver.cuda_version}" if driver.cuda_version else ""
    return f"{driver.version or 'of unknown version'}{cuda}{module}"


def _links(links: Iterable[Link]) -> Iterator[tuple[str, str]]:
    """The pairs of devices, grouped by the kind of their link."""
    access = {True: "with peer access", False: "without peer access", None: "peer access unknown"}
    pairs: dict[str, list[str]] = {}
    for link in links:
        kind = f"{(link.kind or 'unknown').replace('_', ' ')} {access[link.peer_access]}"
        pairs.setdefault(kind, []).append(f"{link.first}-{link.second}")
    yield from (("links", f"{kind}: {' '.join(found)}") for kind, found in pairs.items())


def _memory(host: Host) -> str:
    limit = f", limited to {format_bytes(host.ram_limit_bytes)}" if host.ram_limit_bytes < host.ram_total_bytes else ""
    return f"{format_bytes(host.ram_available_bytes)} available of {format_bytes(host.ram_total_bytes)}{limit}"


def _python(machine: Hardware) -> str:
    software = machine.software
    kind = {"venv": "virtual environment", "conda": "conda environment", "system": "of the system"}
    parts = [software.python, kind.get(software.environment_kind or ""), software.executable]
    managed = "pip may not install here" if software.externally_managed else None
    return ", ".join(part for part in (*parts, managed) if part)


def _torch(machine: Hardware) -> str | None:
    build, error = machine.software.torch, machine.software.torch_error
    if build is None:
        return f"does not import: {error}" if error else machine.software.packages.get("torch")
    seconds = machine.software.torch_seconds
    took = "" if seconds is None else f", imported in {seconds:.1f} s"
    if build.cuda is None:
        return f"{build.version}, CPU build{took}"
    sees = "sees the GPU" if build.cuda_available else "sees no GPU"
    return f"{build.version}, CUDA {build.cuda}, {sees}, code for {' '.join(build.arch_list) or 'unknown'}{took}"


def _package(machine: Hardware, name: str) -> str:
    version, error = machine.software.packages[name], machine.software.import_errors.get(name)
    return f"{version}, does not import: {error}" if error else version


def _endpoint(endpoint: Endpoint) -> str:
    if not endpoint.reachable:
        return f"{endpoint.url} does not answer: {endpoint.error or 'the reason is not known'}"
    return f"{endpoint.url} answers" + (f" after {endpoint.seconds:.2f} s" if endpoint.seconds is not None else "")
