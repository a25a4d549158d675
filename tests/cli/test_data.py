from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_compat.cli.app import run_command
from rl_compat.data.load import load_rows
from rl_compat.errors import DataError


def test_gsm8k_is_written_and_trains_as_the_shipped_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command("rl_compat.cli.data", ["gsm8k", "--output", str(tmp_path), "--json"], "rlc data")
    assert code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["train"] == {"path": str(tmp_path / "train.parquet"), "num_rows": 7473}
    written = load_rows([shown["test"]["path"]], split="test")
    assert written == load_rows(["gsm8k"], split="test")


def test_without_json_each_file_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command("rl_compat.cli.data", ["gsm8k", "--output", str(tmp_path)], "rlc data")
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'train.parquet'}: 7473 rows",
        f"{tmp_path / 'test.parquet'}: 1319 rows",
    ]


def test_a_folder_that_cannot_be_written_is_asked_wrongly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to") as error:
        run_command("rl_compat.cli.data", ["gsm8k", "--output", str(tmp_path / "file")], "rlc data")
    assert error.value.exit_code == 2
