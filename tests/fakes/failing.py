"""A policy of which one process fails on request, and a run that is told so."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_compat.batch import Batch
from rl_compat.distributed.group import dispatch
from rl_compat.distributed.ranks import Ranks, Solo
from rl_compat.workers.policy import PolicySettings, PolicyWorker

REQUEST = "failure.json"
"in the folder of the model"
FAILED = "failed.txt"
"the time of the first failure, in the same folder"


def request(model: Path, *, where: str, kind: str, rank: int = 1, call: int = 1, calls: int = 1) -> None:
    """Let a rank fail in its calls from number `call` on: in `logprobs`, `update`, `second mini-batch`, `save_state`.

    `forward` is every micro-batch of the model.
    """
    (model / REQUEST).write_text(
        json.dumps({"where": where, "kind": kind, "rank": rank, "first": call, "calls": calls})
    )


class FailingPolicy(PolicyWorker):
    """A policy that does what `request` asks for."""

    def __init__(self, settings: PolicySettings, ranks: Ranks = Solo()) -> None:
        super().__init__(settings, ranks)
        self._count = 0
        self.engine.model.get_submodule("model").register_forward_pre_hook(lambda *_: self._pass("forward"))

    @dispatch(split=("batch",))
    def logprobs(self, *, batch: Batch) -> Tensor:
        self._pass("logprobs")
        return super().logprobs(batch=batch)

    @dispatch()
    def update(self, *, batch: Batch, seed: int) -> dict[str, float]:
        self._pass("update")
        return super().update(batch=batch, seed=seed)

    def _prepared(self, mini_batch: Batch, *, seed: int, first: bool) -> tuple[Batch, dict[str, float]]:
        if not first:
            self._pass("second mini-batch")
        return super()._prepared(mini_batch, seed=seed, first=first)

    @dispatch()
    def save_state(self, *, folder: Path) -> None:
        self._pass("save_state")
        super().save_state(folder=folder)

    def _pass(self, where: str) -> None:
        folder = self.settings.model.folder
        if not (folder / REQUEST).exists():
            return
        wanted: dict[str, Any] = json.loads((folder / REQUEST).read_text())
        if wanted["where"] != where or wanted["rank"] != self.engine.ranks.rank or self.engine.ranks.size == 1:
            return
        self._count += 1
        if not wanted["first"] <= self._count < wanted["first"] + wanted["calls"]:
            return
        if not (folder / FAILED).exists():
            (folder / FAILED).write_text(str(time.time()))
        if wanted["kind"] in ("SIGKILL", "SIGSTOP"):
            os.kill(os.getpid(), getattr(signal, wanted["kind"]))
        elif wanted["kind"] == "exit":
            os._exit(3)
        elif wanted["kind"] == "memory":
            raise torch.OutOfMemoryError("no room")
        else:
            raise ValueError("bad row 17")
