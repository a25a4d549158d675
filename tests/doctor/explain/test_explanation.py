"""What an error means for one machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.doctor import missing

from rl_compat.doctor.diagnosis import run_checks
from rl_compat.doctor.explain.explanation import Advice, advise, checks_of, origin
from rl_compat.doctor.explain.patterns import Capabilities, KnownError, known_errors
from rl_compat.doctor.findings import Severity, Step
from rl_compat.doctor.table import CHECKS
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Hardware

RECORDINGS = Path(__file__).parents[2] / "recordings"
ERRORS = {error.id: error for error in known_errors()}
SEVERAL = (
    "p40",
    "p40_cu128_wheel",
    "v100_vllm",
    "gtx1660",
    "h200",
    "rtx5090",
    "mixed_p40_a100",
    "container_32gib_two_a10",
    "wsl_rtx3070",
    "laptop_no_gpu",
    "a100_mig_3g20gb",
    "rtx3060_no_driver",
    "k80",
)


def machine(name: str) -> Hardware:
    return load_recording(RECORDINGS / f"{name}.json")


def advice(id: str, name: str) -> Advice:
    hardware = machine(name)
    return advise(ERRORS[id], hardware, run_checks(checks_of([ERRORS[id]], CHECKS), hardware))


@pytest.mark.parametrize(
    ("ranges", "inside", "outside", "text"),
    [
        ([(None, (8, 0))], [(3, 7), (7, 5), (7, 9)], [(8, 0), (9, 0)], "below 8.0"),
        ([((6, 0), (7, 0))], [(6, 0), (6, 2)], [(5, 2), (7, 0)], "6.0 to below 7.0"),
        ([((10, 0), None)], [(10, 0), (12, 1)], [(9, 0)], "10.0 and newer"),
        ([(None, (7, 5)), ((12, 0), None)], [(6, 1), (12, 0)], [(7, 5), (9, 0)], "below 7.5, or 12.0 and newer"),
        ([], [(3, 7), (12, 0)], [], ""),
    ],
)
def test_ranges_of_capability(
    ranges: list[tuple[tuple[int, int] | None, tuple[int, int] | None]],
    inside: list[tuple[int, int]],
    outside: list[tuple[int, int]],
    text: str,
) -> None:
    capabilities = Capabilities(ranges=tuple(ranges))

    assert all(capability in capabilities for capability in inside)
    assert not any(capability in capabilities for capability in outside)
    assert str(capabilities) == text


@pytest.mark.parametrize(
    ("id", "name", "concerns", "values"),
    [
        ("bf16_vllm", "p40", "yes", ()),
        ("bf16_vllm", "h200", "no", ("9.0", "below 8.0")),
        ("no_kernel_image", "h200", "unlikely", ("9.0", "usually")),
        ("bf16_vllm", "mixed_p40_a100", "yes", ("below 8.0", "cuda:1 (Tesla P40)")),
        ("cuda_oom", "h200", "yes", ()),
        ("bf16_vllm", "laptop_no_gpu", "unknown", ("below 8.0",)),
        ("cuda_oom", "laptop_no_gpu", "yes", ()),
        ("blackwell_open", "rtx5090", "yes", ()),
    ],
)
def test_where_a_message_can_come_from(id: str, name: str, concerns: str, values: tuple[str, ...]) -> None:
    found = origin(ERRORS[id], machine(name))

    assert found[0] == concerns
    assert not missing(found[1], *values)
    assert bool(found[1]) == bool(values)


def test_a_wheel_without_code_for_the_card_is_named_with_the_build_that_has_it() -> None:
    """A-ENV-01: the finding of the check and the command for this card, driver and Python."""
    found = advice("no_kernel_image", "p40_cu128_wheel")

    assert any("Tesla P40" in finding.what for finding in found.findings)
    assert "torch==2.14.1+cu126" in found.remedies[0].commands[0]


def test_an_error_from_elsewhere_brings_no_command_for_this_machine() -> None:
    found = advice("torch_not_compatible", "h200")

    assert found.concerns == "unlikely"
    assert found.findings == ()
    assert all(remedy.what.startswith("on the machine of the log: ") for remedy in found.remedies)
    assert not any("install torch" in command for remedy in found.remedies for command in remedy.commands)


def test_the_shared_memory_of_a_container_is_found_to_be_small() -> None:
    """A-ENV-07: the message speaks of a device without space, the finding of 64 MiB in /dev/shm."""
    found = advice("shm", "container_32gib_two_a10")

    assert found.findings[0].id.startswith("shared_memory.")
    assert "--shm-size" in " ".join(found.remedies[0].commands)


def test_no_driver_is_installed_inside_of_wsl() -> None:
    wsl = machine("wsl_rtx3070")
    advice = [advise(error, wsl, ()) for error in ERRORS.values()]

    assert Step.SHELL in {remedy.step for found in advice for remedy in found.remedies}
    for found in advice:
        if found.concerns == "yes":
            assert all(remedy.step is not Step.DRIVER for remedy in found.remedies), found


def test_in_a_container_the_driver_is_the_hosts() -> None:
    found = advise(ERRORS["nvml_mismatch"], machine("docker_a10"), ())

    drivers = [remedy for remedy in found.remedies if remedy.step is Step.DRIVER]
    assert drivers and all(remedy.what.startswith("on the host: ") for remedy in drivers)


def test_remedies_are_those_for_the_card() -> None:
    p40 = [remedy.what for remedy in advise(ERRORS["driver_too_old"], machine("p40"), ()).remedies]
    a100 = [remedy.what for remedy in advise(ERRORS["driver_too_old"], machine("a100"), ()).remedies]

    assert any("the last branch" in what for what in p40)
    assert not any("the last branch" in what for what in a100)


def test_packages_are_installed_with_the_python_of_the_machine() -> None:
    hardware = machine("p40_cu128_wheel")

    commands = [command for remedy in advise(ERRORS["apex_amp"], hardware, ()).remedies for command in remedy.commands]

    assert commands == [f"{hardware.software.executable} -m pip uninstall --yes apex"]


def test_no_remedy_is_said_twice() -> None:
    found = advice("host_oom", "container_32gib_two_a10")

    keys = [remedy.commands or (remedy.what,) for remedy in found.remedies]
    assert len(keys) == len(set(keys))


def test_what_is_fine_is_named_when_nothing_is_wrong() -> None:
    found = advice("cuda_oom", "p40")

    assert found.findings == ()
    assert "device_memory" in found.fine


@pytest.mark.parametrize("name", SEVERAL)
def test_every_error_has_advice_on_every_kind_of_machine(name: str) -> None:
    hardware = machine(name)
    results = {result.check.id: result for result in run_checks(CHECKS, hardware)}

    for error in ERRORS.values():
        asked = [results[id] for id in error.checks]
        found = advise(error, hardware, asked)
        assert all(finding.severity > Severity.NOTE for finding in found.findings)
        assert not any(finding.id.endswith(".broken") for finding in found.findings)
        assert found.remedies or found.concerns != "yes" or _needs_a_driver_there(error, hardware), error.id


def _needs_a_driver_there(error: KnownError, hardware: Hardware) -> bool:
    """Whether the only remedy is a driver, which a Linux under Windows does not have."""
    return hardware.host.wsl and {remedy.step for remedy in error.remedies} == {"driver"}
