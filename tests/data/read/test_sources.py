"""The same rows from every kind of source: files of each format, saved folders, and objects from Python."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from fakes.encoders import CharacterEncoder

from rl_compat.data.encode.training_data import TrainingData, load_training, should_stream
from rl_compat.data.form.columns import Columns
from rl_compat.data.read.reading import Reading, load_rows
from rl_compat.data.read.records import Records, as_source, open_file
from rl_compat.errors import DataError

ROWS = [{"prompt": f"row {index}", "ground_truth": str(index)} for index in range(100)]
TABLE = pyarrow.Table.from_pylist(ROWS)


def _dataset(table: pyarrow.Table = TABLE) -> datasets.Dataset:
    return datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="rows")


def _stream(shards: int = 1) -> datasets.IterableDataset:
    return _dataset().to_iterable_dataset(num_shards=shards)


def _lines() -> str:
    return "".join(json.dumps(row) + "\n" for row in ROWS)


def _arrow(path: Path, *, stream: bool) -> None:
    make = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with make(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=30)


FILES: dict[str, Callable[[Path], Any]] = {
    "a.parquet": lambda path: pyarrow.parquet.write_table(TABLE, path, row_group_size=30),
    "stream.arrow": lambda path: _arrow(path, stream=True),
    "file.arrow": lambda path: _arrow(path, stream=False),
    "a.jsonl": lambda path: path.write_text(_lines()),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(_lines().encode())),
    "a.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(_lines().encode())),
    "a.jsonl.xz": lambda path: path.write_bytes(lzma.compress(_lines().encode())),
    "a.json": lambda path: path.write_text(json.dumps(ROWS)),
    "a.json.gz": lambda path: path.write_bytes(gzip.compress(json.dumps(ROWS).encode())),
    "a.csv": lambda path: path.write_text("prompt,ground_truth\n" + "".join(f"row {i},{i}\n" for i in range(100))),
    "saved": lambda path: _dataset().save_to_disk(path),
    "splits": lambda path: datasets.DatasetDict(test=_dataset(TABLE[:1]), train=_dataset()).save_to_disk(path),
}
OBJECTS: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "dataset": _dataset,
    "selected dataset": lambda: _dataset(pyarrow.concat_tables([TABLE[50:], TABLE[:50]])).select(
        [*range(50, 100), *range(50)]
    ),
    "stream": _stream,
    "sharded stream": lambda: _stream(4),
    "function": lambda: lambda: iter(ROWS),
}


def _load(source: str | Records, *, streaming: bool, limit: int = 16, **options: Any) -> TrainingData:
    reading = Reading(task="prompts")
    return load_training(
        [source], reading, chat=CharacterEncoder(), max_prompt_length=limit, streaming=streaming, **options
    )


def _assert_rows(source: str | Records) -> None:
    for streaming in (False, True):
        prompts = _load(source, streaming=streaming).prompts
        assert [(prompt.text, prompt.ground_truth) for prompt in prompts[:]] == [
            (row["prompt"], row["ground_truth"]) for row in ROWS
        ]
    limited = _load(source, streaming=True, max_samples=7).prompts
    assert [row.prompt for row in load_rows([source], max_samples=7)] == [prompt.text for prompt in limited[:]]
    assert len(limited) == 7


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_rows_whole_and_streamed(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    _assert_rows(str(tmp_path / name))


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_object_gives_the_same_rows_whole_and_streamed(kind: str) -> None:
    _assert_rows(as_source(OBJECTS[kind](), name=kind))


def test_a_name_is_its_own_source_and_a_saved_split_is_chosen_by_name(tmp_path: Path) -> None:
    assert as_source("gsm8k") == "gsm8k"
    FILES["splits"](tmp_path / "splits")
    assert len(load_rows([str(tmp_path / "splits")], split="test")) == 1
    datasets.DatasetDict(other=_dataset()).save_to_disk(tmp_path / "other")
    with pytest.raises(DataError, match=r"`train`.*`other`"):
        load_rows([str(tmp_path / "other")])


def test_text_files_have_a_row_for_each_line_and_are_left_out_of_folders_with_other_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two \n")
    rows = load_rows([str(tmp_path)], columns=Columns(prompt="text"))
    assert [row.prompt for row in rows] == ["one", " two "]
    assert load_rows([str(tmp_path / "a.txt")], task="supervised")[0].response == "one"
    (tmp_path / "a.jsonl").write_text('{"text": "three"}\n')
    assert [row.prompt for row in load_rows([str(tmp_path)], columns=Columns(prompt="text"))] == ["three"]


UNEVEN = [
    '{"prompt": "a", "ground_truth": "1", "n": 1}',
    '{"prompt": [{"role": "user", "content": "b"}], "ground_truth": 2, "n": 1.5}',
    '{"prompt": "c", "ground_truth": ["3", 3, null], "when": "2024-01-01", "big": 123456789012345678901234567890}',
    '{"prompt": "d", "ground_truth": {"x": {"y": []}}, "extra_info": {"index": 18446744073709551616}}',
    '{"prompt": "e", "ground_truth": null, "extra_info": "{\\"k\\": 1}", "n": "1", "when": "00:00:01", "d": 0.1}',
    '{"prompt": "f\\u2028g\\u0085h", "ground_truth": true, "messages": null}',
]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz"])
def test_json_rows_keep_their_types_and_missing_keys_whatever_other_rows_hold(suffix: str, tmp_path: Path) -> None:
    path, expected = tmp_path / f"a{suffix}", [json.loads(line) for line in UNEVEN]
    text = json.dumps(expected) if suffix == ".json" else "\r\n".join(["", *UNEVEN, ""])
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else b"\xef\xbb\xbf" + text.encode())
    rows = list(open_file(path, name="a").read())
    assert rows == expected
    assert list(map(list, rows)) == list(map(list, expected))


def test_a_map_column_of_parquet_is_a_list_of_pairs(tmp_path: Path) -> None:
    column = pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x"], "m": column}), tmp_path / "a.parquet")
    assert load_rows([str(tmp_path / "a.parquet")])[0].extra_info == {"m": [["a", 1]]}


def test_reading_files_writes_nothing_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, write in FILES.items():
        write(tmp_path / name)
        _load(str(tmp_path / name), streaming=False)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("steps", [0, 3, 25])
def test_a_stream_is_shuffled_and_resumed_exactly(steps: int) -> None:
    def begin() -> Iterator[dict[str, str]]:
        return ({"prompt": f"{index}"} for index in range(20_000))

    data = _load(as_source(begin), streaming=True)
    order = data.order(1000, shuffle=True, seed=3)
    for _ in range(steps):
        next(order)
    state = json.loads(json.dumps(order.state_dict()))
    again = _load(as_source(begin), streaming=True)
    resumed = again.order(1000, shuffle=True, seed=3)
    resumed.load_state_dict(state)
    texts = [[data.prompts[row].text for row in next(order)] for _ in range(20)]
    assert [[again.prompts[row].text for row in next(resumed)] for _ in range(20)] == texts
    if steps == 0:
        drawn = [int(text) for batch in texts for text in batch]
        assert sorted(drawn) == list(range(20_000)) and drawn[:1000] != list(range(1000))


def test_a_stream_is_read_once() -> None:
    passes: list[int] = []

    def begin() -> Iterator[dict[str, str]]:
        passes.append(1)
        return iter([{"prompt": "x"}] * 10_000)

    data = _load(as_source(begin), streaming=True)
    assert [data.prompts[row].row for row in (9_999, 0, 9_999)] == [9_999, 0, 9_999]
    assert len(passes) == 1


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"train": ROWS}, "dict"),
        (datasets.DatasetDict(train=_dataset()), "DatasetDict"),
        (iter(ROWS), "list_iterator"),
        (7, "int"),
    ],
)
def test_objects_that_are_not_rows_are_refused(data: Any, named: str) -> None:
    with pytest.raises(DataError, match=f"`mine` is a {named}") as error:
        as_source(data, name="mine")
    assert error.value.exit_code == 2


def test_a_row_that_is_not_a_mapping_is_named() -> None:
    with pytest.raises(DataError, match="row 1 of `mine`"):
        load_rows([as_source([{"prompt": "x"}, "y"], name="mine")])  # type: ignore[list-item]


def test_streams_are_streamed_and_tables_by_their_size() -> None:
    assert should_stream([as_source(_stream())], memory_bytes=10**12)
    assert not should_stream([as_source(_dataset())], memory_bytes=10**9)
    assert should_stream([as_source(_dataset())], memory_bytes=10**4)
    assert not should_stream([as_source(ROWS)], memory_bytes=1)


@pytest.mark.parametrize("code", ["import rl_compat", "import rl_compat.cli.app, rl_compat.cli.data"])
def test_the_core_starts_without_the_libraries_of_data(code: str) -> None:
    check = f"import sys; {code}; print([name for name in ('datasets', 'pyarrow', 'pandas') if name in sys.modules])"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.strip() == "[]"
