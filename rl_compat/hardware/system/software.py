"""Python, its packages, read from files without importing them, and the variables of its environment."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.gpu.readings import TorchReading
from rl_compat.hardware.types import Software

CUDA_LIBRARIES = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn\w*|cusparse\w*|cusolver|cufft|nccl|nvJitLink|nvrtc|cuda)\.so(?:\.[0-9]+)*"
)
METADATA = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*?)-([^-]+)(?:-py[^-]*)?\.(?:dist|egg)-info")
"the name of a folder with a package's metadata: distribution and version"
MOST_LIBRARIES = 20


def read_software(
    *,
    names: Iterable[str] | None = None,
    environment: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
) -> Software:
    """Python, its environment and the installed packages, without facts that need an import.

    `path` is searched for several copies of packages; by default this Python's path.
    """
    variables = os.environ if environment is None else environment
    kind = environment_kind(variables)
    locations = find_locations(sys.path if path is None else path)
    return Software(
        python=platform.python_version(),
        packages=read_versions(recorded_packages() if names is None else names),
        executable=sys.executable or None,
        environment_kind=kind,
        externally_managed=kind != "venv" and is_externally_managed(),
        locations=locations,
        location_versions={
            name: tuple(_distributions_in(Path(folder or os.curdir)).get(name, "unknown") for folder in folders)
            for name, folders in locations.items()
        },
        launcher=find_launcher(shutil.which("rlc", path=variables.get("PATH"))),
        shadowing_libraries=find_shadowing_libraries(variables.get("LD_LIBRARY_PATH", "")),
    )


def recorded_packages() -> list[str]:
    """The distributions whose versions are recorded."""
    names: list[str] = read_table("probe")["packages"]
    return names


def with_torch(software: Software, torch: TorchReading) -> Software:
    """The software with the reading of the child process: torch and the packages built on it."""
    return replace(
        software,
        torch=torch.build,
        torch_error=torch.error,
        bitsandbytes_library=torch.bitsandbytes_library,
        import_errors=dict(torch.import_errors),
        torch_seconds=torch.seconds,
    )


def read_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed version by distribution name; packages without a version are absent."""
    found = {}
    for name in names:
        try:
            found[name] = str(version(name) or "unknown")
        except (PackageNotFoundError, KeyError, OSError, ValueError):
            continue
    return found


def environment_kind(
    environment: Mapping[str, str], *, prefix: str = sys.prefix, base_prefix: str = sys.base_prefix
) -> str:
    """`venv`, `conda` or `system`: the environment of this Python, not of the shell."""
    if prefix != base_prefix:
        return "venv"
    named = environment.get("CONDA_PREFIX")
    if (Path(prefix) / "conda-meta").is_dir() or (named and os.path.realpath(named) == os.path.realpath(prefix)):
        return "conda"
    return "system"


def is_externally_managed(stdlib: str | None = None) -> bool:
    """Whether this Python is externally managed, so that pip refuses to install (PEP 668)."""
    folder = stdlib or sysconfig.get_path("stdlib", sysconfig.get_default_scheme())
    return (Path(folder) / "EXTERNALLY-MANAGED").is_file()


def find_locations(path: Iterable[str], names: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Folders of `path` that contain a package, by distribution name: always for torch, for others if several do.

    A folder counts if it has the package's metadata or, for torch, a module of that name.
    """
    found: dict[str, list[str]] = {name: [] for name in names or read_table("probe")["located"]}
    seen: set[str] = set()
    for folder in path:
        try:
            real = os.path.realpath(folder or os.curdir)
        except OSError:
            continue
        if real in seen:
            continue
        seen.add(real)
        for name in _distributions_in(Path(real)).keys() & found.keys():
            found[name].append(folder or real)
    return {name: tuple(folders) for name, folders in found.items() if len(folders) > (name != "torch")}


def _distributions_in(folder: Path) -> dict[str, str]:
    """The version of each distribution by the name of its metadata; `unknown` for a torch without metadata."""
    has_torch = (folder / "torch.py").is_file() or (folder / "torch" / "__init__.py").is_file()
    found = {"torch": "unknown"} if has_torch else {}
    for match in reversed([*filter(None, map(METADATA.fullmatch, _names_in(folder)))]):
        found[re.sub(r"[-_.]+", "-", match.group(1)).lower()] = match.group(2)
    return found


def find_launcher(command: str | None) -> str | None:
    """The Python in the first lines of a script that pip installed; None without one."""
    if command is None:
        return None
    try:
        with Path(command).open("rb") as script:
            beginning = script.read(1000).decode(errors="replace")
    except OSError:
        return None
    match = re.search(r"/[^\s\"'!]*/python[0-9.]*(?=[\s\"'])", beginning)
    return match.group() if match else None


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def find_shadowing_libraries(library_path: str) -> tuple[str, ...]:
    """CUDA libraries in the folders of LD_LIBRARY_PATH, one file each, in the loader's order."""
    found: list[str] = []
    for folder in dict.fromkeys(filter(None, library_path.split(":"))):
        chosen: dict[str, str] = {}
        for name in filter(CUDA_LIBRARIES.fullmatch, _names_in(Path(folder))):
            stem = name.partition(".so")[0]
            if stem not in chosen or (_is_soname(name) and not _is_soname(chosen[stem])):
                chosen[stem] = name
        found += [str(Path(folder) / name) for name in chosen.values()]
    return tuple(found[:MOST_LIBRARIES])


def _is_soname(name: str) -> bool:
    """The name that programs load, such as `libcudart.so.12`."""
    return re.search(r"\.so\.[0-9]+$", name) is not None


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The relevant variables, by name."""
    listed = read_table("probe")
    found = {name: environment[name] for name in listed["variables"] if name in environment}
    found |= {name: without_credentials(environment[name]) for name in listed["addresses"] if name in environment}
    return found | {name: "(set)" for name in listed["secrets"] if environment.get(name)}


def without_credentials(text: str) -> str:
    """The text with user name, password, query and fragment removed from its URLs."""
    text = re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s]*@", r"\1", text)
    text = re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)
    return re.sub(r"(^|\s)[^/\s@]+:[^/\s]*@(?=\S)", r"\1", text)
