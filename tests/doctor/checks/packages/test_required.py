"""The packages around torch: bitsandbytes, kernels, transformers, CUDA libraries, and what the project needs."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fakes import machines
from fakes.doctor import missing
from fakes.machines import A100, GTX_1660, H200, P40, T4, V100, gpu, recorded

from rl_compat.capability.bitsandbytes import find_library, library_file
from rl_compat.doctor.checks.cards.precision import check_kernels
from rl_compat.doctor.checks.packages.bitsandbytes import check_bitsandbytes, fitting_release
from rl_compat.doctor.checks.packages.kernels import check_attention_packages
from rl_compat.doctor.checks.packages.required import check_required_packages, check_transformers
from rl_compat.doctor.checks.torch.libraries import check_cuda_libraries
from rl_compat.doctor.diagnosis import select_checks
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.doctor.table import CHECKS as EVERY_CHECK
from rl_compat.hardware.gpu.catalogue import all_gpus, read_table
from rl_compat.hardware.types import Device, Driver, Hardware, TorchBuild
from rl_compat.units import GIB

MAXWELL = gpu("Quadro M6000 24GB", (5, 2))
B200 = gpu("NVIDIA B200", (10, 0), memory_bytes=180 * GIB)
ARCHS = {
    "11.8": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "12.6": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "12.8": ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    "13.2": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}


def machine(*devices: Device, **installed: str) -> Hardware:
    hardware = machines.machine(*devices, **installed)
    return replace(hardware, host=replace(hardware.host, platform="Linux x86_64"))


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def with_torch(hardware: Hardware, version: str, cuda: str | None, **facts: Any) -> Hardware:
    torch = TorchBuild(version=version, cuda=cuda, arch_list=ARCHS.get(cuda or "", ()), cuda_available=cuda is not None)
    return replace(hardware, software=replace(hardware.software, torch=torch, **facts))


def with_software(hardware: Hardware, **facts: Any) -> Hardware:
    return replace(hardware, software=replace(hardware.software, **facts))


def bnb(device: Device, version: str = "0.50.2", *, cuda: str = "12.6", library: str | None = "cuda") -> Hardware:
    hardware = machine(device, bitsandbytes=version)
    return with_torch(hardware, f"2.10.0+cu{cuda.replace('.', '')}", cuda, bitsandbytes_library=library)


# ---- bitsandbytes


def test_bitsandbytes_that_serves_the_card_is_fine() -> None:
    finding = found(check_bitsandbytes, bnb(P40))["bitsandbytes.works"]

    assert finding.severity is Severity.OK
    assert not missing(finding.what, "bitsandbytes 0.50.2", "Tesla P40 (compute capability 6.1)")


def test_bitsandbytes_without_a_gpu_library_names_the_one_it_looked_for() -> None:
    """A-ENV-08."""
    finding = found(check_bitsandbytes, bnb(A100, library="cpu"))["bitsandbytes.no_gpu_library"]

    assert finding.severity is Severity.WARNING
    assert "`libbitsandbytes_cuda126.so`" in finding.what
    assert "--force-reinstall --no-deps bitsandbytes==0.50.2" in commands(finding)


def test_a_library_that_the_release_does_not_bring_is_got_with_a_release_that_does() -> None:
    finding = found(check_bitsandbytes, bnb(A100, "0.47.0", cuda="13.2", library="cpu"))["bitsandbytes.no_gpu_library"]

    assert "`libbitsandbytes_cuda132.so`" in finding.what
    assert commands(finding).splitlines()[0] == "python -m pip install bitsandbytes==0.50.2"


def test_a_cpu_library_that_follows_from_torch_is_left_to_torch() -> None:
    hardware = with_torch(bnb(A100, library="cpu"), "2.6.0+cpu", None)

    finding = found(check_bitsandbytes, hardware)["bitsandbytes.no_gpu_library"]

    assert finding.severity is Severity.OK
    assert finding.remedies == ()
    assert "torch 2.6.0+cpu" in finding.what


def test_an_override_that_names_no_library_is_unset_first() -> None:
    broken = replace(bnb(A100, library="libbitsandbytes_cuda127.so not found"), environment={"BNB_CUDA_VERSION": "127"})

    finding = found(check_bitsandbytes, broken)["bitsandbytes.does_not_load"]

    assert commands(finding).splitlines()[0] == "unset BNB_CUDA_VERSION"


@pytest.mark.parametrize(
    ("device", "version", "cuda", "pin"),
    [(V100, "0.46.1", "12.8", "0.50.2"), (MAXWELL, "0.50.2", "12.6", "0.47.0"), (MAXWELL, "0.48.0", "11.8", "0.47.0")],
)
def test_a_release_without_code_for_the_card_is_exchanged_for_one_that_has_it(device, version, cuda, pin) -> None:
    finding = found(check_bitsandbytes, bnb(device, version, cuda=cuda))["bitsandbytes.no_code"]

    assert finding.severity is Severity.WARNING
    assert f"bitsandbytes=={pin}" in commands(finding).splitlines()[0]


def test_where_torch_has_no_code_either_bitsandbytes_is_no_news() -> None:
    finding = found(check_bitsandbytes, bnb(P40, cuda="12.8"))["bitsandbytes.no_code"]

    assert finding.severity is Severity.OK
    assert finding.remedies == ()


@pytest.mark.parametrize(
    ("version", "torch", "values"),
    [
        ("0.45.5", "2.10.0+cu126", ("0.45.5", ">=0.46")),
        ("0.50.2", "2.3.1+cu126", ("torch >=2.4,<3", "2.3.1+cu126")),
    ],
)
def test_a_release_for_another_torch_or_too_old_is_a_warning(version: str, torch: str, values: tuple[str, ...]) -> None:
    finding = found(check_bitsandbytes, with_torch(bnb(A100, version), torch, "12.6"))["bitsandbytes.mismatch"]

    assert not missing(finding.what, *values)


def test_a_release_newer_than_the_tables_is_not_bad() -> None:
    finding = found(check_bitsandbytes, with_torch(bnb(A100, "0.90.0"), "2.90.0+cu126", "12.6"))

    assert finding["bitsandbytes.works"].severity is Severity.OK
    assert "newer" in finding["bitsandbytes.works"].what


def test_a_missing_bitsandbytes_is_worth_a_note_on_a_small_card_only() -> None:
    small = found(check_bitsandbytes, machine(GTX_1660, transformers="5.24.0"))["bitsandbytes.missing"]
    large = found(check_bitsandbytes, machine(A100, transformers="5.24.0"))["bitsandbytes.missing"]

    assert small.severity is Severity.NOTE
    assert "bitsandbytes==0.50.2" in commands(small)
    assert large.severity is Severity.OK


def test_bitsandbytes_is_no_question_without_a_card() -> None:
    assert found(check_bitsandbytes, machine(bitsandbytes="0.50.2")) == {}


# ---- packages of kernels


def test_flash_attention_is_off_on_a_v100_and_no_error() -> None:
    """A-ENV-11."""
    finding = found(check_attention_packages, machine(V100, flash_attn="2.6.3"))["attention_packages.off"]

    assert finding.severity is Severity.NOTE
    assert not missing(finding.what, "Tesla V100-SXM2-32GB (compute capability 7.0)", "flash-attn 2.6.3", "8.0")


def test_the_weakest_card_decides() -> None:
    """A-ENV-11, the variant with two cards."""
    finding = found(check_attention_packages, machine(A100, T4, flash_attn="2.6.3"))["attention_packages.off"]

    assert "Tesla T4 (compute capability 7.5)" in finding.what
    assert finding.affects == ("cuda:1",)


def test_liger_is_off_on_a_p40() -> None:
    """A-ENV-12."""
    finding = found(check_attention_packages, machine(P40, liger_kernel="0.8.5", triton="3.7.1"))

    assert not missing(finding["attention_packages.off"].what, "Tesla P40", "6.1", "liger-kernel 0.8.5", "7.0")
    assert finding.keys() == {"attention_packages.off"}


def test_flash_attention_3_is_for_hopper_alone() -> None:
    assert "attention_packages.usable" in found(check_attention_packages, machine(H200, flash_attn_3="3.0.0"))
    off = found(check_attention_packages, machine(B200, flash_attn_3="3.0.0"))["attention_packages.off"]
    assert "needs 9.0" in off.what


def test_nothing_installed_is_nothing_to_say() -> None:
    assert found(check_attention_packages, machine(P40)) == {}
    assert found(check_attention_packages, machine(flash_attn="2.6.3")) == {}


def test_a_package_for_another_torch_is_uninstalled() -> None:
    symbol = "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
    hardware = with_software(machine(A100, flash_attn="2.8.3"), import_errors={"flash-attn": symbol})

    finding = found(check_attention_packages, hardware)["attention_packages.does_not_import"]

    assert finding.severity is Severity.WARNING
    assert "built for another torch" in finding.what
    assert commands(finding) == "python -m pip uninstall --yes flash-attn"


def test_a_broken_package_that_no_card_here_could_use_is_a_note() -> None:
    """A-ENV-12."""
    error = {"liger-kernel": "RuntimeError: Triton only support CUDA 10.0 or higher, and sm_70 or newer"}
    hardware = with_software(machine(P40, liger_kernel="0.8.5"), import_errors=error)

    finding = found(check_attention_packages, hardware)["attention_packages.does_not_import"]

    assert finding.severity is Severity.NOTE


def test_a_package_that_takes_transformers_down_is_a_failure() -> None:
    errors = {
        "xformers": "ImportError: libcudart.so.12: cannot open shared object file",
        "transformers": "RuntimeError: Failed to import: cannot load xformers",
    }
    hardware = with_software(machine(A100, xformers="0.0.35", transformers="5.24.0"), import_errors=errors)

    finding = found(check_attention_packages, hardware)["attention_packages.does_not_import"]

    assert finding.severity is Severity.FAILURE


def test_a_broken_triton_matters_from_7_0_on() -> None:
    error = {"triton": "ImportError: libtriton.so: undefined symbol: PyThreadState_GetUnchecked"}
    case = "attention_packages.triton_does_not_import"
    old = found(check_attention_packages, with_software(machine(P40, triton="3.6.0"), import_errors=error))[case]
    new = found(check_attention_packages, with_software(machine(A100, triton="3.6.0"), import_errors=error))[case]

    assert old.severity is Severity.NOTE
    assert new.severity is Severity.WARNING
    assert "triton==3.6.0" in commands(new)


def test_xformers_for_another_torch_is_noted() -> None:
    finding = found(check_attention_packages, machine(A100, xformers="0.0.30"))["attention_packages.other_torch"]

    assert not missing(finding.what, "xformers 0.0.30", "torch >=2.4.0,<=2.7.0", "2.11.0+cu126")


# ---- transformers


def test_a_transformers_that_goes_with_torch_is_fine() -> None:
    finding = found(check_transformers, machine(A100, transformers="5.24.0"))

    assert finding.keys() == {"transformers.works"}
    assert not missing(finding["transformers.works"].what, "transformers 5.24.0", "torch 2.11.0+cu126")


def test_beside_a_torch_that_is_too_old_for_both_transformers_is_not_called_fine() -> None:
    hardware = with_torch(machine(A100, transformers="5.24.0"), "2.5.1+cu126", "12.6")

    assert found(check_transformers, hardware) == {}


def test_an_old_transformers_is_a_failure_with_our_bounds() -> None:
    finding = found(check_transformers, machine(A100, transformers="4.57.1"))["transformers.too_old"]

    assert not missing(finding.what, "transformers 4.57.1", ">=5.5")
    assert commands(finding) == "python -m pip install 'transformers>=5.5'"


def test_a_python_below_the_floor_is_a_warning() -> None:
    hardware = with_software(machine(A100, transformers="5.24.0"), python="3.10.4")

    assert (
        "needs Python 3.11 or newer, this is 3.10.4"
        in found(check_transformers, hardware)["transformers.python_too_old"].what
    )


def test_a_transformers_newer_than_the_tables_is_not_bad() -> None:
    findings = found(check_transformers, machine(P40, transformers="6.9.0"))

    assert {finding.severity for finding in findings.values()} == {Severity.OK}


@pytest.mark.parametrize(
    ("device", "torch", "trapped"),
    [
        (P40, "2.11.0+cu126", True),
        (T4, "2.13.0+cu126", True),
        (P40, "2.14.1+cu126", False),
        (A100, "2.11.0+cu126", False),
    ],
)
def test_math_attention_of_grouped_queries_is_noted_on_old_cards_with_old_torch(device, torch, trapped) -> None:
    hardware = with_torch(machine(device, transformers="5.24.0"), torch, "12.6")

    assert ("transformers.grouped_query_math" in found(check_transformers, hardware)) is trapped


def test_the_note_on_grouped_queries_says_that_this_projects_engines_are_not_touched() -> None:
    finding = found(check_transformers, machine(P40, transformers="5.24.0"))["transformers.grouped_query_math"]

    assert finding.severity is Severity.NOTE
    assert "torch==2.14.1+cu126" in commands(finding)


@pytest.mark.parametrize(
    ("package", "version", "torch", "fits"),
    [
        ("torchvision", "0.26.0", "2.11.0+cu126", True),
        ("torchvision", "0.25.0+cu126", "2.11.0+cu126", False),
        ("torchvision", "0.29.0", "2.14.1+cu126", True),
        ("torchaudio", "2.8.0", "2.11.0+cu126", False),
        ("torchaudio", "2.11.0", "2.14.1+cu126", True),
        ("torchvision", "0.40.0", "2.25.0+cu126", True),
        ("torchvision", "0.10.0", "2.25.0+cu126", True),
    ],
)
def test_torchvision_and_torchaudio_go_with_one_torch(package, version, torch, fits) -> None:
    hardware = with_torch(machine(A100, transformers="5.24.0", **{package: version}), torch, "12.6")

    assert (f"transformers.{package}" not in found(check_transformers, hardware)) is fits


def test_an_unfitting_torchvision_is_uninstalled_or_exchanged() -> None:
    hardware = machine(A100, transformers="5.24.0", torchvision="0.25.0")

    lines = commands(found(check_transformers, hardware)["transformers.torchvision"]).splitlines()

    assert lines[0] == "python -m pip uninstall --yes torchvision"
    assert lines[1].endswith("--no-deps --index-url https://download.pytorch.org/whl/cu126 torchvision==0.26.0")


def test_a_transformers_that_does_not_import_is_a_failure() -> None:
    error = {"transformers": "RuntimeError: operator torchvision::nms does not exist"}
    hardware = with_software(machine(A100, transformers="5.24.0"), import_errors=error)

    assert found(check_transformers, hardware)["transformers.does_not_import"].severity is Severity.FAILURE


# ---- CUDA libraries


def test_an_upgraded_cudnn_lost_the_old_cards_and_goes_back_to_torchs_own() -> None:
    hardware = with_torch(machine(P40, nvidia_cudnn_cu12="9.12.0.46"), "2.14.1+cu126", "12.6")

    finding = found(check_cuda_libraries, hardware)["cuda_libraries.cudnn"]

    assert finding.severity is Severity.WARNING
    assert not missing(finding.what, "nvidia-cudnn-cu12 9.12.0.46", "Tesla P40 (compute capability 6.1)", "sm_75")
    assert commands(finding) == "python -m pip install --no-deps nvidia-cudnn-cu12==9.10.2.21"


def test_torchs_own_cudnn_is_fine_on_a_p40() -> None:
    hardware = with_torch(machine(P40, nvidia_cudnn_cu12="9.10.2.21"), "2.14.1+cu126", "12.6")

    assert found(check_cuda_libraries, hardware).keys() == {"cuda_libraries.fine"}


def test_an_upgraded_cudnn_on_a_new_card_is_a_note() -> None:
    hardware = with_torch(machine(A100, nvidia_cudnn_cu12="9.12.0.46"), "2.14.1+cu126", "12.6")

    assert found(check_cuda_libraries, hardware)["cuda_libraries.cudnn_upgraded"].severity is Severity.NOTE


def test_libraries_of_another_cuda_than_torchs_do_not_count() -> None:
    hardware = with_torch(machine(P40, nvidia_cudnn_cu13="9.26.0.51"), "2.14.1+cu126", "12.6")

    assert found(check_cuda_libraries, hardware) == {}


def test_where_torch_has_no_code_its_libraries_are_no_news() -> None:
    hardware = with_torch(machine(P40, nvidia_cudnn_cu13="9.26.0.51"), "2.15.0+cu132", "13.2")

    assert found(check_cuda_libraries, hardware).keys() == {"cuda_libraries.fine"}


def test_an_integrated_device_is_not_judged_by_the_wheels_of_servers() -> None:
    orin = gpu("Orin", (8, 7), memory_bytes=32 * GIB)
    hardware = machine(orin, nvidia_cudnn_cu12="9.10.2.21")

    assert "cuda_libraries.cudnn" not in found(check_cuda_libraries, hardware)


# ---- what the project needs


def installed(**changes: str | None) -> Hardware:
    """A whole environment with some changes."""
    whole = {row["package"]: row["versions"].lstrip(">=").partition(",")[0] for row in read_table("libs")["required"]}
    there = {**whole, **{name.replace("_", "-"): version for name, version in changes.items()}}
    packages = {name: version for name, version in there.items() if version is not None}
    return with_software(machine(A100), executable="/home/ada/env/bin/python", packages=packages)


def test_a_whole_environment_is_complete() -> None:
    assert found(check_required_packages, installed()).keys() == {"required_packages.complete"}


def test_everything_that_is_missing_is_one_finding() -> None:
    finding = found(check_required_packages, installed(peft=None, transformers=None))["required_packages.missing"]

    assert finding.severity is Severity.FAILURE
    assert not missing(finding.what, "/home/ada/env/bin/python", "transformers>=5.5, peft>=0.18")
    assert commands(finding).splitlines() == [
        "/home/ada/env/bin/python -m pip install -e .",
        "scripts/quickstart.sh",
    ]


def test_a_package_that_can_be_done_without_is_a_warning() -> None:
    finding = found(check_required_packages, installed(nvidia_ml_py=None))["required_packages.missing"]

    assert finding.severity is Severity.WARNING


def test_where_pip_refuses_the_quickstart_makes_an_environment() -> None:
    finding = found(check_required_packages, with_software(installed(peft=None), externally_managed=True))

    assert commands(finding["required_packages.missing"]) == "scripts/quickstart.sh"


def test_a_release_below_the_floor_is_a_warning() -> None:
    finding = found(check_required_packages, installed(peft="0.10.0"))["required_packages.too_old"]

    assert "peft 0.10.0 (>=0.18)" in finding.what


def test_a_description_that_does_not_say_whose_packages_it_lists_is_not_judged() -> None:
    assert found(check_required_packages, machine(A100)) == {}


def test_packages_that_do_not_import_are_found() -> None:
    errors = {"pyarrow": "ImportError: libstdc++.so.6: version `GLIBCXX_3.4.31' not found", "wandb": "ImportError: x"}
    hardware = with_software(installed(), import_errors=errors)

    findings = [finding for finding in check_required_packages(hardware) if "does_not_import" in finding.id]

    assert [finding.severity for finding in findings] == [Severity.FAILURE, Severity.WARNING]


# ---- every combination of the tables

CHECKS = select_checks(
    EVERY_CHECK,
    (
        *("required_packages", "transformers", "bitsandbytes", "attention_packages"),
        *("cuda_libraries", "vllm", "vllm_cpu", "sglang"),
    ),
)
DRIVERS = ("470.86", "550.54.14", "580.95.05", None)


def listed_versions() -> dict[str, set[str]]:
    """What a remedy may name, by package."""
    torch = {
        f"{row['newest']}+{build}"
        for row in read_table("torch")["releases"]
        for build in ("cpu", *row["x86_64_wheels"])
    }
    listed = {
        "torch": torch,
        "vllm": {row["vllm"] for row in read_table("vllm")["releases"]},
        "bitsandbytes": {row["newest"] for row in read_table("bitsandbytes")["wheels"]},
        "torchvision": {row["torchvision"][2:] for row in read_table("torch")["releases"]},
        "torchaudio": {row["torchaudio"][2:] for row in read_table("torch")["releases"]},
        "triton": {row["triton"] for row in read_table("torch")["releases"]},
    }
    for row in (*read_table("torch")["pinned_libraries"], *read_table("vllm")["cpu_packages"]):
        listed.setdefault(row["package"], set()).add(row["version"])
    return listed


LISTED = listed_versions()


def problems(hardware: Hardware, *only: str) -> Iterator[str]:
    """What is wrong with what the checks say, or those of them; they raise for themselves."""
    for check in (check for check in CHECKS if not only or check.id in only):
        yield from faults(check.id, check.run(hardware))


def faults(check: str, findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        if finding.what.endswith(".") or not finding.id.startswith(f"{check}."):
            yield f"{finding.id}: {finding.what}"
        for package, version in re.findall(r"([\w-]+)==([\w.+]+)", commands(finding)):
            if version.rstrip(".*") not in LISTED.get(package, set()):
                yield f"{finding.id}: {package}=={version} is not listed"


def devices_of_the_catalogue() -> list[Device]:
    return [gpu(card.name, card.compute_capability, memory_bytes=card.memory_bytes) for card in all_gpus()]


def build(release: dict[str, Any], variant: str) -> TorchBuild:
    archs = release["x86_64_wheels"][variant]
    cuda = f"{variant[2:-1]}.{variant[-1]}"
    names = tuple(f"sm_{arch.partition('+')[0].replace('.', '')}" for arch in archs)
    return TorchBuild(version=f"{release['newest']}+{variant}", cuda=cuda, arch_list=names, cuda_available=True)


def builds() -> list[TorchBuild]:
    return [build(row, variant) for row in read_table("torch")["releases"] for variant in row["x86_64_wheels"]]


def one_of_each_capability() -> list[Device]:
    """Cards of the catalogue; the checks ask for nothing else of a card."""
    return list({device.compute_capability: device for device in devices_of_the_catalogue()}.values())


def test_every_capability_with_every_vllm_has_an_answer_that_names_listed_versions_only() -> None:
    torches = itertools.cycle(builds())
    drivers, pythons = itertools.cycle(DRIVERS), itertools.cycle(("3.9.1", "3.11.4", "3.12.8", "3.14.0", "3.15.0"))
    wrong = set()
    for device, row in itertools.product(one_of_each_capability(), read_table("vllm")["releases"]):
        hardware = machine(device, vllm=row["vllm"], transformers="5.24.0")
        software = replace(hardware.software, torch=next(torches), python=next(pythons))
        wrong |= set(problems(replace(hardware, software=software, driver=Driver(version=next(drivers))), "vllm"))
    assert wrong == set()


def test_every_capability_with_every_vllm_and_every_bitsandbytes_has_an_answer_of_every_check() -> None:
    """Each card meets each release of both; not every pair of releases."""
    vllms = [row["vllm"] for row in read_table("vllm")["releases"]]
    wheels = [row["newest"] for row in read_table("bitsandbytes")["wheels"]]
    torches, libraries = itertools.cycle(builds()), itertools.cycle(("cuda", "cpu", None, "not found"))
    assert len(vllms) >= len(wheels)
    wrong = set()
    for device in one_of_each_capability():
        for vllm, wheel in zip(vllms, itertools.cycle(wheels), strict=False):
            hardware = machine(device, vllm=vllm, bitsandbytes=wheel, transformers="5.24.0", triton="3.6.0")
            hardware = with_software(hardware, torch=next(torches), bitsandbytes_library=next(libraries))
            wrong |= set(problems(hardware))
    assert wrong == set()


def test_every_capability_with_every_bitsandbytes_and_torch_has_an_answer() -> None:
    """What is fine has code for the card by the architecture rule, and what is offered has it too."""
    wrong = set()
    versions = [row["newest"] for row in read_table("bitsandbytes")["wheels"]]
    pick = random.Random(0)
    for device, torch, version in itertools.product(one_of_each_capability(), builds(), versions):
        library = pick.choice(("cuda", "cpu", "libbitsandbytes_cuda129.so not found"))
        hardware = machine(device, bitsandbytes=version)
        hardware = with_software(hardware, torch=torch, bitsandbytes_library=library)
        findings = {finding.id: finding for finding in check_bitsandbytes(hardware)}
        wrong |= set(faults("bitsandbytes", findings.values()))
        offered = fitting_release(hardware)
        for release in filter(None, (offered, version if "bitsandbytes.works" in findings else None)):
            chosen = find_library(release, torch.cuda or "")
            assert chosen is not None
            major, minor = device.compute_capability
            code = [int(arch.partition("_")[2]) for arch in chosen.arch_list if arch.startswith("sm_")]
            ptx = [int(arch.partition("_")[2]) for arch in chosen.arch_list if arch.startswith("compute_")]
            native = any(arch // 10 == major and arch % 10 <= minor for arch in code)
            assert native or any(arch <= major * 10 + minor for arch in ptx)
    assert wrong == set()


def test_every_release_of_the_libraries_and_kernels_has_an_answer_on_every_capability() -> None:
    rows = [
        (row["package"], row.get("version") or row["version_min"])
        for part in ("cuda_libs", "kernels", "newest")
        for row in read_table("libs")[part]
    ]
    rows += [(row["package"], row["version"]) for row in read_table("vllm")["cpu_packages"]]
    wrong = set()
    for device, (package, version) in itertools.product((*one_of_each_capability(), None), rows):
        hardware = machine(*([device] if device else []), **{package: version, "transformers": "5.24.0"})
        wrong |= set(problems(with_software(hardware, executable="python3")))
    assert wrong == set()


def test_versions_that_are_no_versions_break_nothing() -> None:
    names = [row["package"] for row in read_table("libs")["newest"]]
    for version in ("", "unknown", "0", "main+abc", "999999999999999999.1"):
        hardware = with_software(machine(A100), packages=dict.fromkeys(names, version), executable="python3")
        assert set(problems(hardware)) == set()


@pytest.mark.parametrize("name", ["p40", "h100", "laptop_no_gpu"])
def test_healthy_machines_get_nothing_worse_than_ok(name: str) -> None:
    findings = [finding for check in CHECKS for finding in check.run(recorded(name))]

    assert {finding.severity for finding in findings} <= {Severity.OK}


def test_the_name_of_a_library_is_its_cuda_version() -> None:
    assert library_file("13.2") == "libbitsandbytes_cuda132.so"


@pytest.mark.parametrize(
    ("torch", "cuda", "triton", "wanted"),
    [
        ("2.5.1+cu124", "12.4", "2.1.0", "3.1.0"),
        ("2.15.0+cu132", "13.2", None, "3.9"),
        ("2.14.1+cu126", "12.6", "3.9.0", "3.8"),
        ("2.14.1+cu126", "12.6", "3.8.0", None),
        ("2.9.0a0+git1b2c3d4", "12.8", None, None),
    ],
)
def test_the_triton_is_compared_with_the_one_that_torch_requires(torch, cuda, triton, wanted) -> None:
    recorded_machine = with_torch(recorded("rtx4090"), torch, cuda)
    packages = {name: version for name, version in recorded_machine.software.packages.items() if name != "triton"}
    hardware = with_software(recorded_machine, packages={**packages, **({"triton": triton} if triton else {})})

    finding = found(check_attention_packages, hardware).get("attention_packages.triton_mismatch")
    kernels = found(check_kernels, hardware)

    assert (finding is None) == (wanted is None)
    assert ("kernels.on" in kernels) == (wanted is None)
    if finding is not None:
        assert finding.severity is Severity.WARNING
        assert f"triton=={wanted}" in commands(finding)


def test_below_7_0_the_triton_does_not_matter() -> None:
    hardware = recorded("p40")
    foreign = with_software(hardware, packages={**hardware.software.packages, "triton": "2.1.0"})

    assert "attention_packages.triton_mismatch" not in found(check_attention_packages, foreign)


@pytest.mark.parametrize(
    ("package", "version", "case", "severity"),
    [
        ("nvidia-cudnn-cu13", "9.20.0.48", "cudnn_too_old", Severity.WARNING),
        ("nvidia-nccl-cu13", "2.21.5", "nccl_too_old", Severity.WARNING),
        ("nvidia-nccl-cu13", "2.32.3", "nccl_upgraded", Severity.NOTE),
    ],
)
def test_the_libraries_of_torch_are_compared_with_the_ones_that_it_requires(package, version, case, severity) -> None:
    hardware = recorded("rtx4090")
    other = with_software(hardware, packages={**hardware.software.packages, package: version})

    finding = found(check_cuda_libraries, other)[f"cuda_libraries.{case}"]

    assert finding.severity is severity
    assert re.search(rf"pip install --no-deps {package}==[0-9.]+$", commands(finding))
    assert version not in commands(finding)
