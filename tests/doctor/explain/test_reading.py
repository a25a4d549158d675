"""Reading a log: any size, encoding, line end and colour."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest

from rl_compat.doctor.explain.reading import BLOCK_BYTES, SEGMENT_CHARACTERS, clean, open_log, read_blocks
from rl_compat.errors import UsageError


def lines_of(data: bytes) -> list[tuple[int, str]]:
    return [(line.number, line.text) for block in read_blocks(io.BytesIO(data), "it") for line in block]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", [(1, "one"), (2, "two")]),
        (b"one\r\ntwo\r\n", [(1, "one"), (2, "two")]),
        (b"one\n\n\nfour", [(1, "one"), (4, "four")]),
        (b" 1%|\r 2%|\r 3%|\ndone\n", [(1, " 1%|"), (1, " 2%|"), (1, " 3%|"), (2, "done")]),
        (b"\xff\xfe" + "Fehler ü\r\n".encode("utf-16-le"), [(1, "Fehler ü")]),
        (b"\xfe\xff" + "Fehler\n".encode("utf-16-be"), [(1, "Fehler")]),
        (b"\xef\xbb\xbfbom\n", [(1, "bom")]),
        (b"caf\xe9\n", [(1, "caf�")]),
        ("日本語\n".encode(), [(1, "日本語")]),
        (b"a\tb\n", [(1, "a b")]),
    ],
)
def test_lines_and_their_numbers(data: bytes, expected: list[tuple[int, str]]) -> None:
    assert lines_of(data) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31merror\x1b[0m: no", "error: no"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://a.b\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2K\x1b[1Gprogress", "progress"),
        ("[36m(WorkerDict pid=1)[0m text", "(WorkerDict pid=1) text"),
        ("[1;31mred[0m", "red"),
        ("list[0] and [3m] and [rank0]", "list[0] and [3m] and [rank0]"),
        ("bell\x07 and \x00 zero", "bell and  zero"),
    ],
)
def test_terminal_codes_are_taken_out(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_a_character_across_two_blocks_is_one() -> None:
    data = b"x" * (BLOCK_BYTES - 1) + "é\n".encode()

    assert lines_of(data)[-1][1].endswith("é")


def test_a_line_longer_than_any_terminal_keeps_its_number() -> None:
    found = lines_of(b"y" * (SEGMENT_CHARACTERS * 10) + b"\nend\n")

    assert {number for number, _ in found[:-1]} == {1}
    assert sum(len(text) for _, text in found[:-1]) == SEGMENT_CHARACTERS * 10
    assert found[-1] == (2, "end")


def test_memory_stays_bounded() -> None:
    class Endless(io.RawIOBase):
        """Twelve megabytes of one line."""

        left = 12 * 1024 * 1024

        def read(self, size: int = -1) -> bytes:
            given = min(size, self.left)
            self.left -= given
            return b"z" * given

    tracemalloc.start()
    total = sum(len(line.text) for block in read_blocks(Endless(), "it") for line in block)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert total == 12 * 1024 * 1024
    assert peak < 6 * 1024 * 1024


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"", "it is empty", "`command 2>&1 | rlc doctor explain`"),
        (gzip.compress(b"text", mtime=0), "it is compressed", "`zcat FILE"),
        (b"PK\x03\x04rest", "it is compressed", "`unzip -p FILE"),
        (b"\x7fELF\x00\x00\x01", "it is not text", ""),
        (bytes(range(256)), "it is not text", ""),
    ],
)
def test_what_is_no_log_is_refused(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(read_blocks(io.BytesIO(data), "it"))

    assert caught.value.message == message
    assert caught.value.hint is not None and hint in caught.value.hint


def test_a_folder_names_its_newest_file(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("x")

    with pytest.raises(UsageError) as caught:
        open_log(tmp_path)

    assert caught.value.hint is not None and f"`{tmp_path / 'run.log'}`" in caught.value.hint


def test_a_missing_file_names_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x")

    with pytest.raises(UsageError) as caught:
        open_log(tmp_path / "trian.log")

    assert caught.value.hint == f"did you mean `{tmp_path / 'train.log'}`"


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_log(tmp_path / "no" / "train.log")

    assert caught.value.hint is not None and f"`{tmp_path / 'no'}`" in caught.value.hint
