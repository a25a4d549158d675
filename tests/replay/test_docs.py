"""The program on the page about reuse runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_draws_what_it_has_added(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    threads = torch.get_num_threads()
    try:
        exec(compile(program, "docs/replay.md", "exec"), {})
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    drawn, held = ([int(re.findall(rf"{word} (\d+)", line)[0]) for line in lines] for word in ("drawn", "held"))

    assert len(lines) == 6 and "'weak'" in lines[0]
    assert drawn == [0, *(min(8, count) for count in held[:-1])]
    assert max(drawn) > 0
