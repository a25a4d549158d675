"""Files that are hashed while they are written and verified while they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl_compat.errors import DamagedCheckpointError
from rl_compat.training.checked_files import read_object, read_sums, read_tensors, write_object, write_tensors
from rl_compat.units import MIB

TENSORS = {
    "matrix": torch.randn(2100, 2000),
    "odd": torch.randn(3, 1, 7).to(torch.bfloat16),
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "none": torch.zeros(0, 4),
    "across": torch.randn(6, 4).half().T,
}
OBJECT = {"state": [{"step": torch.tensor(3.0), "moment": torch.randn(1500, 1500)} for _ in range(3)], "name": "adamw"}


def bytes_read() -> int:
    """By system calls of this process."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def bytes_written() -> int:
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def write_both(folder: Path) -> None:
    write_tensors(folder / "tensors", TENSORS)
    write_object(folder / "object", OBJECT)


READ: dict[str, tuple[Callable[[Path], object], object]] = {
    "tensors": (lambda file: read_tensors(file, lambda shapes: None), TENSORS),
    "object": (read_object, OBJECT),
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_both(tmp_path)
    for name, (read, expected) in READ.items():
        assert same(read(tmp_path / name), expected)


def test_the_tensors_are_a_safetensors_file_in_both_directions(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ours", TENSORS)
    assert same(load_file(tmp_path / "ours"), TENSORS)
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "theirs", {"format": "pt"})
    assert same(read_tensors(tmp_path / "theirs", lambda shapes: None), TENSORS)


def test_shapes_are_given_before_tensors_are_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "tensors", TENSORS)
    seen: list[dict[str, list[int]]] = []
    read_tensors(tmp_path / "tensors", lambda shapes: seen.append(dict(shapes)))
    assert seen == [{name: list(tensor.shape) for name, tensor in TENSORS.items()}]


def test_the_recorded_sums_are_those_of_the_files(tmp_path: Path) -> None:
    write_both(tmp_path)
    assert read_sums(tmp_path) == {
        name: {
            "bytes": (tmp_path / name).stat().st_size,
            "sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest(),
        }
        for name in ("tensors", "object")
    }


def test_writing_reads_nothing_back(tmp_path: Path) -> None:
    read, written = bytes_read(), bytes_written()
    write_both(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert bytes_read() - read < MIB / 8
    assert size <= bytes_written() - written < size + MIB / 8


@pytest.mark.parametrize("name", list(READ))
def test_reading_reads_every_byte_once(name: str, tmp_path: Path) -> None:
    write_both(tmp_path)
    size = (tmp_path / name).stat().st_size
    before = bytes_read()
    READ[name][0](tmp_path / name)
    assert size <= bytes_read() - before < size + MIB / 8


@pytest.mark.parametrize("name", list(READ))
@pytest.mark.parametrize("place", [0, 9, 70, 0.5, -1])
def test_one_changed_bit_anywhere_is_found(name: str, place: float, tmp_path: Path) -> None:
    write_both(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedCheckpointError) as stop:
        READ[name][0](tmp_path / name)
    assert name in stop.value.message and str(tmp_path) in stop.value.message


@pytest.mark.parametrize("name", list(READ))
@pytest.mark.parametrize("kept", [0, 5, 100, 0.9])
def test_a_file_that_ends_early_is_found(name: str, kept: float, tmp_path: Path) -> None:
    write_both(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(DamagedCheckpointError):
        READ[name][0](tmp_path / name)
