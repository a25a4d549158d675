"""The logits processor that vLLM calls. It imports vLLM at the top, so only an engine under construction imports it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from rl_compat.rollout.vllm.draw import ROW_ARGUMENT, DrawTable, SlotResponses


class DrawProcessor(LogitsProcessor):
    """Draws the tokens of all requests in progress, which vLLM's sampler then uses."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.table: DrawTable | None = None
        self.slots = SlotResponses()

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        self.slots.update(
            removed=batch_update.removed,
            added=[(slot, params.extra_args[ROW_ARGUMENT], outputs) for slot, params, _, outputs in batch_update.added],
            moved=[
                (source, target, direction == MoveDirectionality.SWAP)
                for source, target, direction in batch_update.moved
            ],
        )

    def apply(self, logits: Tensor) -> Tensor:
        assert self.table is not None, "vLLM sampled without a request"
        return self.table.draw(logits, *self.slots.rows(len(logits)))


def processor_of(worker: Any) -> DrawProcessor:
    """The processor inside a vLLM worker."""
    found = [item for item in worker.model_runner.input_batch.logitsprocs.all if isinstance(item, DrawProcessor)]
    assert len(found) == 1
    return found[0]
