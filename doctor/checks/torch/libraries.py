"""Whether torch finds the CUDA libraries that it was built with, and whether those have code for the cards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from rl_compat.capability.binaries import TEGRA, parse_version
from rl_compat.capability.devices import torch_has_code
from rl_compat.doctor.checks.torch.cuda import classify_start_error, driver_fits
from rl_compat.doctor.findings import Finding, Remedy, Severity, finding, ok, remedy
from rl_compat.doctor.remedies import pip_install, shell, unset
from rl_compat.doctor.tables.cards import device_ids, with_capability
from rl_compat.doctor.tables.rows import first_match, is_unknown, library_row, pinned_libraries, serves
from rl_compat.hardware.types import Hardware

OF_CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvJitLink|nvrtc|cupti|nvToolsExt|cufile)\b"
)
"libraries whose number is CUDA's major version"
OF_TORCH = re.compile(r"cuda|cublas|cudnn|nccl|nvrtc|nvJitLink|cusparse|torch|c10", re.IGNORECASE)
OF_LIBRARIES = (
    *("undefined_symbol", "library_missing", "crashes", "runtime_too_old"),
    *("two_drivers", "forward_compatibility", "no_library", "silent"),
)
"import errors and start errors that wrong libraries cause"
COMPAT = re.compile(r"/compat(/|$)")
STUBS = re.compile(r"/stubs(/|$)")
DRIVER_FOLDERS = ("/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
"where WSL and container platforms put the driver's libraries, often through LD_LIBRARY_PATH only"


def check_libraries(hardware: Hardware) -> Iterator[Finding]:
    """What the library paths break, or that they break nothing."""
    found = [finding for look in (_driver_library, _shadowing, _preloaded) for finding in look(hardware)]
    yield from found
    yield from _versions(hardware)
    if not found and hardware.software.torch is not None:
        yield ok("libraries.own", "torch finds its own libraries", "LD_LIBRARY_PATH")


def _silent(hardware: Hardware) -> bool:
    """Whether CUDA fails in a way that a wrong library can cause."""
    torch = hardware.software.torch
    uses_cuda = torch is not None and torch.cuda is not None and bool(hardware.devices) and hardware.emulated is None
    if torch is None or not uses_cuda or torch.cuda_available or driver_fits(hardware, torch) is False:
        return False
    return classify_start_error(hardware, torch)["id"] in OF_LIBRARIES


def _unimported(hardware: Hardware) -> bool:
    """Whether the import of torch fails in a way that a wrong library can cause."""
    error = hardware.software.torch_error
    return error is not None and first_match("imports", error)["id"] in OF_LIBRARIES


def _driver_library(hardware: Hardware) -> Iterator[Finding]:
    """A libcuda that is not the driver's own; it matters if CUDA does not answer."""
    broken = _silent(hardware)
    for case, folder, why in _foreign_drivers(hardware):
        yield finding(
            f"libraries.{case}",
            f"libcuda may come from `{folder}`" + (", and CUDA does not answer" if broken else ""),
            *_without(hardware, [folder]),
            severity=Severity.FAILURE if broken else Severity.OK,
            why=why,
            where=("LD_LIBRARY_PATH",) if folder in _folders(hardware) else ("libcuda.so.1",),
            affects=("training",) if broken else (),
        )


def _foreign_drivers(hardware: Hardware) -> Iterator[tuple[str, str, str | None]]:
    """Case, folder and its own reason: a libcuda of a compat folder, a stub for linking, one of another driver."""
    driver = hardware.driver
    found = str(PurePosixPath(driver.cuda_library).parent) if driver.cuda_library else ""
    for case, pattern in (("compat", COMPAT), ("stubs", STUBS)):
        folder = next((folder for folder in (*_folders(hardware), found) if pattern.search(folder)), None)
        if folder is not None:
            yield case, folder, None
    library, loaded = driver.cuda_library_version, driver.module_version
    if library and loaded and library != loaded and not COMPAT.search(found):
        yield "other_driver", found, f"it belongs to driver {library}, but driver {loaded} is loaded"


def _shadowing(hardware: Hardware) -> Iterator[Finding]:
    """Libraries in folders of LD_LIBRARY_PATH with the names of those that torch needs."""
    libraries = [path for path in hardware.software.shadowing_libraries if _needed_by_torch(hardware, path)]
    folders = list(dict.fromkeys(str(PurePosixPath(path).parent) for path in libraries))
    fails, silent = _unimported(hardware), _silent(hardware)
    if not folders and fails:
        folders = [folder for folder in _folders(hardware) if not _of_the_driver(hardware, folder)]
    if not folders:
        return
    names = ", ".join(f"`{PurePosixPath(path).name}`" for path in libraries[:4])
    shown = f": {names}{' …' if len(libraries) > 4 else ''}" if names else ""
    yield finding(
        "libraries.conflict" if fails or silent else "libraries.shadowed",
        f"LD_LIBRARY_PATH puts the CUDA libraries of {_and(folders)} before torch's own{shown}"
        + ("; torch does not import" if fails else "; CUDA does not answer" if silent else ""),
        *_without(hardware, folders),
        severity=Severity.FAILURE if fails or silent else Severity.WARNING,
        why="a process then loads parts of two CUDA releases"
        + ("" if fails or silent else ": it works now, but breaks with the next release of either"),
    )


def _needed_by_torch(hardware: Hardware, path: str) -> bool:
    """Whether torch has a library of that name: not libcuda, nor one of another major version."""
    torch, name = hardware.software.torch, PurePosixPath(path).name
    if name.startswith("libcuda.so"):
        return False
    match = re.search(r"\.so\.(\d+)", name)
    if torch is None or torch.cuda is None or match is None or not OF_CUDA.match(name):
        return True
    return int(match.group(1)) == parse_version(torch.cuda)[0]


def _preloaded(hardware: Hardware) -> Iterator[Finding]:
    listed = [entry for entry in re.split(r"[:\s]+", hardware.environment.get("LD_PRELOAD", "")) if entry]
    foreign = [entry for entry in listed if OF_TORCH.search(PurePosixPath(entry).name)]
    if not foreign:
        return
    rest = [entry for entry in listed if entry not in foreign]
    remove = shell(f"remove {_and(foreign)} from LD_PRELOAD", f"export LD_PRELOAD={shlex.quote(':'.join(rest))}")
    yield finding(
        "libraries.preloaded",
        f"LD_PRELOAD loads {_and(foreign)} into every process before torch's own libraries",
        remove if rest else unset("LD_PRELOAD"),
        severity=Severity.FAILURE if _unimported(hardware) or _silent(hardware) else Severity.WARNING,
    )


def _of_the_driver(hardware: Hardware, folder: str) -> bool:
    """Whether a folder contains the driver's own libraries."""
    library = hardware.driver.cuda_library
    known = (*DRIVER_FOLDERS, str(PurePosixPath(library).parent)) if library else DRIVER_FOLDERS
    foreign = {other for _, other, _ in _foreign_drivers(hardware)}
    return folder.rstrip("/") in known and folder not in foreign


def _folders(hardware: Hardware) -> list[str]:
    return [folder for folder in hardware.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]


def _without(hardware: Hardware, folders: Sequence[str]) -> tuple[Remedy, ...]:
    """LD_LIBRARY_PATH without those folders; its other entries stay."""
    listed = _folders(hardware)
    harmful = {folder.rstrip("/") for folder in folders}
    rest = [entry for entry in listed if entry.rstrip("/") not in harmful or _of_the_driver(hardware, entry)]
    if len(rest) == len(listed):
        return (shell(f"find out what adds {_and(folders)}: `ldconfig` or the start of the container", "ldconfig -p"),)
    if not rest:
        return (unset("LD_LIBRARY_PATH"), remedy("try_without_paths"))
    what = f"remove {_and(folders)} from LD_LIBRARY_PATH and from the shell's start-up file"
    return (shell(what, f"export LD_LIBRARY_PATH={shlex.quote(':'.join(rest))}"), remedy("try_without_paths"))


def _versions(hardware: Hardware) -> Iterator[Finding]:
    """Variables that name another CUDA version than torch's; they affect bitsandbytes and compiling packages."""
    torch, variables = hardware.software.torch, hardware.environment
    if torch is None or torch.cuda is None:
        return
    chosen = variables.get("BNB_CUDA_VERSION")
    if chosen and chosen != torch.cuda.replace(".", ""):
        broken = hardware.software.bitsandbytes_library not in (None, "cuda")
        yield finding(
            "libraries.bitsandbytes_version",
            f"BNB_CUDA_VERSION={chosen} makes bitsandbytes load its library for that CUDA, but torch has {torch.cuda}",
            unset("BNB_CUDA_VERSION"),
            severity=Severity.WARNING if broken else Severity.NOTE,
        )
    home = variables.get("CUDA_HOME", "")
    named = re.search(r"cuda-(\d+)(?:\.\d+)?", home)
    if named and int(named.group(1)) != parse_version(torch.cuda)[0]:
        yield finding("libraries.cuda_home", f"CUDA_HOME is `{home}`, but torch is built for CUDA {torch.cuda}")


def _and(items: Sequence[str]) -> str:
    return " and ".join(f"`{item}`" for item in items)


CUDA_LIBRARIES = {
    "cuDNN": {"12": "nvidia-cudnn-cu12", "13": "nvidia-cudnn-cu13"},
    "cuBLAS": {"12": "nvidia-cublas-cu12", "13": "nvidia-cublas"},
    "NCCL": {"12": "nvidia-nccl-cu12", "13": "nvidia-nccl-cu13"},
}
"packages with a CUDA library, by its name and CUDA's major version"


def check_cuda_libraries(hardware: Hardware) -> Iterator[Finding]:
    """Nothing without a GPU, or if torch does not use the libraries of Python packages."""
    torch = hardware.software.torch
    if not hardware.devices or hardware.emulated is not None or torch is None or torch.cuda is None:
        return
    fine = []
    for name, packages in CUDA_LIBRARIES.items():
        package = packages.get(torch.cuda.partition(".")[0], "")
        version = hardware.software.packages.get(package)
        if version is not None:
            wrong = _wrong_library(hardware, name.lower(), package, version)
            if wrong is not None:
                yield wrong
            elif name != "NCCL":
                fine.append(f"{name} {version}")
    if fine:
        yield ok("cuda_libraries.fine", f"with code for the cards here: {', '.join(fine)}", "installed packages")


def _wrong_library(hardware: Hardware, library: str, package: str, version: str) -> Finding | None:
    """A library without code for a card that torch has code for, or another one than torch was built with.

    Integrated devices have libraries of their own; the code of NCCL matters with several cards, to the check `nccl`.
    """
    torch, row = hardware.software.torch, library_row(package, version)
    assert torch is not None
    pinned = pinned_libraries(torch.version, f"cu{(torch.cuda or '').replace('.', '')}").get(package)
    if row is not None and library != "nccl" and not is_unknown(package, version):
        used = [gpu for gpu in hardware.devices if gpu.compute_capability not in TEGRA and torch_has_code(torch, gpu)]
        lacking = [device for device in used if not serves(row["sm"], device.compute_capability)]
        newest = divmod(max(row["sm"]), 10)
        if lacking and not any(device.compute_capability > newest for device in lacking):
            serving = library_row(package, pinned) if pinned else None
            back = serving is not None and all(serves(serving["sm"], device.compute_capability) for device in lacking)
            starts = f"its code starts at sm_{min(row['sm'])}"
            return finding(
                f"cuda_libraries.{library}",
                f"{package} {version} has no code for {with_capability(lacking)}; {starts}",
                *((_downgrade(hardware, package, pinned),) if pinned and back and pinned != version else ()),
                affects=device_ids(lacking),
            )
    if pinned is None or parse_version(version) == parse_version(pinned):
        return None
    newer = parse_version(version) > parse_version(pinned)
    return finding(
        f"cuda_libraries.{library}_{'upgraded' if newer else 'too_old'}",
        f"{package} {version} is {'newer' if newer else 'older'} than {pinned}, which torch {torch.version} requires",
        _downgrade(hardware, package, pinned),
    )


def _downgrade(hardware: Hardware, package: str, version: str) -> Remedy:
    what = f"install {package} {version}, the release that torch requires, and do not upgrade it"
    return pip_install(hardware, what, "--no-deps", f"{package}=={version}")
