"""Machines as they will be: after the commands of a remedy, and with working cards and a torch that suits them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rl_compat.doctor.checks.cards.driver import WSL_LIBRARIES
from rl_compat.doctor.checks.cards.visible_devices import ORDER, VISIBLE, every_gpu, selected
from rl_compat.doctor.tables.rows import newest_known, pinned_libraries, required, satisfies
from rl_compat.doctor.tables.target import TorchInstall, target_of
from rl_compat.doctor.tables.torch import cuda_of, releases, variants
from rl_compat.hardware.gpu.catalogue import emulated_hardware, read_table
from rl_compat.hardware.types import Device, Hardware, Software, TorchBuild

OPTIONS_WITH_VALUES = ("--index-url", "--extra-index-url", "--find-links")
LIBRARY_PATHS = ("LD_LIBRARY_PATH", "LD_PRELOAD")
PACKAGE_PATHS = ("PYTHONPATH", "PYTHONNOUSERSITE")


def after(hardware: Hardware, commands: Sequence[str]) -> Hardware:
    """The machine after commands of a remedy: its variables, the cards that they show, its Python and its packages.

    Other commands, such as those for a driver, change nothing that is known before they run.
    """
    for line in commands:
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        match words:
            case ["export", *assignments]:
                hardware = _with_variables(hardware, dict(text.split("=", 1) for text in assignments))
            case ["unset", *names]:
                hardware = _with_variables(hardware, dict.fromkeys(names))
            case ["scripts/quickstart.sh"]:
                hardware = _with_project(_in_environment(hardware, ".venv", hardware.software.python))
                build = target_of(hardware).best()
                hardware = with_torch(hardware, build) if build else hardware
            case [python, "-m", "venv", folder]:
                version = re.search(r"python(3\.\d+)$", python)
                hardware = _in_environment(hardware, folder, version.group(1) if version else hardware.software.python)
            case ["conda", "create", *_, folder, python, "pip"]:
                hardware = _in_environment(hardware, folder.removeprefix("./"), python.removeprefix("python="))
            case [_, "-m", "pip", "install", *arguments]:
                hardware = _with_packages(hardware, arguments)
            case [_, "-m", "pip", "uninstall", "--yes", *names]:
                for name in names:
                    hardware = _without_package(hardware, name)
    return hardware


def _with_variables(hardware: Hardware, values: Mapping[str, str | None]) -> Hardware:
    """With those variables, None for unset. Cards that they show answer, and torch finds its own libraries."""
    environment = {name: value for name, value in {**hardware.environment, **values}.items() if value is not None}
    changed = replace(hardware, environment=environment)
    if "PYTHONUTF8" in values or "LC_ALL" in values:
        changed = replace(changed, host=replace(changed.host, locale_encoding="utf-8"))
    if not values.keys().isdisjoint(LIBRARY_PATHS):
        changed = _with_own_libraries(changed)
    if not values.keys().isdisjoint(PACKAGE_PATHS):
        changed = replace(changed, software=replace(changed.software, locations={}))
    return _with_cards(changed) if VISIBLE in values or ORDER in values else changed


def _with_own_libraries(hardware: Hardware) -> Hardware:
    """With torch's own CUDA libraries, and under WSL with the driver's library of Windows."""
    driver = hardware.driver
    if hardware.environment.get("LD_LIBRARY_PATH", "").startswith(WSL_LIBRARIES):
        driver = replace(driver, cuda_library=f"{WSL_LIBRARIES}lib/libcuda.so.1", nvml_error=None)
    software = replace(hardware.software, shadowing_libraries=())
    return with_working_torch(replace(hardware, driver=driver, software=software))


def _with_cards(hardware: Hardware) -> Hardware:
    """With the cards that the variables show, in their order."""
    gpus = every_gpu(hardware)
    shown = [gpus[position] for position in selected(gpus, hardware.environment.get(VISIBLE))]
    shown = [gpu for gpu in shown if gpu.compute_mode != "prohibited"]
    places = {device.index: shown.index(device) for device in hardware.devices if device in shown}
    links = tuple(
        replace(link, first=places[link.first], second=places[link.second])
        for link in hardware.links
        if link.first in places and link.second in places
    )
    devices = tuple(replace(gpu, index=index) for index, gpu in enumerate(shown))
    hidden = tuple(gpu for gpu in gpus if gpu not in shown)
    software = replace(hardware.software, bitsandbytes_library=None)
    changed = replace(hardware, devices=devices, hidden_devices=hidden, links=links, software=software)
    return with_working_torch(changed)


def _in_environment(hardware: Hardware, folder: str, python: str) -> Hardware:
    """With the Python of a new virtual environment, which has no packages."""
    software = Software(python=python, executable=f"{folder}/bin/python", environment_kind="venv")
    return replace(hardware, software=software)


def _with_packages(hardware: Hardware, arguments: Sequence[str]) -> Hardware:
    """After `pip install` with those arguments. A requirement without a version brings the newest known release."""
    for before, word in zip(("", *arguments), arguments, strict=False):
        match = re.match(r"([A-Za-z0-9_.-]*[A-Za-z0-9])(?:==([0-9.+a-z]*[0-9a-z]))?", word)
        if word == ".":
            hardware = _with_project(hardware)
        elif match is not None and not word.startswith("-") and before not in OPTIONS_WITH_VALUES:
            name, version = match.groups()
            hardware = _with_package(hardware, name, version or newest_known(name) or "")
    return hardware


def _with_package(hardware: Hardware, name: str, version: str) -> Hardware:
    if name == "torch":
        release, _, variant = version.partition("+")
        build = TorchInstall(version=release, variant=variant or "cpu", index_url="", reason="")
        return with_torch(hardware, build)
    kept = _without_package(hardware, name)
    return replace(kept, software=replace(kept.software, packages={**kept.software.packages, name: version}))


def _without_package(hardware: Hardware, name: str) -> Hardware:
    """Without the copy that is imported; Python then finds the next one on its path."""
    software = hardware.software
    others = software.locations.get(name, ())[1:]
    packages = {known: version for known, version in software.packages.items() if others or known != name}
    errors = {known: error for known, error in software.import_errors.items() if known != name}
    changed = replace(software, packages=packages, import_errors=errors, locations={**software.locations, name: others})
    return replace(
        hardware, software=replace(changed, bitsandbytes_library=None) if name == "bitsandbytes" else changed
    )


def _with_project(hardware: Hardware) -> Hardware:
    """With the packages that this project requires, each in a release that it supports."""
    packages = dict(hardware.software.packages)
    for row in required():
        name, version = row["package"], packages.get(row["package"])
        if name != "torch" and (version is None or not satisfies(version, row["versions"])):
            packages[name] = newest_known(name) or str(row["versions"]).lstrip(">=")
    return replace(hardware, software=replace(hardware.software, packages=packages))


def repaired_machines(hardware: Hardware, *, new_torch: bool) -> Iterator[tuple[Hardware, TorchInstall | None]]:
    """Repaired machines and the torch build in each, None for its own; the best first, the CPU alone last.

    `new_torch` says whether another torch is part of the fix; otherwise the installed one is assumed to work.
    """
    seen = with_its_cards(hardware)
    for machine in (seen, replace(seen, devices=())) if seen.devices else (seen,):
        yield machine if new_torch else with_working_torch(machine), None
        build = obtainable_torch(machine)
        if build is not None:
            yield with_torch(machine, build), build


def obtainable_torch(hardware: Hardware) -> TorchInstall | None:
    """The build that suits the machine, if necessary with another Python or on another system.

    None if no build supports its cards and driver.
    """
    wanted = target_of(hardware)
    pythons = (wanted.python, *wanted.pythons()[:1])
    candidates = (replace(wanted, python=python, libc=libc) for python in pythons for libc in (wanted.libc, None))
    return next(filter(None, (candidate.best() for candidate in candidates)), None)


def with_its_cards(hardware: Hardware) -> Hardware:
    """With its visible cards, else its hidden ones, else the first that is on the PCI bus only."""
    if hardware.devices:
        return hardware
    if hardware.hidden_devices:
        shown = tuple(replace(device, index=index) for index, device in enumerate(hardware.hidden_devices))
        return replace(hardware, devices=shown, hidden_devices=())
    return replace(hardware, devices=_on_the_bus(hardware))


def with_working_torch(hardware: Hardware) -> Hardware:
    """With its own torch as if nothing prevented it from working."""
    torch = hardware.software.torch
    reaching = None if torch is None else replace(torch, cuda_available=torch.cuda is not None, cuda_error=None)
    return replace(hardware, software=replace(hardware.software, torch=reaching, torch_error=None))


def with_torch(hardware: Hardware, build: TorchInstall) -> Hardware:
    """With that build imported, what it reports on this machine, and the packages that pip replaces with it."""
    software, torch = hardware.software, TorchBuild(version=f"{build.version}+{build.variant}")
    brought = {"torch": torch.version}
    if build.variant != "cpu":
        release = next(row for row in releases() if row["newest"] == build.version)
        archs = tuple(dict(variants(release, target_of(hardware).machine))[build.variant])
        torch = replace(torch, cuda=cuda_of(build.variant), arch_list=archs, cuda_available=True)
        brought |= {"triton": str(release["triton"]), **pinned_libraries(build.version, build.variant)}
    replaced = [name for name in software.packages if name.startswith("nvidia-") and name != "nvidia-ml-py"]
    kept = {name: it for name, it in software.packages.items() if name not in ("torch", "triton", *replaced)}
    changed = replace(
        software,
        torch=torch,
        torch_error=None,
        torch_seconds=None,
        packages={**kept, **brought},
        import_errors={name: error for name, error in software.import_errors.items() if name not in brought},
        locations={name: folders for name, folders in software.locations.items() if name not in brought},
        bitsandbytes_library=None,
    )
    return replace(hardware, software=changed)


def _on_the_bus(hardware: Hardware) -> tuple[Device, ...]:
    """The first card on the bus that the catalogue lists; if several share its id, the one with the least memory."""
    for gpu in hardware.pci_gpus or ():
        rows = [row for row in read_table("gpus")["gpus"] if gpu.device_id.lower() in row["pci_device_ids"]]
        if rows and gpu.kernel_driver != "vfio-pci":
            smallest = min(rows, key=lambda row: row["memory_gb"])
            return emulated_hardware(smallest["id"], hardware).devices
    return ()
