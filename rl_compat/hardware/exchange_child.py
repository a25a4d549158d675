"""One of two processes that sum a tensor with each other, and check every value. Prints how many are wrong."""

from __future__ import annotations

import sys
from datetime import timedelta

NUM_VALUES = 1 << 20
ROUNDS = 3


def main(rank: int, backend: str, store: str, timeout_seconds: float) -> int:
    """The number of wrong values."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=timeout_seconds)
    )
    wrong = 0
    values = torch.arange(NUM_VALUES, dtype=torch.float32, device=device)
    for number in range(1, ROUNDS + 1):
        own = values * number * (rank + 1)
        dist.all_reduce(own)
        wrong += int((own != values * number * 3).sum())
    return wrong


if __name__ == "__main__":
    print(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])))
