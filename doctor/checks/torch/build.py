"""Whether torch is installed, imports or why not, is a release that rl_compat supports, and has code for the cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rl_compat.capability.binaries import needs_ptx, parse_version, wheel_supports
from rl_compat.doctor.findings import Finding, Remedy, Severity, Step, finding, ok, remedy
from rl_compat.doctor.remedies import newer_system, pip_install, shell, torch_remedies
from rl_compat.doctor.tables.cards import device_ids, with_capability
from rl_compat.doctor.tables.rows import first_match, satisfies, transformers_row
from rl_compat.doctor.tables.target import has_a_build, known_driver, target_of
from rl_compat.doctor.tables.torch import BEYOND, OLDEST, needed_driver
from rl_compat.hardware.types import Device, Hardware, TorchBuild

LONGEST = 300
"characters of an error that are shown"
SLOW_SECONDS = 20.0
"an import that takes longer reads from a slow disk"
FOREIGN_BUILDS = {"rocm": "AMD GPUs (ROCm)", "xpu": "Intel GPUs (XPU)"}


def check_torch(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if torch is installed but was not imported."""
    software = hardware.software
    if software.torch is not None:
        yield from _imported(hardware, software.torch)
    elif software.torch_error is not None:
        yield import_error(hardware, software.torch_error)
    elif "torch" not in software.packages:
        yield finding(
            "torch.missing", f"torch is not installed in this Python {software.python}", *torch_remedies(hardware)
        )


def _imported(hardware: Hardware, torch: TorchBuild) -> Iterator[Finding]:
    seconds = hardware.software.torch_seconds
    took = f", imports in {seconds:.1f} s" if seconds is not None else ""
    built = f"is built for CUDA {torch.cuda}" if torch.cuda else "is a build without CUDA"
    fine = ok("torch.works", f"torch {torch.version} {built}{took}", "torch")
    yield _wrong_kind(hardware, torch) or _wrong_release(hardware, torch) or fine
    if seconds is not None and seconds > SLOW_SECONDS:
        yield _slow(hardware, seconds)


def _wrong_kind(hardware: Hardware, torch: TorchBuild) -> Finding | None:
    """A build without CUDA on a machine with a GPU; if the GPU is hidden, that may be intended."""
    if torch.cuda is not None or hardware.emulated is not None:
        return None
    foreign = next((kind for mark, kind in FOREIGN_BUILDS.items() if mark in torch.version.partition("+")[2]), None)
    on_bus = [gpu for gpu in hardware.pci_gpus or () if gpu.kernel_driver != "vfio-pci"]
    if not hardware.devices and (hardware.hidden_devices or not on_bus):
        what = f"torch {torch.version} is a build for {foreign}, and here it is used on the CPU"
        return finding("torch.other_vendor", what) if foreign else None
    cards = ", ".join(f"`{device.name}`" for device in hardware.devices) or f"{len(on_bus)} NVIDIA GPU(s) on the bus"
    return finding(
        "torch.other_build" if foreign else "torch.cpu_build",
        f"torch {torch.version} is a build for {foreign or 'the CPU'}, but this machine has {cards}",
        *torch_remedies(hardware),
        severity=Severity.FAILURE if hardware.devices else Severity.WARNING,
        affects=device_ids(hardware.devices),
    )


def _wrong_release(hardware: Hardware, torch: TorchBuild) -> Finding | None:
    """A release that rl_compat does not support; if it is the last with code for the card, the card is the reason."""
    release = parse_version(torch.version)[:2]
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, (BEYOND[0], BEYOND[1] - 1)))
    if release >= BEYOND:
        return finding(
            "torch.unknown", f"torch {torch.version} is newer than {newest}, the newest that the tables list"
        )
    if release >= OLDEST:
        return None
    cards = [device.compute_capability for device in hardware.devices]
    unserved = bool(cards) and not any(has_a_build(hardware, card) for card in cards)
    cards_text = with_capability(hardware.devices)
    without = f"no torch from {oldest} on has code for {cards_text}; torch {torch.version} is installed"
    return finding(
        "torch.none_for_card" if unserved else "torch.too_old",
        without if unserved else f"torch {torch.version} is older than {oldest}, the oldest that rl_compat supports",
        *torch_remedies(hardware),
        why=f"it lacks features that training uses{_disables_torch(hardware)}",
    )


def _disables_torch(hardware: Hardware) -> str:
    """What the installed transformers does with an old torch."""
    version, torch = hardware.software.packages.get("transformers"), hardware.software.torch
    row = transformers_row(version) if version else None
    if row is None or torch is None or satisfies(torch.version, f">={row['torch_min']}"):
        return ""
    return f"; transformers {version} needs {row['torch_min']} and otherwise reports that PyTorch is disabled"


def _slow(hardware: Hardware, seconds: float) -> Finding:
    folder = next((folder for folder in hardware.host.folders if folder.role == "packages"), None)
    system = f", which is on {folder.file_system}" if folder is not None and folder.file_system else ""
    return finding(
        "torch.slow",
        f"importing torch took {seconds:.0f} s" + (f" from `{folder.path}`{system}" if folder else ""),
        remedy("move_environment"),
    )


def check_architectures(hardware: Hardware) -> Iterator[Finding]:
    """One finding for the cards without code, one for those that use PTX, one for those with code."""
    torch = hardware.software.torch
    if torch is None or torch.cuda is None or not hardware.devices or hardware.emulated is not None:
        return
    if not torch.arch_list:
        what = f"torch {torch.version} does not report which architectures it has code for"
        yield ok("torch_architectures.not_known", what, "torch")
        return
    served = [
        gpu for gpu in hardware.devices if wheel_supports(torch.arch_list, gpu.compute_capability, cuda=torch.cuda)
    ]
    compiled = [gpu for gpu in served if needs_ptx(torch.arch_list, gpu.compute_capability, cuda=torch.cuda)]
    lacking = [device for device in hardware.devices if device not in served]
    ready = [device for device in served if device not in compiled]
    if lacking:
        yield _without_code(hardware, torch, lacking, served)
    if compiled:
        yield _compiles(hardware, torch, compiled)
    if ready:
        yield ok("torch_architectures.match", f"torch {torch.version} has code for {with_capability(ready)}", "torch")


def _without_code(hardware: Hardware, torch: TorchBuild, lacking: list[Device], served: list[Device]) -> Finding:
    """A failure if `cuda:0`, the default device of a run, is among them.

    If no build has code for all cards, another torch would only exclude other ones.
    """
    others = f"; it has code for {with_capability(served)}" if served else ""
    remedies = torch_remedies(hardware)
    if served:
        only = ",".join(device.uuid or str(device.index) for device in served)
        hide = shell(f"use only {with_capability(served)}", f"export CUDA_VISIBLE_DEVICES={only}")
        build = target_of(hardware).best()
        remedies = (hide, *remedies) if build and build.left_out else (*remedies, hide)
    return finding(
        "torch_architectures.some_without_code" if served else "torch_architectures.no_code",
        f"torch {torch.version} for CUDA {torch.cuda} has no code for {with_capability(lacking)}; it has code for "
        f"{', '.join(torch.arch_list)}{others}",
        *remedies,
        severity=Severity.FAILURE if hardware.devices[0] in lacking else Severity.WARNING,
        affects=device_ids(lacking),
    )


def _compiles(hardware: Hardware, torch: TorchBuild, devices: list[Device]) -> Finding:
    """Cards with PTX only: the driver compiles it, if it is at least as new as the CUDA version that produced it."""
    assert torch.cuda is not None
    needed, driver = needed_driver(torch.cuda, full=True), known_driver(hardware)
    known = needed is not None and driver is not None
    enough = known and parse_version(driver or "") >= parse_version(needed or "")
    what = f"torch {torch.version} has no compiled code for {with_capability(devices)}; the driver compiles its PTX"
    if enough:
        case, severity, then = "ptx_only", Severity.NOTE, f", which driver {driver} supports"
    elif known:
        case, severity = "too_old_for_ptx", Severity.FAILURE
        then = f", which needs driver {needed} or newer; driver {driver} is installed"
    else:
        case, severity, then = "ptx_only", Severity.WARNING, f", which needs driver {needed or 'of its CUDA'} or newer"
    return finding(
        f"torch_architectures.{case}",
        what + then,
        *(() if enough else torch_remedies(hardware)[:1]),
        severity=severity,
        affects=device_ids(devices),
    )


def import_error(hardware: Hardware, error: str) -> Finding:
    """The failure, explained by the first reason whose pattern matches the error."""
    reason = first_match("imports", error)
    shown = error if len(error) <= LONGEST else f"{error[:LONGEST]} …"
    version = hardware.software.packages.get("torch")
    what = f"torch{f' {version}' if version else ''} does not import: {shown}"
    why = reason["why"].replace("{cpu}", hardware.host.cpu_name)
    remedies = REMEDIES[reason["id"]](hardware)
    return Finding(f"torch.{reason['id']}", Severity.FAILURE, what, why, ("torch",), ("training",), remedies)


def _conflict(hardware: Hardware) -> tuple[Remedy, ...]:
    """If a library path is set, the check `libraries` has the command; otherwise the packages do not match."""
    paths = [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if hardware.environment.get(name)]
    return () if paths else _reinstall(hardware)


def _reinstall(hardware: Hardware) -> tuple[Remedy, ...]:
    """Install torch and its dependencies again, even if the same version is installed."""
    return tuple(_forced(remedy) for remedy in torch_remedies(hardware))


def _forced(remedy: Remedy) -> Remedy:
    forced = tuple(
        line if "--force-reinstall" in line else line.replace(" pip install ", " pip install --force-reinstall ")
        for line in remedy.commands
    )
    return replace(remedy, commands=forced if remedy.step is Step.TORCH else remedy.commands)


def _numpy(hardware: Hardware) -> tuple[Remedy, ...]:
    upgrade = pip_install(hardware, "install a numpy that matches this torch", "--upgrade", "numpy")
    return (upgrade, *torch_remedies(hardware))


def _trace(hardware: Hardware) -> Remedy:
    python = hardware.software.executable or "python"
    return shell("see where it stops", f"{python} -X faulthandler -X importtime -c 'import torch'")


def _newer_runtime(hardware: Hardware) -> tuple[Remedy, ...]:
    if hardware.software.environment_kind == "conda":
        return (remedy("conda_runtime"),)
    return (remedy("newer_runtime"), *_conflict(hardware))


REMEDIES: Mapping[str, Callable[[Hardware], tuple[Remedy, ...]]] = {
    "hangs": lambda hardware: (_trace(hardware), *_reinstall(hardware)),
    "illegal_instruction": lambda hardware: (remedy("limit_instructions"), *torch_remedies(hardware)),
    "killed": lambda hardware: (remedy("more_memory"),),
    "crashes": lambda hardware: (*_reinstall(hardware), _trace(hardware)),
    "system_too_old": lambda hardware: (
        newer_system(),
        *(it for it in torch_remedies(hardware) if it.step is Step.TORCH),
    ),
    "runtime_too_old": _newer_runtime,
    "undefined_symbol": _conflict,
    "driver_library_missing": lambda hardware: (),
    "library_missing": _reinstall,
    "numpy": _numpy,
    "no_room": lambda hardware: (remedy("folder_with_room"),),
    "incomplete": _reinstall,
    "fails": lambda hardware: (*_reinstall(hardware), _trace(hardware)),
}
"by the id of the reason"
