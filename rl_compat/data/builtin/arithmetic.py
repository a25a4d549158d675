"""A generated task for tiny models: sums of two numbers from 0 to 99."""

from __future__ import annotations

import random
from typing import Any, Literal

DATA_SOURCE = "rlc/arithmetic"
LARGEST = 99
NUM_HELD_OUT_PAIRS = 500
SEED = 1


def rows(split: Literal["train", "test"], *, limit: int | None = None, seed: int = SEED) -> list[dict[str, Any]]:
    """Prompts `a+b=` in a random order that depends only on the seed.

    The splits share no unordered pair: `3+4=` and `4+3=` are in the same split.
    """
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(a, LARGEST + 1)]
    generator = random.Random(seed)
    pairs = _permuted(pairs, generator)
    chosen = pairs[:NUM_HELD_OUT_PAIRS] if split == "test" else pairs[NUM_HELD_OUT_PAIRS:]
    ordered = _permuted([pair for a, b in chosen for pair in dict.fromkeys(((a, b), (b, a)))], generator)
    return [_row(a, b, split=split, index=index) for index, (a, b) in enumerate(ordered[:limit])]


def pairs(split: Literal["train", "test"], *, limit: int | None = None, seed: int = SEED) -> list[dict[str, Any]]:
    """The same prompts with the correct sum as chosen and a nearby number as rejected response."""
    generator = random.Random(f"{seed}:{split}")
    found = []
    for record in rows(split, limit=limit, seed=seed):
        right = int(record["extra_info"]["answer"])
        wrong = abs(right + generator.choice((-10, -2, -1, 1, 2, 10)))
        wrong += 1 if wrong == right else 0
        found.append({**record, "chosen": str(right), "rejected": str(wrong)})
    return found


def _permuted(items: list[tuple[int, int]], generator: random.Random) -> list[tuple[int, int]]:
    keys = [generator.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def _row(a: int, b: int, *, split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{a}+{b}="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"split": split, "index": index, "answer": str(a + b)},
    }
