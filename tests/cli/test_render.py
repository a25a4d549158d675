"""What is shown is readable in a pipe and without colour."""

from __future__ import annotations

import io
import json

import pytest

from rl_compat.cli.render import (
    PlainProgress,
    print_json,
    print_lines,
    print_note,
    print_table,
    print_warning,
    progress,
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_table_in_a_pipe_has_one_line_a_row_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("sizes", ("name", "why"), [("a", "word " * 100), ("b", "[red]not a colour[/red]")])

    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "sizes"
    assert lines[1].split() == ["name", "why"]
    assert lines[3] == "a      " + ("word " * 100).strip()
    assert lines[4].split(maxsplit=1) == ["b", "[red]not a colour[/red]"]


def test_a_table_on_another_stream_leaves_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    print_table("", ("x",), [(1,)], stream=stream)

    assert capsys.readouterr().out == ""
    assert "1" in stream.getvalue()


def test_no_color_is_honoured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    print_table("title", ("x",), [(1,)], stream=stream)

    assert "\x1b[3" not in stream.getvalue()


def test_data_goes_to_stdout_and_words_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(["a", "b"])
    print_json({"ü": 1.5})
    print_note("worth knowing")
    print_warning("may go wrong")

    shown = capsys.readouterr()
    assert shown.out.startswith("a\nb\n{")
    assert json.loads(shown.out[4:]) == {"ü": 1.5}
    assert shown.err == "worth knowing\nwarning: may go wrong\n"


def test_progress_without_a_terminal_is_plain_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(3, "steps") as bar:
        for _ in range(3):
            bar.advance(note="reward 0.5")

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "steps: 1/3 reward 0.5\nsteps: 3/3 reward 0.5\n"


def test_progress_shows_a_line_when_enough_time_has_passed() -> None:
    stream = io.StringIO()
    bar = PlainProgress(4, "rows", stream, interval_seconds=0)
    for _ in range(4):
        bar.advance()

    assert stream.getvalue() == "rows: 1/4\nrows: 2/4\nrows: 3/4\nrows: 4/4\n"
