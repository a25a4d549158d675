"""Amounts of work, measured in a way that does not depend on how busy or fast the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def growth(work: Callable[[int], object], *, small: int, factor: int = 4, repeats: int = 5) -> float:
    """CPU time of `work(factor * small)` over that of `work(small)`: about `factor` where it is linear.

    The least of a few, which a busy machine disturbs, or the first that is near the factor.
    """
    least = float("inf")
    for _ in range(repeats):
        least = min(least, _cpu_seconds(work, factor * small) / max(_cpu_seconds(work, small), 1e-5))
        if least < 1.5 * factor:
            break
    return least


def _cpu_seconds(work: Callable[[int], object], size: int) -> float:
    started = time.process_time()
    work(size)
    return time.process_time() - started
