"""Which compiled code runs on which card."""

from __future__ import annotations

import pytest

from rl_compat.capability.binaries import needs_ptx, parse_version, wheel_supports
from rl_compat.doctor.tables import target

CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


def test_a_cu128_wheel_has_no_code_for_a_p40() -> None:
    """A-ENV-01."""
    assert not wheel_supports(CU128, (6, 1))


def test_a_p40_runs_the_sm_60_code_of_a_cu126_wheel() -> None:
    """A-ENV-02."""
    assert wheel_supports(CU126, (6, 1))


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (("sm_80",), (8, 9), True),
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("compute_90",), (12, 0), True),
        (("compute_90",), (8, 9), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_100f",), (10, 3), True),
        (("compute_90a",), (12, 0), False),
        (("sm_120",), (12, 1), True),
        ((), (9, 0), False),
        (("gfx90a",), (9, 0), False),
    ],
)
def test_machine_code_runs_upward_within_a_major_and_ptx_everywhere_upward(
    archs: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert wheel_supports(archs, capability) is runs


def test_tegra_runs_other_machine_code_only_from_cuda_13_2_on() -> None:
    assert not wheel_supports(("sm_80",), (8, 7), cuda="13.0")
    assert wheel_supports(("sm_80",), (8, 7), cuda="13.2")
    assert wheel_supports(("sm_87",), (8, 7), cuda="12.6")


def test_a_card_newer_than_all_machine_code_needs_ptx() -> None:
    assert needs_ptx(("sm_90", "compute_90"), (12, 0))
    assert not needs_ptx(("sm_90", "sm_120", "compute_120"), (12, 0))


def test_versions_compare_by_number() -> None:
    assert parse_version("2.14.1+cu126") == (2, 14, 1)
    assert parse_version("580.65.06") > parse_version("580")
    assert parse_version("unknown") == ()


def test_doctor_uses_the_same_rule() -> None:
    assert target.wheel_supports is wheel_supports
