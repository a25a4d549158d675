"""Do other CUDA libraries come before those that torch brings?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.torch.libraries import check_libraries
from rl_compat.doctor.findings import Finding, Remedy, Severity
from rl_compat.hardware.types import Hardware

CUDA = "/usr/local/cuda-12.1/lib64"
COMPAT = "/usr/local/cuda/compat"


def found(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.id: finding for finding in findings}


def commands(remedies: Iterable[Remedy]) -> tuple[str, ...]:
    return tuple(line for remedy in remedies for line in remedy.commands)


def shadowed(*libraries: str, path: str = CUDA, base: str = "rtx3090", **torch: object) -> Hardware:
    """A machine whose LD_LIBRARY_PATH holds those libraries."""
    hardware = recorded(base)
    build = hardware.software.torch
    assert build is not None
    software = replace(
        hardware.software,
        torch=replace(build, **torch),  # type: ignore[arg-type]
        shadowing_libraries=libraries,
    )
    return replace(hardware, software=software, environment={"LD_LIBRARY_PATH": path})


def test_a_conflict_names_the_folder_and_the_way_without_it() -> None:
    """A-ENV-13."""
    (finding,) = check_libraries(recorded("rtx3090_library_conflict"))
    assert (finding.id, finding.severity) == ("libraries.conflict", Severity.FAILURE)
    assert not missing(finding.what, "LD_LIBRARY_PATH", f"`{CUDA}`")
    assert "`libnvJitLink.so.12`" in finding.what
    assert commands(finding.remedies) == ("unset LD_LIBRARY_PATH", "env -u LD_LIBRARY_PATH rlc doctor")


def test_a_conflict_is_seen_from_the_path_alone() -> None:
    """A-ENV-13 as it was reported: an undefined symbol and the path, and no list of libraries."""
    base = recorded("rtx3090_library_conflict")
    (finding,) = check_libraries(replace(base, software=replace(base.software, shadowing_libraries=())))
    assert (finding.id, finding.severity) == ("libraries.conflict", Severity.FAILURE)
    assert f"`{CUDA}`" in finding.what


def test_where_torch_gets_on_with_it_there_is_a_warning() -> None:
    (finding,) = check_libraries(recorded("rtx3090_shadowed_library"))
    assert (finding.id, finding.severity) == ("libraries.shadowed", Severity.WARNING)
    assert "`/usr/local/cuda/lib64`" in finding.what


def test_other_folders_of_the_path_stay() -> None:
    (finding,) = check_libraries(shadowed(f"{CUDA}/libcudart.so.13", path=f"/opt/mpi/lib:{CUDA}/:/opt/my lib"))
    assert commands(finding.remedies)[0] == "export LD_LIBRARY_PATH='/opt/mpi/lib:/opt/my lib'"


def test_a_library_of_another_major_version_is_not_taken_and_not_reported() -> None:
    (finding,) = check_libraries(shadowed(f"{CUDA}/libcublas.so.12", f"{CUDA}/libcudart.so.12"))
    assert (finding.id, finding.severity) == ("libraries.own", Severity.OK)


def test_cudnn_and_nccl_do_not_count_by_cudas_version() -> None:
    (finding,) = check_libraries(shadowed(f"{CUDA}/libcudnn.so.9"))
    assert finding.id == "libraries.shadowed"


def test_where_cuda_stays_silent_it_is_a_failure() -> None:
    (finding,) = check_libraries(shadowed(f"{CUDA}/libcudart.so.13", cuda_available=False))
    assert (finding.id, finding.severity) == ("libraries.conflict", Severity.FAILURE)
    assert "CUDA does not answer" in finding.what


@pytest.mark.parametrize(
    "silent",
    [
        shadowed(f"{CUDA}/libcudart.so.13", cuda_available=False, cuda_error="Error 802: system not yet initialized"),
        shadowed(f"{CUDA}/libcudart.so.12", base="rtx3090_old_driver"),
    ],
)
def test_what_has_another_cause_is_not_blamed_on_libraries(silent: Hardware) -> None:
    (finding,) = check_libraries(silent)
    assert (finding.id, finding.severity) == ("libraries.shadowed", Severity.WARNING)


def test_an_import_that_hangs_is_not_blamed_on_libraries() -> None:
    assert list(check_libraries(recorded("rtx3090_torch_hang"))) == []


def test_a_compat_folder_fails_only_where_cuda_refuses_it() -> None:
    error = "Error 804: forward compatibility was attempted on non supported HW"
    (refused,) = check_libraries(shadowed(path=f"{COMPAT}:/opt/lib", cuda_available=False, cuda_error=error))
    assert (refused.id, refused.severity) == ("libraries.compat", Severity.FAILURE)
    assert f"`{COMPAT}`" in refused.what
    assert commands(refused.remedies)[0] == "export LD_LIBRARY_PATH=/opt/lib"
    (works,) = check_libraries(shadowed(path=COMPAT))
    assert (works.id, works.severity) == ("libraries.compat", Severity.OK)


def test_a_driver_library_that_is_found_in_a_compat_folder_is_named_without_the_variable() -> None:
    base = shadowed(path="", cuda_available=False, cuda_error="Error 803: system has unsupported display driver")
    hardware = replace(base, driver=replace(base.driver, cuda_library=f"{COMPAT}/libcuda.so.1"))
    (finding,) = check_libraries(hardware)
    assert finding.id == "libraries.compat"
    assert finding.where == ("libcuda.so.1",)
    assert commands(finding.remedies) == ("ldconfig -p",)


def test_a_stub_for_linking_is_no_driver() -> None:
    stubs = "/usr/local/cuda/lib64/stubs"
    (finding,) = check_libraries(shadowed(path=stubs, cuda_available=False, cuda_error="CUDA driver is a stub library"))
    assert (finding.id, finding.severity) == ("libraries.stubs", Severity.FAILURE)


def test_the_drivers_own_library_in_the_folder_that_a_platform_mounts_is_fine() -> None:
    """NVIDIA's container toolkit and device plugins put it there; torch brings no libcuda."""
    h200 = recorded("h200")
    assert h200.environment["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64:/usr/local/nvidia/lib"
    assert h200.software.shadowing_libraries[0] == "/usr/local/nvidia/lib64/libcuda.so.1"
    assert [(finding.id, finding.severity) for finding in check_libraries(h200)] == [("libraries.own", Severity.OK)]


def test_the_folder_with_the_driver_stays_in_the_path_and_is_not_blamed() -> None:
    driver = "/usr/local/nvidia/lib64"
    failing = replace(
        recorded("rtx3090_library_conflict"), environment={"LD_LIBRARY_PATH": f"{CUDA}:{driver}:/opt/driver"}
    )
    failing = replace(failing, driver=replace(failing.driver, cuda_library="/opt/driver/libcuda.so.1"))
    (finding,) = check_libraries(failing)
    assert commands(finding.remedies)[0] == f"export LD_LIBRARY_PATH={driver}:/opt/driver"
    alone = replace(failing, environment={"LD_LIBRARY_PATH": driver})
    assert list(check_libraries(replace(alone, software=replace(alone.software, shadowing_libraries=())))) == []


def test_a_library_of_another_driver_than_the_loaded_one_is_named_where_cuda_is_silent() -> None:
    error = "Error 803: system has unsupported display driver / cuda driver combination"
    base = shadowed(path="/opt/old", cuda_available=False, cuda_error=error)
    facts = {"cuda_library": "/opt/old/libcuda.so.1", "cuda_library_version": "535.54.03"}
    silent = replace(base, driver=replace(base.driver, **facts))  # type: ignore[arg-type]
    (finding,) = check_libraries(silent)
    assert (finding.id, finding.severity) == ("libraries.other_driver", Severity.FAILURE)
    assert not missing(finding.why, "535.54.03", "580.95.05")
    assert commands(finding.remedies)[0] == "unset LD_LIBRARY_PATH"


def test_a_preloaded_cuda_library_is_taken_out_and_the_others_stay() -> None:
    preload = "/usr/lib/libjemalloc.so.2 /opt/cuda/lib/libcublas.so.12"
    hardware = replace(recorded("rtx3090"), environment={"LD_PRELOAD": preload})
    (finding,) = check_libraries(hardware)
    assert (finding.id, finding.severity) == ("libraries.preloaded", Severity.WARNING)
    assert commands(finding.remedies) == ("export LD_PRELOAD=/usr/lib/libjemalloc.so.2",)


def test_an_allocator_that_is_preloaded_is_no_matter() -> None:
    hardware = replace(recorded("rtx3090"), environment={"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"})
    assert [finding.severity for finding in check_libraries(hardware)] == [Severity.OK]


@pytest.mark.parametrize(
    ("variables", "case", "severity"),
    [
        ({"BNB_CUDA_VERSION": "126"}, "bitsandbytes_version", Severity.NOTE),
        ({"CUDA_HOME": "/usr/local/cuda-12.4"}, "cuda_home", Severity.NOTE),
    ],
)
def test_variables_that_name_another_cuda_are_noted(variables: dict[str, str], case: str, severity: Severity) -> None:
    results = found(check_libraries(replace(recorded("rtx3090"), environment=variables)))
    assert results[f"libraries.{case}"].severity is severity


def test_bitsandbytes_that_does_not_load_by_that_variable_is_a_warning() -> None:
    base = recorded("rtx3090_bitsandbytes_broken")
    results = found(check_libraries(replace(base, environment={"BNB_CUDA_VERSION": "118"})))
    assert results["libraries.bitsandbytes_version"].severity is Severity.WARNING


@pytest.mark.parametrize(
    "variables", [{"BNB_CUDA_VERSION": "132"}, {"CUDA_HOME": "/usr/local/cuda-13.0"}, {"CUDA_HOME": "/usr/local/cuda"}]
)
def test_variables_that_agree_or_do_not_say_are_fine(variables: dict[str, str]) -> None:
    (finding,) = check_libraries(replace(recorded("rtx3090"), environment=variables))
    assert finding.severity is Severity.OK


def test_where_torch_was_not_looked_at_nothing_is_claimed() -> None:
    base = recorded("rtx3090")
    assert list(check_libraries(replace(base, software=replace(base.software, torch=None)))) == []
