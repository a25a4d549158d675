"""Is torch there, does it import, is it a release that rl_compat runs with, and does it have code for the cards?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_compat.capability.devices import capability_text
from rl_compat.doctor.checks.torch_driver import look_at_the_driver
from rl_compat.doctor.checks.torch_import import look_at_the_import_error
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import install_torch, torch_remedies
from rl_compat.doctor.tables.cards import names
from rl_compat.doctor.tables.rows import satisfies, transformers_row
from rl_compat.doctor.tables.target import has_a_build, known_driver
from rl_compat.doctor.tables.torch import BEYOND, OLDEST, needed_driver
from rl_compat.hardware.gpu.binaries import needs_ptx, parse_version, wheel_supports
from rl_compat.hardware.types import Device, Hardware, TorchBuild

SLOW_SECONDS = 20.0
"an import that takes longer reads from a slow disk"
FOREIGN_BUILDS = {"rocm": "AMD GPUs (ROCm)", "xpu": "Intel GPUs (XPU)"}


def look_at_torch(hardware: Hardware) -> Iterator[Finding]:
    """Nothing when torch is installed and was not looked at."""
    software = hardware.software
    if software.torch is not None:
        yield from _imported(hardware, software.torch)
    elif software.torch_error is not None:
        yield look_at_the_import_error(hardware, software.torch_error)
    elif "torch" not in software.packages:
        yield Finding(
            id="torch.missing",
            severity=Severity.FAILURE,
            what=f"torch is not installed in this Python {software.python}",
            why="nothing can be trained without it",
            where=("torch",),
            affects=("training",),
            remedies=torch_remedies(hardware),
        )


def _imported(hardware: Hardware, torch: TorchBuild) -> Iterator[Finding]:
    wrong = _wrong_kind(hardware, torch) or _wrong_release(hardware, torch)
    seconds = hardware.software.torch_seconds
    if wrong is not None:
        yield wrong
    else:
        took = f", imports in {seconds:.1f} s" if seconds is not None else ""
        yield Finding(
            id="torch.works",
            severity=Severity.OK,
            what=f"torch {torch.version} {_built_for(torch)}{took}",
            where=("torch",),
        )
    if seconds is not None and seconds > SLOW_SECONDS:
        yield _slow(hardware, seconds)


def _wrong_kind(hardware: Hardware, torch: TorchBuild) -> Finding | None:
    """A build without CUDA on a machine with a GPU; where the GPU is hidden that may be what is wanted."""
    on_bus = [gpu for gpu in hardware.pci_gpus or () if gpu.kernel_driver != "vfio-pci"]
    served = bool(hardware.devices)
    waiting = on_bus and not hardware.hidden_devices
    if torch.cuda is not None or hardware.emulated is not None or not (served or waiting):
        return None
    foreign = next((kind for mark, kind in FOREIGN_BUILDS.items() if mark in torch.version.partition("+")[2]), None)
    cards = ", ".join(f"`{device.name}`" for device in hardware.devices) or f"{len(on_bus)} NVIDIA GPU(s) on the bus"
    return Finding(
        id="torch.other_build" if foreign else "torch.cpu_build",
        severity=Severity.FAILURE if served else Severity.WARNING,
        what=f"torch {torch.version} is a build for {foreign or 'the CPU'}, and this machine has {cards}",
        why="this torch never uses an NVIDIA GPU, whatever the driver; often another package's requirement replaced it",
        where=("torch",),
        affects=tuple(f"cuda:{device.index}" for device in hardware.devices),
        remedies=torch_remedies(hardware),
    )


def _wrong_release(hardware: Hardware, torch: TorchBuild) -> Finding | None:
    """One outside of what rl_compat runs with; where that is the last with code for the card, the card is named."""
    release = parse_version(torch.version)[:2]
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, (BEYOND[0], BEYOND[1] - 1)))
    if release < OLDEST:
        cards = [device.compute_capability for device in hardware.devices]
        unserved = bool(cards) and not any(has_a_build(hardware, card) for card in cards)
        return Finding(
            id="torch.none_for_card" if unserved else "torch.too_old",
            severity=Severity.FAILURE,
            what=f"no torch that rl_compat runs with, {oldest} or newer, has code for {_cards(hardware.devices)}; "
            f"this is {torch.version}"
            if unserved
            else f"torch {torch.version} is older than {oldest}, the oldest that rl_compat runs with",
            why=f"parts that training uses are missing in it{_without_torch(hardware)}",
            where=("torch",),
            affects=("training",),
            remedies=torch_remedies(hardware),
        )
    if release >= BEYOND:
        return Finding(
            id="torch.unknown",
            severity=Severity.NOTE,
            what=f"torch {torch.version} is newer than {newest}, the newest that the tables know",
            why="it may well work; nothing here can say so",
            where=("torch",),
        )
    return None


def _without_torch(hardware: Hardware) -> str:
    """What the installed transformers makes of an old torch."""
    version, torch = hardware.software.packages.get("transformers"), hardware.software.torch
    row = transformers_row(version) if version else None
    if row is None or torch is None or satisfies(torch.version, f">={row['torch_min']}"):
        return ""
    return f"; transformers {version} needs {row['torch_min']} and says without it that PyTorch is disabled"


def _slow(hardware: Hardware, seconds: float) -> Finding:
    folder = next((folder for folder in hardware.host.folders if folder.role == "packages"), None)
    system = f", which is on {folder.file_system}" if folder is not None and folder.file_system else ""
    return Finding(
        id="torch.slow",
        severity=Severity.WARNING,
        what=f"importing torch took {seconds:.0f} s" + (f" from `{folder.path}`{system}" if folder else ""),
        why="every process of a run pays this; a network file system or a cold disk is the usual reason",
        where=("torch",),
        affects=("training",),
        remedies=(Remedy(what="put the virtual environment on a local disk", step=Step.PYTHON),),
    )


def _built_for(torch: TorchBuild) -> str:
    return f"is built for CUDA {torch.cuda}" if torch.cuda else "is a build without CUDA"


def look_at_architectures(hardware: Hardware) -> Iterator[Finding]:
    """One finding for the cards that torch has no code for, one for those that compile it, one for those it has."""
    torch = hardware.software.torch
    if torch is None or torch.cuda is None or not hardware.devices or hardware.emulated is not None:
        return
    if not torch.arch_list:
        yield Finding(
            id="torch_architectures.not_known",
            severity=Severity.OK,
            what=f"torch {torch.version} does not say which architectures it has code for",
            where=("torch",),
        )
        return
    served = [device for device in hardware.devices if _runs(torch, device)]
    compiled = [device for device in served if needs_ptx(torch.arch_list, device.compute_capability, cuda=torch.cuda)]
    lacking = [device for device in hardware.devices if device not in served]
    ready = [device for device in served if device not in compiled]
    if lacking:
        yield _without_code(hardware, torch, lacking, served)
    if compiled:
        yield _compiles(hardware, torch, compiled)
    if ready:
        yield Finding(
            id="torch_architectures.match",
            severity=Severity.OK,
            what=f"torch {torch.version} has code for {_cards(ready)}",
            where=("torch",),
        )


def _runs(torch: TorchBuild, device: Device) -> bool:
    return wheel_supports(torch.arch_list, device.compute_capability, cuda=torch.cuda)


def _without_code(hardware: Hardware, torch: TorchBuild, lacking: list[Device], served: list[Device]) -> Finding:
    """A failure when `cuda:0`, on which training runs by default, is among them."""
    first = hardware.devices[0] in lacking
    others = f"; it has code for {_cards(served)}" if served else ""
    remedies = torch_remedies(hardware)
    if served:
        only = ",".join(device.uuid or str(device.index) for device in served)
        hide = Remedy(
            what=f"leave the others out: use only {_cards(served)}",
            step=Step.SHELL,
            commands=(f"export CUDA_VISIBLE_DEVICES={only}",),
        )
        remedies = (hide, *remedies) if _serves_fewer(hardware, remedies) else (*remedies, hide)
    return Finding(
        id="torch_architectures.some_without_code" if served else "torch_architectures.no_code",
        severity=Severity.FAILURE if first else Severity.WARNING,
        what=f"torch {torch.version} for CUDA {torch.cuda} has no code for {_cards(lacking)}: it has "
        f"{', '.join(torch.arch_list)}{others}",
        why="CUDA answers and the first operation on the card dies with `no kernel image is available`",
        where=("torch",),
        affects=tuple(f"cuda:{device.index}" for device in lacking),
        remedies=remedies,
    )


def _serves_fewer(hardware: Hardware, remedies: tuple[Remedy, ...]) -> bool:
    """Whether no published build serves all the cards, so that another torch would only exchange them."""
    return any("no build also serves" in remedy.what for remedy in remedies)


def _compiles(hardware: Hardware, torch: TorchBuild, devices: list[Device]) -> Finding:
    """Only PTX fits: the driver compiles it, if it is as new as the CUDA that wrote it."""
    assert torch.cuda is not None
    needed, driver = needed_driver(torch.cuda, full=True), known_driver(hardware)
    known = needed is not None and driver is not None
    enough = known and parse_version(driver or "") >= parse_version(needed or "")
    what = f"torch {torch.version} has no finished code for {_cards(devices)}; the driver compiles it from PTX"
    if enough:
        severity, then = Severity.NOTE, f", which driver {driver} does"
    elif known:
        severity, then = Severity.FAILURE, f", and driver {driver} is older than the {needed} that can"
    else:
        severity, then = Severity.WARNING, f", which needs driver {needed or 'of its CUDA'} or newer"
    return Finding(
        id="torch_architectures.too_old_for_ptx" if known and not enough else "torch_architectures.ptx_only",
        severity=severity,
        what=what + then,
        why="the first start takes minutes, and an older driver refuses with `unsupported toolchain`",
        where=("torch", "driver"),
        affects=tuple(f"cuda:{device.index}" for device in devices),
        remedies=() if enough else (install_torch(hardware),),
    )


def _cards(devices: Sequence[Device]) -> str:
    """`2 × NVIDIA A10 (compute capability 8.6), Tesla T4 (compute capability 7.5)`."""
    alike = dict.fromkeys((device.name, device.compute_capability) for device in devices)
    groups = [[device for device in devices if (device.name, device.compute_capability) == kind] for kind in alike]
    return ", ".join(f"{names(group)} (compute capability {capability_text(group[0])})" for group in groups)


CHECKS: tuple[Check, ...] = (
    Check(
        id="torch",
        question="is torch installed, does it import, and is it a build and release that can be used?",
        run=look_at_torch,
        needs_torch=True,
    ),
    Check(
        id="torch_architectures",
        question="does this torch have code for the compute capability of every visible card?",
        run=look_at_architectures,
        needs_torch=True,
    ),
    Check(
        id="torch_driver",
        question="does the driver run the CUDA that torch was built for, and does CUDA answer?",
        run=look_at_the_driver,
        needs_torch=True,
    ),
)
