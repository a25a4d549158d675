from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_compat.cli.app import run_command
from rl_compat.data.read.reading import load_rows
from rl_compat.errors import ConfigError, DataError


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
    with pytest.raises(DataError, match=r"`.*/file`") as error:
        run_command("rl_compat.cli.data", ["gsm8k", "--output", str(tmp_path / "file")], "rlc data")
    assert error.value.exit_code == 2


def test_questions_and_answers_are_written_from_named_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "qa.csv", tmp_path / "out.parquet"
    source.write_text("q,a\n2+2?,so #### 4\n3+3?,six\n")
    arguments = ["build", str(source), "--question", "q", "--answer", "a", "--output", str(output)]
    assert run_command("rl_compat.cli.data", [*arguments, "--answer-in", "hash", "--drop"], "rlc data") == 0
    shown = capsys.readouterr()
    assert shown.out == f"{output}: 1 rows\n"
    assert "warning: 1 " in shown.err and "`reward.functions=exact_match`" in shown.err
    assert load_rows([str(output)])[0].ground_truth == "4"
    with pytest.raises(ConfigError, match=r"`--answer-in`.*`column` or `hash` or `boxed`.*`bocksed`") as error:
        run_command("rl_compat.cli.data", [*arguments, "--answer-in", "bocksed"], "rlc data")
    assert "`boxed`" in str(error.value.hint)


def test_a_file_that_exists_is_replaced_only_on_request(tmp_path: Path) -> None:
    source, output = tmp_path / "qa.csv", tmp_path / "test.parquet"
    source.write_text("problem,solution\np,\\boxed{4}\n")
    output.write_text("mine")
    columns = ["--question", "problem", "--answer", "solution"]
    commands = [
        ["build", str(source), *columns, "--output", str(output)],
        ["gsm8k", "--output", str(tmp_path)],
        ["math", str(source), "--output", str(tmp_path)],
    ]
    for command in commands:
        with pytest.raises(ConfigError) as error:
            run_command("rl_compat.cli.data", command, "rlc data")
        assert (
            error.value.exit_code == 2 and f"`{output}`" in error.value.message and "`--force`" in str(error.value.hint)
        )
        assert output.read_text() == "mine" and not (tmp_path / "train.parquet").exists()
    assert run_command("rl_compat.cli.data", [*commands[0], "--force"], "rlc data") == 0
    assert load_rows([str(output)])[0].prompt == [{"role": "user", "content": "p"}]


def test_math_is_written_from_a_local_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "test.jsonl"
    source.write_text(json.dumps({"problem": "half?", "solution": r"\boxed{\frac12}"}) + "\n")
    arguments = ["math", str(source), "--output", str(tmp_path / "math"), "--json"]
    assert run_command("rl_compat.cli.data", arguments, "rlc data") == 0
    path = str(tmp_path / "math" / "test.parquet")
    assert json.loads(capsys.readouterr().out) == [{"path": path, "num_rows": 1, "num_left_out": 0}]
    assert load_rows([path])[0].ground_truth == r"\frac12"
