"""Seeds of random streams that do not depend on each other, derived from one setting."""

from __future__ import annotations

import hashlib


def derive(seed: int, *path: int | str) -> int:
    """The seed of the stream that `path` names under `seed`, in [0, 2^63).

    Any integer is a valid `seed`. Different paths give unrelated seeds, in every process and on every machine.
    """
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in (seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
