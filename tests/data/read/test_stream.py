"""Datasets read in pieces: the same prompts in bounded memory, in an order that can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fakes.encoders import CharacterEncoder

from rl_compat.data.encode.streamed import StreamedFile, StreamedPrompts
from rl_compat.data.encode.training_data import TrainingData, left_out, load_training, should_stream
from rl_compat.data.form.patterns import Form
from rl_compat.data.order.batches import MixtureOrder, PromptOrder
from rl_compat.data.order.epochs import BlockEpochs
from rl_compat.data.read.file_pieces import LineRecords, ParquetRecords
from rl_compat.data.read.reading import Reading
from rl_compat.data.read.records import Piece, Records
from rl_compat.errors import DataError

RECORDS = [{"prompt": f"row {index}", "ground_truth": str(index)} for index in range(100)]


def _write(path: Path, records: list[dict[str, Any]], *, group: int = 10) -> str:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=group)
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


def _pieces(file: Records, *, limit: int | None = None) -> list[Piece]:
    return file.pieces(file=0, first_row=0, limit=limit)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_prompts_are_those_of_the_file_read_whole(suffix: str, tmp_path: Path) -> None:
    name = _write(tmp_path / f"a{suffix}", RECORDS)
    streamed, whole = _load(name, "arithmetic"), _load(name, "arithmetic", streaming=False)
    assert len(streamed.prompts) == len(whole.prompts)
    assert [streamed.prompts[row] for row in (0, 57, 99, 100, 3000)] == [
        whole.prompts[row] for row in (0, 57, 99, 100, 3000)
    ]
    assert streamed.prompts[:12] == list(whole.prompts[:12])


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize(("rows", "size"), [(7, 2**20), (1000, 200), (1, 2**20), (1000, 2**20)])
def test_pieces_cover_a_file_once_in_order(suffix: str, rows: int, size: int, tmp_path: Path) -> None:
    path = Path(_write(tmp_path / f"a{suffix}", RECORDS, group=32))
    kind = ParquetRecords if suffix == ".parquet" else LineRecords
    file = kind(path, name=str(path), piece_rows=rows, piece_bytes=size)
    pieces = _pieces(file)
    assert [record for piece in pieces for record in file.read(piece)] == RECORDS
    assert [piece.first_row for piece in pieces] == [sum(p.num_rows for p in pieces[:i]) for i in range(len(pieces))]
    assert all(piece.num_rows <= rows for piece in pieces)
    limited = _pieces(file, limit=45)
    assert [record for piece in limited for record in file.read(piece)] == RECORDS[:45]


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_visits_every_row_once_and_blocks_hold_what_fits(shuffle: bool) -> None:
    pieces = [_piece(index, first_row=10 * index) for index in range(10)]
    epochs = BlockEpochs(pieces, shuffle=shuffle, seed=1, block_rows=30, block_bytes=10**6)
    first, second = ([epochs.row(epoch, offset) for offset in range(100)] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(100))
    assert (first == list(range(100))) is not shuffle and (first != second) is shuffle
    assert all(len({row // 10 for row in first[start : start + 30]}) == 3 for start in (0, 30, 60))
    by_bytes = BlockEpochs(pieces, shuffle=True, seed=1, block_rows=1000, block_bytes=1000)
    assert len({by_bytes.row(0, offset) // 10 for offset in range(10)}) == 1


def _piece(place: int, *, first_row: int) -> Piece:
    return Piece(file=0, first_row=first_row, num_rows=10, num_bytes=1000, index=first_row, place=place)


def test_the_block_order_of_a_seed_is_the_same_in_every_release() -> None:
    pieces = [Piece(file=0, first_row=2 * index, num_rows=2, num_bytes=1, index=0, place=index) for index in range(5)]
    epochs = BlockEpochs(pieces, shuffle=True, seed=1, block_rows=4)
    assert [epochs.row(0, offset) for offset in range(10)] == [2, 3, 5, 4, 7, 0, 1, 6, 8, 9]


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


def test_going_on_reads_one_block_and_not_the_file_from_its_beginning(tmp_path: Path) -> None:
    file = LineRecords(Path(_write(tmp_path / "a.jsonl", RECORDS)), name="a", piece_rows=5, piece_bytes=2**20)
    pieces = _pieces(file)
    epochs = BlockEpochs(pieces, shuffle=True, seed=1, block_rows=20)
    order = PromptOrder(100, 10, shuffle=True, seed=1, epochs=epochs)
    order.load_state_dict({"epoch": 3, "offset": 40, "num_rows": 100, "shuffle": True, "seed": 1})
    rows = next(order)
    assert len({row // 5 for row in rows}) <= 4
    assert rows == [BlockEpochs(pieces, shuffle=True, seed=1, block_rows=20).row(3, 40 + i) for i in range(10)]


class CountingRecords(LineRecords):
    """A file that counts how often it is read."""

    num_reads = 0

    def read(self, piece: Piece) -> list[dict[str, Any]]:
        self.num_reads += 1
        return super().read(piece)


@pytest.mark.parametrize("num_files", [1, 3])
def test_each_piece_is_read_once_in_an_epoch_of_every_source(num_files: int, tmp_path: Path) -> None:
    files, opened, first_row = [], [], 0
    for number in range(num_files):
        path = Path(_write(tmp_path / f"{number}.jsonl", [{"prompt": "x", "other": "y" * 1000}] * 20_000))
        files.append(CountingRecords(path, name=str(path), piece_rows=4096, piece_bytes=2**20))
        pieces = tuple(files[-1].pieces(file=number, first_row=first_row, limit=None))
        form = Form(name="prompt", title="prompts", columns={"prompt": "prompt"})
        opened.append(StreamedFile(file=files[-1], form=form, pieces=pieces, split="train"))
        first_row += 20_000
    prompts = StreamedPrompts(
        opened, chat=CharacterEncoder(), max_prompt_length=1000, overlong="filter", num_blocks=num_files
    )
    sources = [BlockEpochs(item.pieces, shuffle=True, seed=1) for item in opened]
    order = MixtureOrder(sources, [1] * num_files, 1000, shuffle=True, seed=1)
    for _ in range(20 * num_files):
        assert len([prompts[row] for row in next(order)]) == 1000
    assert [file.num_reads for file in files] == [len(item.pieces) for item in opened]
    assert len(opened[0].pieces) > 15


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


def test_the_beginning_of_each_file_is_checked_and_later_rows_are_left_out(tmp_path: Path) -> None:
    bad = [{"prompt": "a"}, {"prompt": None}]
    name = _write(tmp_path / "a.jsonl", bad)
    with pytest.raises(DataError, match="row 1"):
        _load(name)
    data = _load(name, bad_rows="drop")
    assert [data.prompts.usable(row) for row in (0, 1)] == [True, False]  # type: ignore[attr-defined]
    assert [" 1 " in f" {note} " for note in left_out(data.prompts)] == [True]
    with pytest.raises(DataError, match="row 1"):
        data.prompts[1]
    none = _write(tmp_path / "b.jsonl", [{"prompt": "far too long"}] * 3)
    with pytest.raises(DataError, match=r"3 rows of `.*b\.jsonl`"):
        _load(none, limit=4).sample()


def test_files_that_cannot_be_read_in_pieces_are_held_whole_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(RECORDS[:3]))
    said: list[str] = []
    data = _load(str(tmp_path / "a.json"), said=said)
    assert [prompt.text for prompt in data.prompts] == ["row 0", "row 1", "row 2"]
    assert len(said) == 2 and all("a.json`" in note for note in said)


def test_damage_in_a_later_piece_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n' * 5000 + "{oops}\n")
    data = _load(str(path))
    with pytest.raises(DataError, match=r"row 5000 of `.*a\.jsonl`"):
        data.prompts[5000]


def test_streaming_begins_where_rows_would_fill_memory(tmp_path: Path) -> None:
    names = [_write(tmp_path / "a.parquet", RECORDS), _write(tmp_path / "b.jsonl", RECORDS)]
    assert not should_stream([*names, "gsm8k"], memory_bytes=10**9)
    assert should_stream(names, memory_bytes=10**5)
    assert not should_stream(["gsm8k"], memory_bytes=1)


MEASURE = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from fakes.encoders import CharacterEncoder
from rl_compat.data.read.reading import Reading
from rl_compat.data.encode.training_data import load_training

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

import pyarrow.parquet
before = rss()
reading = Reading(task="prompts")
data = load_training([sys.argv[1]], reading, chat=CharacterEncoder(), max_prompt_length=4096, streaming=True)
order = data.order(100, shuffle=True, seed=1)
peak, rows = 0, set()
for step in range(int(sys.argv[3])):
    batch = next(order)
    rows.update(data.prompts[row].row for row in batch)
    peak = max(peak, rss() - before)
print(json.dumps({"peak": peak, "rows": len(rows), "num_rows": len(data.prompts)}))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("suffix", "group"), [(".jsonl", 0), (".parquet", 1000), (".parquet", 10**6)])
def test_memory_stays_bounded_while_a_large_file_is_read(suffix: str, group: int, tmp_path: Path) -> None:
    text = [f"{index}:" + "x" * 2000 for index in range(500)]
    path = tmp_path / f"large{suffix}"
    num_rows, steps = 60_000, 60
    if suffix == ".jsonl":
        block = "".join(json.dumps({"prompt": item}) + "\n" for item in text)
        with path.open("w") as file:
            for _ in range(num_rows // 500):
                file.write(block)
    else:
        table = pyarrow.table({"prompt": text * (num_rows // 500)})
        pyarrow.parquet.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)
    size = path.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(Path(__file__).parents[2]), str(steps)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    found = json.loads(done.stdout)
    assert (found["rows"], found["num_rows"]) == (100 * steps, num_rows)
    assert size > 110 * 2**20
    assert found["peak"] < 110 * 2**20
