"""The report as text: short on a healthy machine, readable without colour, and in what the terminal can show."""

from __future__ import annotations

import io
import re

import pytest
from fakes.doctor import check, finding, machine, remedy

from rl_compat.doctor.diagnosis import Diagnosis, run_checks
from rl_compat.doctor.findings import Check, Finding, Needs, Severity, Step
from rl_compat.doctor.fix import plan_fixes
from rl_compat.doctor.options import parse
from rl_compat.doctor.report.paper import Paper, paper_of
from rl_compat.doctor.report.screen import render, render_checks
from rl_compat.doctor.table import CHECKS
from rl_compat.doctor.verdict import judge, judge_fixed

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RED = "\x1b[1;31m"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def diagnosis(name: str, *findings: Finding, skipped: tuple[tuple[Check, str], ...] = ()) -> Diagnosis:
    """Of a recorded machine, with findings of one check each."""
    hardware = machine(name)
    failures = [item.what for item in findings if item.severity is Severity.FAILURE]
    return Diagnosis(
        hardware=hardware,
        results=run_checks([check(item.id.partition(".")[0], item) for item in findings], hardware),
        skipped=skipped,
        verdict=judge(hardware, failures),
        once_fixed=judge_fixed(hardware, new_torch=False) if failures else None,
        fixes=plan_fixes(findings, hardware, lambda machine: findings),
        seconds=1.26,
    )


def everything(name: str) -> Diagnosis:
    hardware = machine(name)
    results = run_checks(CHECKS, hardware)
    return Diagnosis(hardware=hardware, results=results, verdict=judge(hardware), seconds=1.0)


@pytest.mark.parametrize("name", ["h200", "rtx4090"])
def test_a_healthy_machine_fits_one_screen(name: str) -> None:
    lines = render(everything(name), Paper(width=100))

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("training works here: NVIDIA")
    assert "warning" not in lines[-1]


def test_the_verdict_comes_first_then_what_is_worst_then_the_commands_then_the_sum() -> None:
    shown = "\n".join(
        render(
            diagnosis(
                "rtx4090",
                finding("a.note", Severity.NOTE),
                finding("b.warning", Severity.WARNING, remedy(Step.SHELL, "unset B")),
                finding("c.ok", Severity.OK),
                finding("d.failure", Severity.FAILURE, remedy(Step.PACKAGE, "python -m pip install d")),
            ),
            Paper(),
        )
    )

    order = [
        "training does not work here: one failure",
        "once fixed: NVIDIA GeForce RTX 4090",
        "\nfailure: the fact of d.failure",
        "\nwarning: the fact of b.warning",
        "\nnote: the fact of a.note",
        "\nto fix this, in this order:\n  # fix it\n  unset B",
        "\n4 checks in 1.3 s (torch 2.1 s): 1 fine, 1 note, 1 warning, 1 failure",
    ]
    places = [shown.find(text) for text in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert "c.ok" not in shown


def test_what_is_fine_is_shown_when_all_is_asked_for() -> None:
    fine = diagnosis("rtx4090", finding("c.ok", Severity.OK, what="torch 2.15 has code for the card"))

    assert "ok: torch 2.15 has code for the card" in render(fine, Paper(), show_all=True)
    assert "ok: torch 2.15 has code for the card" not in render(fine, Paper())


def test_a_finding_says_why_where_and_what_to_do() -> None:
    item = Finding(
        id="a.b",
        severity=Severity.WARNING,
        what="the fact",
        why="what it means",
        where=("nvml", "/proc/meminfo"),
        affects=("cuda:0", "training"),
        remedies=(remedy(Step.SHELL, "unset A", what="first way"), remedy(Step.SHELL, "unset B", what="second way")),
    )

    lines = render(diagnosis("rtx4090", item), Paper())

    start = lines.index("warning: the fact")
    assert lines[start + 1 : start + 6] == [
        "  what it means",
        "  affects cuda:0, training; found in nvml, /proc/meminfo",
        "  -> first way",
        "  or second way",
        "       unset B",
    ]
    assert lines.count("  unset A") == 1


def test_what_does_not_work_is_said_once_and_a_reason_that_no_finding_has_in_full() -> None:
    two = [finding(f"{name}.failure", Severity.FAILURE) for name in "ab"]
    lines = render(diagnosis("rtx4090", *two), Paper())
    assert lines[0] == "training does not work here: 2 failures"
    assert sum("the fact of a.failure" in line for line in lines) == 1

    broken = machine("rtx3090_torch_hang")
    alone = Diagnosis(hardware=broken, results=(), verdict=judge(broken), seconds=0.0)
    assert render(alone, Paper())[0] == ("training does not work here: torch does not import: no answer within 60 s")


def test_a_remedy_that_was_given_above_is_named_by_what_it_does() -> None:
    way = remedy(Step.TORCH, "pip install torch", what="install torch; it is the newest")
    other = remedy(Step.SHELL, "nvidia-smi", what="look; it says more")
    findings = [finding(f"{name}.x", Severity.FAILURE, way, other) for name in "ab"]

    lines = render(diagnosis("rtx4090", *findings), Paper())

    first, second = lines.index("failure: the fact of a.x"), lines.index("failure: the fact of b.x")
    assert lines[first + 1 : first + 4] == [
        "  -> install torch; it is the newest",
        "  or look; it says more",
        "       nvidia-smi",
    ]
    assert lines[second + 1 : second + 3] == ["  -> as above: install torch", "  or as above: look"]
    assert lines[lines.index("to fix this, in this order:") + 1] == "  # install torch"


def test_the_commands_of_a_note_stand_below_it_because_no_block_has_them() -> None:
    lines = render(diagnosis("rtx4090", finding("a.b", Severity.NOTE, remedy(Step.SHELL, "nvidia-smi"))), Paper())

    assert "       nvidia-smi" in lines
    assert "to fix this, in this order:" not in lines


def test_checks_that_were_skipped_and_that_do_not_apply_are_counted() -> None:
    hardware = machine("rtx4090")
    silent, far = check("silent"), check("far", needs=Needs.NETWORK)
    shown = Diagnosis(
        hardware=hardware, results=run_checks([silent], hardware), skipped=((far, "--no-network"),), seconds=0.04
    )

    assert render(shown, Paper()) == ["1 check in 0.0 s (torch 2.1 s): 1 not applicable, 1 skipped"]


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("name", ["rtx4090", "p40_cu128_wheel", "container_32gib_two_a10", "laptop_no_gpu"])
def test_prose_keeps_to_the_width(name: str, width: int) -> None:
    shown = render(everything(name), Paper(width=width))

    long = [line for line in shown if len(line) > width and " " in line.strip() and not line.startswith("       ")]
    assert long == []


def test_colour_adds_nothing_but_colour() -> None:
    broken = diagnosis("rtx4090", finding("a.b", Severity.FAILURE, remedy(Step.SHELL, "unset A"), why="because"))

    plain, coloured = render(broken, Paper()), render(broken, Paper(coloured=True))

    assert [COLOUR.sub("", line) for line in coloured] == plain
    assert f"{RED}failure\x1b[0m: the fact of a.b" in coloured


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_only_a_terminal_that_may_have_it_gets_colour(
    stream: io.StringIO, environment: dict[str, str], coloured: bool
) -> None:
    assert paper_of(stream, environment).coloured is coloured


def test_what_is_not_a_terminal_gets_the_usual_width() -> None:
    assert paper_of(io.StringIO(), {}).width == 100


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no such encoding"])
def test_characters_that_the_terminal_lacks_are_spelled_out(encoding: str) -> None:
    item = finding("a.b", Severity.NOTE, what="2 × A10 – at least ≥ 8 GiB …")

    lines = render(diagnosis("rtx4090", item), Paper(encoding=encoding))

    assert "note: 2 x A10 - at least >= 8 GiB ..." in lines


def test_the_list_says_what_a_check_needs() -> None:
    lines = render_checks([check("one"), check("second", needs=Needs.TORCH | Needs.NETWORK)], Paper())

    assert lines == ["one     what of one?", "second  what of second? (needs torch and the network)"]


def test_what_was_judged_without_torch_says_so() -> None:
    torchy = check("torchy", needs=Needs.TORCH)

    shown = render(diagnosis("rtx4090", skipped=((torchy, "--no-torch"),)), Paper())

    assert shown[0].startswith("training works here (torch was not checked): NVIDIA")


def test_a_diagnosis_of_some_checks_has_no_verdict() -> None:
    options = parse(["--hardware", "tests/recordings/h200.json", "--only", "one"], "doctor")
    shown = diagnosis("h200", finding("one.x", Severity.OK))

    lines = render(Diagnosis(hardware=shown.hardware, results=shown.results, seconds=0.0), Paper())

    assert options.only == ("one",)
    assert len(lines) == 1
