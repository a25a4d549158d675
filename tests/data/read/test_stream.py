"""Streamed datasets: the same prompts in bounded memory, in an order that can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from fakes.encoders import CharacterEncoder

from rl_compat.data.encode.training_data import TrainingData, left_out, load_training, should_stream
from rl_compat.data.read.reading import Reading
from rl_compat.errors import DataError

RECORDS = [{"prompt": f"row {index}", "ground_truth": str(index)} for index in range(100)]


def _write(path: Path, records: list[dict[str, Any]], *, group: int = 10, **options: Any) -> str:
    if path.suffix == ".parquet":
        options |= {"row_group_size": group, "use_dictionary": False}
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, **options)
    else:
        path.write_text("\n\n".join(json.dumps(record, ensure_ascii=False) for record in records))
    return str(path)


def _load(
    *names: str, streaming: bool = True, limit: int = 16, said: list[str] | None = None, **options: Any
) -> TrainingData:
    reading = Reading(
        task="prompts", bad_rows=options.pop("bad_rows", "error"), announce=(said if said is not None else []).append
    )
    return load_training(
        names, reading, chat=CharacterEncoder(), max_prompt_length=limit, streaming=streaming, **options
    )


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_prompts_are_those_of_the_file_read_whole(suffix: str, tmp_path: Path) -> None:
    name = _write(tmp_path / f"a{suffix}", RECORDS)
    streamed, whole = _load(name, "arithmetic"), _load(name, "arithmetic", streaming=False)
    assert len(streamed.prompts) == len(whole.prompts)
    assert [streamed.prompts[row] for row in (0, 57, 99, 100, 3000)] == [
        whole.prompts[row] for row in (0, 57, 99, 100, 3000)
    ]
    assert streamed.prompts[:12] == list(whole.prompts[:12])


@pytest.mark.parametrize("weights", [(), (1.0, 2.0)])
@pytest.mark.parametrize("steps", [0, 1, 4, 9])
def test_a_restored_position_gives_the_rows_of_an_uninterrupted_run(
    weights: tuple[float, ...], steps: int, tmp_path: Path
) -> None:
    names = [_write(tmp_path / "a.parquet", RECORDS), _write(tmp_path / "b.jsonl", RECORDS[:37])]
    data = _load(*names, weights=weights, limit=5)
    whole = data.order(10, shuffle=True, seed=7)
    for _ in range(steps):
        next(whole)
    state = json.loads(json.dumps(whole.state_dict()))
    again = _load(*names, weights=weights, limit=5)
    resumed = again.order(10, shuffle=True, seed=7)
    resumed.load_state_dict(state)
    rest = [[data.prompts[row].text for row in next(whole)] for _ in range(8)]
    assert [[again.prompts[row].text for row in next(resumed)] for _ in range(8)] == rest
    assert {len(text) for batch in rest for text in batch} == {5}


def test_overlong_rows_are_left_out_on_the_way_and_counted(tmp_path: Path) -> None:
    """A-DATA-05"""
    name = _write(tmp_path / "a.jsonl", [{"prompt": "x" * (index % 20 + 1)} for index in range(200)])
    data = _load(name, limit=16)
    order = data.order(20, shuffle=True, seed=1)
    assert order.steps_per_epoch == 10
    batches = [next(order) for _ in range(8)]
    rows = [row for batch in batches for row in batch]
    assert len(set(rows)) == 160 and max(len(data.prompts[row].token_ids) for row in rows) == 16
    next(order)
    assert order.position[0] == 1
    notes = left_out(data.prompts)
    assert "17 tokens" in notes[0] or "18 tokens" in notes[0] or "19 tokens" in notes[0] or "20 tokens" in notes[0]
    assert len(notes) == 2 and "10 rows" in notes[1]
    assert left_out(data.prompts) == []


def test_cutting_and_stopping_hold_for_streams_too(tmp_path: Path) -> None:
    """A-DATA-05"""
    name = _write(tmp_path / "a.jsonl", [{"prompt": "0123456789"}, {"prompt": "0123456789abcdefg"}])
    assert _load(name, limit=16, overlong="left").prompts[1].token_ids == tuple(map(ord, "123456789abcdefg"))
    data = _load(name, limit=16, overlong="error")
    with pytest.raises(DataError, match="row 1 has 17 tokens"):
        data.sample()


def test_an_epoch_without_a_full_batch_of_usable_rows_is_an_error(tmp_path: Path) -> None:
    """A-DATA-11"""
    name = _write(tmp_path / "a.jsonl", [{"prompt": "ok"}, *({"prompt": "far too long"} for _ in range(9))])
    order = _load(name, limit=4).order(2, shuffle=True, seed=1)
    with pytest.raises(DataError, match=r"\b1\b.*\b2\b"):
        next(order)
    with pytest.raises(DataError, match=r"\b10\b.*\b11\b"):
        _load(name, limit=4).order(11, shuffle=True, seed=1)


def test_rows_that_cannot_be_used_are_found_before_the_run(tmp_path: Path) -> None:
    name = _write(tmp_path / "a.jsonl", [{"prompt": "a"}] * 5000 + [{"prompt": None}])
    with pytest.raises(DataError, match="row 5000"):
        _load(name)
    said: list[str] = []
    data = _load(name, bad_rows="drop", said=said)
    assert len(data.prompts) == 5000 and "row 5000" in said[1]
    none = _write(tmp_path / "b.jsonl", [{"prompt": "far too long"}] * 3)
    with pytest.raises(DataError, match=r"3 rows of `.*b\.jsonl`"):
        _load(none, limit=4).sample()
    with pytest.raises(DataError, match="row 2"):
        _load(none, limit=4).prompts[2]


def test_damage_anywhere_in_a_file_is_found_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n' * 5000 + "{oops}\n")
    with pytest.raises(DataError, match=r"line 5001 of `.*a\.jsonl`"):
        _load(str(path))


def test_the_rows_are_kept_in_the_cache_folder_and_leave_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = _load(_write(tmp_path / "a.jsonl", RECORDS))
    assert data.prompts[99] == data.prompts[-1] and data.prompts[99].text == "row 99"
    assert [prompt.row for prompt in data.prompts] == list(range(100))
    assert not list((tmp_path / "cache").iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file")
    with pytest.raises(DataError) as error:
        _load(str(tmp_path / "a.jsonl"))
    assert f"`{tmp_path / 'file'}`" in error.value.message and "`HF_DATASETS_CACHE`" in str(error.value.hint)


def test_streaming_begins_where_rows_would_fill_memory(tmp_path: Path) -> None:
    names = [_write(tmp_path / "a.parquet", RECORDS), _write(tmp_path / "b.jsonl", RECORDS)]
    assert not should_stream([*names, "gsm8k"], memory_bytes=10**9)
    assert should_stream(names, memory_bytes=10**5)
    assert not should_stream(["gsm8k"], memory_bytes=1)


MEASURE = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fakes.encoders import CharacterEncoder
from rl_compat.data.read.reading import Reading
from rl_compat.data.encode.training_data import load_training

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def load(name):
    reading = Reading(task="prompts")
    return load_training([name], reading, chat=CharacterEncoder(), max_prompt_length=8192, streaming=True)

for small, large in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    load(small)
    before = rss()
    data = load(large)
    order = data.order(100, shuffle=True, seed=1)
    peak, rows = rss() - before, set()
    for step in range(2):
        rows.update(data.prompts[row].row for row in next(order))
        peak = max(peak, rss() - before)
    print(json.dumps([peak, len(rows), len(data.prompts)]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_stays_bounded_while_large_files_are_read(tmp_path: Path) -> None:
    rows = [{"prompt": f"{index}:" + "x" * 6000} for index in range(500)] * 20
    names = []
    for suffix, group in ((".jsonl", 10), (".parquet", 1000), (".parquet", 10**6)):
        small, large = (tmp_path / f"{kind}{group}{suffix}" for kind in ("small", "large"))
        names += [_write(small, RECORDS, group=group), _write(large, rows, group=group, compression="none")]
    size = large.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(Path(__file__).parents[2]), *names],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "HF_DATASETS_CACHE": str(tmp_path)},
    )
    for line in done.stdout.splitlines():
        peak, num_drawn, num_rows = json.loads(line)
        assert (num_drawn, num_rows) == (200, 10_000)
        assert peak < 0.75 * size
