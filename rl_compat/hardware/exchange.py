"""Whether two processes of this machine exchange right values: over NCCL for GPUs, over gloo for the CPU."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rl_compat.hardware.system.timeouts import Background, Finished, run_program
from rl_compat.hardware.types import Exchange

CHILD = Path(__file__).with_name("exchange_child.py")


def read_exchange(
    *, num_gpus: int, timeout_seconds: float = 20.0, environment: Mapping[str, str] | None = None
) -> Exchange | None:
    """Sum tensors between two processes, each with a GPU of its own if there are two. Never raises.

    None where torch is built without its distributed package.
    """
    backend = "nccl" if num_gpus > 1 else "gloo"
    variables = {**(os.environ if environment is None else environment)}
    if backend == "gloo":
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [backend, str(Path(folder) / "store"), str(timeout_seconds)]
        ranks = [
            Background(
                lambda rank=rank: run_program(  # type: ignore[misc]
                    [sys.executable, "-P", str(CHILD), str(rank), *arguments],
                    timeout_seconds=timeout_seconds,
                    environment=variables,
                )
            )
            for rank in range(2)
        ]
        try:
            return _judge(backend, [rank.result() for rank in ranks], timeout_seconds)
        except OSError as error:
            return Exchange(backend=backend, error=str(error))


def _judge(backend: str, finished: list[Finished], timeout_seconds: float) -> Exchange | None:
    if any("No module named 'torch.distributed'" in one.stderr for one in finished):
        return None
    for rank, one in enumerate(finished):
        if one.returncode is None:
            return Exchange(backend=backend, error=f"rank {rank} has not ended within {timeout_seconds:g} s")
        if one.returncode != 0:
            lines = one.stderr.strip().splitlines() or [f"exit code {one.returncode}"]
            return Exchange(backend=backend, error=f"rank {rank}: {lines[-1]}")
    return Exchange(backend=backend, num_wrong=sum(int(one.stdout.split()[-1]) for one in finished))
