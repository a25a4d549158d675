"""`rlc replay` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest
from fakes.responses import groups, response, rows

from rl_compat.cli.app import main
from rl_compat.replay.record import FOLDER, RecordWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    writer = RecordWriter(tmp_path / "run" / FOLDER)
    writer.write(1, groups(1, 2, version=0))
    writer.write(2, groups(3, 4, version=1), drawn=[1])
    writer.write(4, rows(response(5, (9,), version=2)), drawn=[1, 2])
    writer.close()
    return tmp_path / "run"


def test_a_record_is_shown_in_numbers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "show", str(run), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["num_rows"], found["num_groups"], found["first_step"], found["last_step"]) == (9, 5, 1, 4)
    assert found["policy_versions"] == [0, 2]
    assert (found["reward_mean"], found["reward_std"], found["num_unscored"]) == (1.0, 0.0, 0)
    assert found["reward_quantiles"] == dict.fromkeys(("0", "0.1", "0.25", "0.5", "0.75", "0.9", "1"), 1.0)
    assert found["finish_reasons"] == {"stop": 9}
    assert found["groups_by_uses"] == {"1": 3, "2": 1, "3": 1}
    assert found["reuse_age"] == [pytest.approx(7 / 3), 3]
    assert main(["replay", "show", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "9 to 5 prompts" in shown and "3 prompts 1 time, 1 prompt 2 times" in shown


@pytest.mark.parametrize(("steps", "expected"), [([], [1, 2, 3, 4, 5]), (["--steps", "2-3"], [3, 4])])
def test_responses_are_written_as_one_file(run: Path, tmp_path: Path, steps: list[str], expected: list[int]) -> None:
    parquet, lines = tmp_path / "out" / "all.parquet", tmp_path / "all.jsonl"

    assert main(["replay", "export", str(run), str(parquet), *steps]) == 0
    assert main(["replay", "export", str(run), str(lines), *steps]) == 0

    table = pyarrow.parquet.read_table(parquet)
    assert table["group"].unique().to_pylist() == expected
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["response_ids"] for row in written] == table["response_ids"].to_pylist()
    assert written[0]["prompt"] == f"prompt {expected[0]}"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show", "{run}/nothing"], {"{run}/nothing"}),
        (["show", "{run}/replay"], {"{run}/replay"}),
        (["export", "{run}", "{run}/out.csv"], {"{run}/out.csv"}),
        (["export", "{run}", "/proc/out.jsonl"], {"/proc/out.jsonl"}),
        (["export", "{run}", "{run}/folder.jsonl", "--force"], {"{run}/folder.jsonl"}),
        (["export", "{run}", "{run}/replay/step_00000001.parquet"], {"{run}/replay/step_00000001.parquet"}),
        (["export", "{run}", "{run}/out.jsonl", "--steps", "3"], {"3", "1", "4"}),
        (["export", "{run}", "{run}/out.jsonl", "--steps", "a-b"], {"--steps a-b"}),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: set[str]
) -> None:
    (run / "folder.jsonl").mkdir()

    assert main(["replay", *(text.format(run=run) for text in arguments)]) == 2

    shown = capsys.readouterr().err
    assert all(name.format(run=run) in shown for name in named)
    assert not list(run.glob("out*"))


@pytest.mark.parametrize("output", ["all.parquet", "all.jsonl"])
def test_a_damaged_file_is_named_and_nothing_is_left(
    run: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / FOLDER / "step_00000002.parquet").write_bytes(b"PAR1")

    assert main(["replay", "show", str(run)]) == 1
    assert main(["replay", "export", str(run), str(run / output)]) == 1

    assert capsys.readouterr().err.count("step_00000002.parquet` cannot be read") == 2
    assert not list(run.glob("*all*"))
