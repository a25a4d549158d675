"""Every known error inside of longer logs, as they come; and logs without a fault."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_compat.doctor.explain.matching import LogErrors
from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.explain.ranking import Cause

Recognise = Callable[[str | bytes], LogErrors]
Ranked = Callable[[str | bytes], tuple[Cause, ...]]

HERE = "@@HERE@@"
FOLDER = Path(__file__).with_name("logs")
TEMPLATES = sorted(path.stem for path in (FOLDER / "templates").iterdir())
HARMLESS = sorted(path.name for path in (FOLDER / "harmless").iterdir())
ERRORS = known_errors()
DRESSES = {
    "plain": "{}",
    "Ray": "(WorkerDict pid=20390, ip=10.0.0.11) {}",
    "Ray in colour": "\x1b[36m(WorkerDict pid=20390)\x1b[0m {}",
    "colour without escape": "[36m(WorkerDict pid=20390)[0m {}",
    "rank": "[rank3]: {}",
    "default rank": "[default3]:{}",
    "srun": "12: {}",
    "mpirun": "[1,3]<stderr>:{}",
    "kubectl": "[pod/rlc-0/trainer] {}",
    "docker compose": "trainer-1  | {}",
    "time": "2026-11-21 18:40:19,206 ERROR {}",
    "bracketed time": "[2026-11-21 18:40:19,206] {}",
    "vLLM": "(EngineCore_0 pid=713790) ERROR 11-22 10:09:02 [core.py:718] {}",
    "kubernetes": "2026-11-21T18:40:19.206123456Z {}",
    "syslog": "Nov 21 18:40:19 gpu-03 python[20390]: {}",
    "pytest": "E       {}",
    "quote": "> {}",
    "progress bar": " 45%|████      | 90/200 [00:12<00:15]\r {}",
    "box": "│ {} │",
}


def test_the_logs_are_long_and_there_are_enough_of_them() -> None:
    assert len(TEMPLATES) >= 5
    assert len(HARMLESS) >= 20
    for name in TEMPLATES:
        text = (FOLDER / "templates" / f"{name}.txt").read_text(encoding="utf-8")
        assert len(text.splitlines()) >= 50
        assert text.count(HERE) == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_error_inside_of_a_longer_log_is_the_first_cause(name: str, ranked: Ranked, logs: Path) -> None:
    template = (logs / "templates" / f"{name}.txt").read_bytes()
    line = template[: template.index(HERE.encode())].count(b"\n") + 1
    for error in ERRORS:
        causes = ranked(template.replace(HERE.encode(), error.sample.encode()))

        assert [cause.match.error.id for cause in causes] == [error.id]
        assert causes[0].match.first == line, error.id


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_what_stands_around_a_message_does_not_hide_it(dress: str, ranked: Ranked) -> None:
    for error in ERRORS:
        causes = ranked("starting\n" + dress.format(error.sample) + "\nstopping\n")

        assert causes and causes[0].match.error.id == error.id, error.id


@pytest.mark.parametrize("prefix", ["", "(WorkerDict pid=20390) ", "[rank0]: ", "2026-11-21 18:40:19,206 ", "│ "])
@pytest.mark.parametrize("width", [40, 79])
def test_a_message_wrapped_between_words_is_recognised(prefix: str, width: int, ranked: Ranked) -> None:
    for error in ERRORS:
        rows = textwrap.wrap(error.sample, width, break_long_words=False, break_on_hyphens=False)

        causes = ranked("\n".join(prefix + row for row in rows))

        assert causes and causes[0].match.error.id == error.id, (error.id, rows)


def test_a_message_cut_at_the_edge_of_a_terminal_is_recognised(ranked: Ranked) -> None:
    for error in ERRORS:
        rows = [error.sample[start : start + 50] for start in range(0, len(error.sample), 50)]

        causes = ranked("\n".join(rows))

        assert causes and causes[0].match.error.id == error.id, (error.id, rows)


def test_a_wrapped_message_is_shown_with_all_its_lines(ranked: Ranked) -> None:
    text = (
        "start\n[rank1]: RuntimeError: CUDA error: no kernel image is\n[rank1]: available for execution on the device\n"
    )

    place = ranked(text)[0].match.places[0]

    assert (place.first, place.last) == (2, 3)
    assert [line.number for line in place.before] == [1]


@pytest.mark.parametrize("name", HARMLESS)
def test_an_ordinary_log_has_no_error(name: str, recognise: Recognise, logs: Path) -> None:
    found = recognise((logs / "harmless" / name).read_bytes())

    assert [(match.error.id, match.places[0].matched) for match in found.matches] == []
    assert list(found.suspects) == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_templates_alone_have_no_known_error(name: str, recognise: Recognise, logs: Path) -> None:
    template = (logs / "templates" / f"{name}.txt").read_text(encoding="utf-8")

    assert recognise(template.replace(HERE, "")).matches == []


def test_a_message_across_two_blocks_is_counted_once(recognise: Recognise) -> None:
    line = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    filler = "step 1 loss 2.3\n"
    for shift in (1, 20, 41, len(line) - 1):
        before = filler * ((256 * 1024 - shift) // len(filler))

        found = recognise(before + line + filler * 5)

        assert [(match.error.id, match.count) for match in found.matches] == [("no_kernel_image", 1)]
        assert found.matches[0].first == before.count("\n") + 1


def test_repetitions_are_counted_and_the_first_places_are_kept(recognise: Recognise) -> None:
    line = "Indexing.cu:1284: block: [1,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"

    match = recognise(line * 5000).matches[0]

    assert (match.error.id, match.count) == ("device_assert", 5000)
    assert [place.first for place in match.places] == [1, 2, 3]


def test_a_specific_message_is_not_also_the_general_one(recognise: Recognise) -> None:
    bitsandbytes = "Error no kernel image is available for execution on the device at line 167 in file ops.cu\n"
    torch = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"

    assert [match.error.id for match in recognise(bitsandbytes).matches] == ["bnb_no_kernel"]
    assert {match.error.id for match in recognise(bitsandbytes + "x\n" * 9 + torch).matches} == {
        "bnb_no_kernel",
        "no_kernel_image",
    }
