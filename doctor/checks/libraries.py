"""Do other CUDA libraries come before those that torch brings?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from rl_compat.doctor.checks.cuda_answers import answer_to
from rl_compat.doctor.checks.torch_driver import driver_fits
from rl_compat.doctor.checks.torch_import import reason_of
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity
from rl_compat.doctor.remedies import shell, unset
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.types import Hardware

OF_CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvJitLink|nvrtc|cupti|nvToolsExt|cufile)\b"
)
"libraries whose number is that of CUDA's major version"
OF_TORCH = re.compile(r"cuda|cublas|cudnn|nccl|nvrtc|nvJitLink|cusparse|torch|c10", re.IGNORECASE)
OF_LIBRARIES = (
    *("undefined_symbol", "library_missing", "crashes", "runtime_too_old"),
    *("two_drivers", "forward_compatibility", "no_library", "silent"),
)
"failed imports and answers of CUDA that come from wrong libraries"
COMPAT = re.compile(r"/compat(/|$)")
STUBS = re.compile(r"/stubs(/|$)")
DRIVER_FOLDERS = ("/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
"where WSL and container platforms put the driver's libraries, often by LD_LIBRARY_PATH alone"


def look_at_libraries(hardware: Hardware) -> Iterator[Finding]:
    """The worst of what the library paths do, or that they do no harm."""
    found = [finding for look in (_driver_library, _shadowing, _preloaded) for finding in look(hardware)]
    yield from found
    yield from _versions(hardware)
    if not found and hardware.software.torch is not None:
        yield Finding(
            id="libraries.own",
            severity=Severity.OK,
            what="torch finds the libraries that it brings",
            where=("LD_LIBRARY_PATH",),
        )


def _silent(hardware: Hardware) -> bool:
    """Whether CUDA does not answer torch in a way that another library can be the reason of."""
    torch = hardware.software.torch
    asked = torch is not None and torch.cuda is not None and bool(hardware.devices) and hardware.emulated is None
    if torch is None or not asked or torch.cuda_available or driver_fits(hardware, torch) is False:
        return False
    return answer_to(hardware, torch).case in OF_LIBRARIES


def _unimported(hardware: Hardware) -> bool:
    """Whether torch does not import in a way that another library can be the reason of."""
    error = hardware.software.torch_error
    return error is not None and reason_of(error).case in OF_LIBRARIES


def _driver_library(hardware: Hardware) -> Iterator[Finding]:
    """A libcuda that is not the driver's own: it matters where CUDA does not answer."""
    broken = _silent(hardware)
    for case, folder, why in _foreign_drivers(hardware):
        yield Finding(
            id=f"libraries.{case}",
            severity=Severity.FAILURE if broken else Severity.OK,
            what=f"libcuda may come from `{folder}`" + (", and CUDA does not answer" if broken else ""),
            why=why,
            where=("LD_LIBRARY_PATH",) if folder in _folders(hardware) else ("libcuda.so.1",),
            affects=("training",) if broken else (),
            remedies=_without(hardware, [folder]),
        )


def _foreign_drivers(hardware: Hardware) -> Iterator[tuple[str, str, str]]:
    """Case, folder and reason: a compat folder's libcuda, a stub for linking, or one of another driver's version."""
    driver = hardware.driver
    found = str(PurePosixPath(driver.cuda_library).parent) if driver.cuda_library else ""
    for case, pattern, why in (
        ("compat", COMPAT, "it is of a newer release than the driver, which only data-centre cards may use"),
        ("stubs", STUBS, "it is there for linking only and has no code"),
    ):
        folder = next((folder for folder in (*_folders(hardware), found) if pattern.search(folder)), None)
        if folder is not None:
            yield case, folder, why
    library, loaded = driver.cuda_library_version, driver.module_version
    if library and loaded and library != loaded and not COMPAT.search(found):
        yield "other_driver", found, f"it belongs to driver {library}, and the one that is loaded is {loaded}"


def _shadowing(hardware: Hardware) -> Iterator[Finding]:
    """Libraries in folders of LD_LIBRARY_PATH under the names of those that torch wants."""
    libraries = [path for path in hardware.software.shadowing_libraries if _wanted_by_torch(hardware, path)]
    folders = list(dict.fromkeys(str(PurePosixPath(path).parent) for path in libraries))
    fails, silent = _unimported(hardware), _silent(hardware)
    if not folders and fails:
        folders = [folder for folder in _folders(hardware) if not _of_the_driver(hardware, folder)]
    if not folders:
        return
    names = ", ".join(f"`{PurePosixPath(path).name}`" for path in libraries[:4])
    shown = f": {names}{' …' if len(libraries) > 4 else ''}" if names else ""
    yield Finding(
        id="libraries.conflict" if fails or silent else "libraries.shadowed",
        severity=Severity.FAILURE if fails or silent else Severity.WARNING,
        what=f"LD_LIBRARY_PATH puts the CUDA libraries of {_and(folders)} before those that torch brings{shown}"
        + ("; torch does not import" if fails else "; CUDA does not answer" if silent else ""),
        why="one process then loads parts of two CUDA releases"
        + ("" if fails or silent else ": it works now, and breaks with the next release of either"),
        where=("LD_LIBRARY_PATH",),
        affects=("training",),
        remedies=_without(hardware, folders),
    )


def _wanted_by_torch(hardware: Hardware, path: str) -> bool:
    """Whether torch brings that library under that name: not libcuda, nor one of another major version."""
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
    fails = _unimported(hardware) or _silent(hardware)
    rest = [entry for entry in listed if entry not in foreign]
    what = f"take {_and(foreign)} out of LD_PRELOAD"
    yield Finding(
        id="libraries.preloaded",
        severity=Severity.FAILURE if fails else Severity.WARNING,
        what=f"LD_PRELOAD loads {_and(foreign)} into every process before torch's own libraries",
        why="one process then has parts of two CUDA releases",
        where=("LD_PRELOAD",),
        affects=("training",),
        remedies=(shell(what, f"export LD_PRELOAD={shlex.quote(':'.join(rest))}") if rest else unset("LD_PRELOAD"),),
    )


def _of_the_driver(hardware: Hardware, folder: str) -> bool:
    """Whether the driver's own libraries are found there."""
    library = hardware.driver.cuda_library
    known = (*DRIVER_FOLDERS, str(PurePosixPath(library).parent)) if library else DRIVER_FOLDERS
    foreign = {other for _, other, _ in _foreign_drivers(hardware)}
    return folder.rstrip("/") in known and folder not in foreign


def _folders(hardware: Hardware) -> list[str]:
    return [folder for folder in hardware.environment.get("LD_LIBRARY_PATH", "").split(":") if folder]


def _without(hardware: Hardware, folders: Sequence[str]) -> tuple[Remedy, ...]:
    """LD_LIBRARY_PATH without those folders; what else is in it stays."""
    listed = _folders(hardware)
    harmful = {folder.rstrip("/") for folder in folders}
    rest = [entry for entry in listed if entry.rstrip("/") not in harmful or _of_the_driver(hardware, entry)]
    if len(rest) == len(listed):
        return (shell(f"find out what names {_and(folders)}: `ldconfig` or the start of the container", "ldconfig -p"),)
    once = shell("try it once without it", "env -u LD_LIBRARY_PATH rlc doctor")
    if not rest:
        return (unset("LD_LIBRARY_PATH"), once)
    what = f"take {_and(folders)} out of LD_LIBRARY_PATH, and out of the shell's start-up file"
    return (shell(what, f"export LD_LIBRARY_PATH={shlex.quote(':'.join(rest))}"), once)


def _versions(hardware: Hardware) -> Iterator[Finding]:
    """Variables that name another CUDA than torch's: they matter to bitsandbytes and to what is compiled."""
    torch, variables = hardware.software.torch, hardware.environment
    if torch is None or torch.cuda is None:
        return
    chosen = variables.get("BNB_CUDA_VERSION")
    if chosen and chosen != torch.cuda.replace(".", ""):
        broken = hardware.software.bitsandbytes_library not in (None, "cuda")
        yield Finding(
            id="libraries.bitsandbytes_version",
            severity=Severity.WARNING if broken else Severity.NOTE,
            what=f"BNB_CUDA_VERSION={chosen} makes bitsandbytes load its library for that CUDA, torch has {torch.cuda}",
            why="it is meant for a CUDA that bitsandbytes has no library of; otherwise it takes the right one away",
            where=("BNB_CUDA_VERSION",),
            affects=("8-bit optimizer", "4-bit weights"),
            remedies=(unset("BNB_CUDA_VERSION"),),
        )
    home = variables.get("CUDA_HOME", "")
    named = re.search(r"cuda-(\d+)(?:\.\d+)?", home)
    if named and int(named.group(1)) != parse_version(torch.cuda)[0]:
        yield Finding(
            id="libraries.cuda_home",
            severity=Severity.NOTE,
            what=f"CUDA_HOME is `{home}`, torch is built for CUDA {torch.cuda}",
            why="packages that are compiled here, such as flash-attn, refuse a toolkit of another major version; "
            "nothing else uses it",
            where=("CUDA_HOME",),
            affects=("installation",),
        )


def _and(items: Sequence[str]) -> str:
    return " and ".join(f"`{item}`" for item in items)


CHECKS: tuple[Check, ...] = (
    Check(
        id="libraries",
        question="do other CUDA libraries come before those that torch brings?",
        run=look_at_libraries,
        needs_torch=True,
    ),
)
