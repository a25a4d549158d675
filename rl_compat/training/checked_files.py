"""Files of tensors that are hashed while they are written and verified while they are read: each byte is read once."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from rl_compat.errors import CheckpointError, DamagedCheckpointError
from rl_compat.models.parts import whole
from rl_compat.units import MIB

SUMS_FILE = "sums.json"
"size and SHA-256 of the files in its folder that their reader verifies"

_GAP = MIB
"bytes skipped by a reader that are read for the hash at once"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNREADABLE = (
    *(RuntimeError, LookupError, TypeError, ValueError, OSError, EOFError, pickle.UnpicklingError, struct.error),
)
"how torch and the functions here fail on a damaged file"
_HINT = (
    "use an earlier checkpoint: `trainer.resume=PATH` continues training from it, `rlc eval` and `rlc export` take its "
    "folder"
)

Shapes = Mapping[str, list[int]]


def write_tensors(file: Path | None, tensors: Mapping[str, Tensor]) -> None:
    """Write floating-point tensors in the safetensors format, one at a time through host memory.

    Ranks that share tensors make this call together, those that only give their parts with None as the file.
    """
    names = {dtype: name for name, dtype in _DTYPES.items()}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps numbers aligned
    entries, end = {}, 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        entries[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    wholes = (whole(tensor.detach()) for _, tensor in ordered)
    try:
        if file is not None:
            with _written(file) as out:
                out.write(struct.pack("<Q", len(header)) + header)
                for tensor in wholes:
                    out.write(_bytes_of(tensor.to("cpu").contiguous()))
    finally:
        deque(wholes, maxlen=0)  # the other ranks give all their parts, also where writing fails


def read_tensors(
    file: Path, check: Callable[[Shapes], None], keep: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU, or what `keep` makes of each.

    `check` gets the shapes before any tensor is read.
    Raises CheckpointError for a missing file, DamagedCheckpointError for a damaged one.
    """
    with _verified(file) as source:
        (length,) = struct.unpack("<Q", source.read(8))
        if length > source.size:
            raise ValueError(f"a header of {length} bytes in a file of {source.size}")
        header = json.loads(source.read(length))
        header.pop("__metadata__", None)
        shapes = {name: entry["shape"] for name, entry in header.items()}
        try:
            check(shapes)
        except CheckpointError:
            source.verify()  # a damaged header may name anything
            raise
        tensors = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            tensor = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
            if source.readinto(_bytes_of(tensor)) != tensor.nbytes:
                raise EOFError("the file ends early")
            tensors[name] = keep(name, tensor)
        return tensors


def write_object(file: Path, value: Any) -> None:
    """Write plain values and tensors in the format of `torch.save`."""
    with _written(file) as out:
        torch.save(value, cast(IO[bytes], out))


def read_object(file: Path) -> Any:
    """What `write_object` wrote, on the CPU. Raises as `read_tensors` does."""
    with _verified(file) as source:
        return torch.load(cast(IO[bytes], source), map_location="cpu", weights_only=True)


def read_sums(folder: Path) -> dict[str, dict[str, Any]]:
    """`bytes` and `sha256` of the files of a folder that their reader verifies."""
    file = folder / SUMS_FILE
    sums: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return sums


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


class _HashingWriter(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        written = self._file.write(data)
        self._size += written
        return written

    def sums(self) -> dict[str, Any]:
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}


@contextmanager
def _written(file: Path) -> Iterator[_HashingWriter]:
    with file.open("wb") as out:
        writer = _HashingWriter(out)
        yield writer
    sums = read_sums(file.parent) | {file.name: writer.sums()}
    (file.parent / SUMS_FILE).write_text(json.dumps(sums, indent=1))


class _HashingReader(io.RawIOBase):
    """Hashes what passes through it in the order of the file; `verify` reads only what has not passed."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._digest = hashlib.sha256()
        self._hashed = 0
        self.size = path.stat().st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        start, view = self._file.tell(), memoryview(buffer).cast("B")
        if 0 < start - self._hashed <= _GAP:
            self._hash_up_to(start)
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        if start <= self._hashed < start + count:
            self._digest.update(view[self._hashed - start : count])
            self._hashed = start + count
        return int(count)

    def _hash_up_to(self, end: int) -> None:
        """Leaves the file at `end`."""
        self._file.seek(self._hashed)
        while self._hashed < end and (piece := self._file.read(min(MIB, end - self._hashed))):
            self._digest.update(piece)
            self._hashed += len(piece)

    def verify(self) -> None:
        """Raise DamagedCheckpointError unless the file has the recorded checksum, if one was recorded."""
        expected = read_sums(self._path.parent).get(self._path.name)
        if expected is None:
            return
        self._hash_up_to(self.size)
        if self._digest.hexdigest() != expected["sha256"]:
            raise _damaged(self._path, "does not match its checksum")


@contextmanager
def _verified(file: Path) -> Iterator[_HashingReader]:
    try:
        with file.open("rb") as source:
            reader = _HashingReader(source, file)
            yield reader
            reader.verify()
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"`{file}` is missing", hint=_HINT) from error
    except _UNREADABLE as error:
        raise _damaged(file, f"cannot be read: {error}") from error


def _damaged(file: Path, fact: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"`{file.name}` of checkpoint `{file.parent}` {fact}", hint=_HINT)
