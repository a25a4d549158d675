"""Shared by both sides of the TRL comparison: the workload, its reward, and a counter of the work of a step.

It runs in the environments of both sides, so it imports neither of them.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

RESULT_MARK = "BENCH_RESULT "


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One measurement, the same for all sides."""

    algorithm: str
    "`ppo` or `grpo`"
    model: str
    "model folder with weights and tokenizer"
    prompts: list[list[str]]
    "by step, in the order in which they are used"
    group: int
    new_tokens: int
    epochs: int
    mini_batches: int
    kl_coef: float
    "PPO: of the KL in the reward. GRPO: of the KL in the loss, 0 runs without a reference"
    threads: int
    device: str = "cpu"
    "`cpu` or `cuda`"
    dtype: str = "fp32"
    "of matrix products in training and generation; trained weights are fp32"
    engine: str = "native"
    "that generates on our side"
    learning_rate: float = 1e-6

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def responses_per_step(self) -> int:
        return len(self.prompts[0]) * self.group

    @property
    def mini_batch_responses(self) -> int:
        return self.responses_per_step // self.mini_batches

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def digit_reward(solution_str: str) -> float:
    """A tenth of the number of digits: a reward that random models reach and that takes no time."""
    return sum(character.isdigit() for character in solution_str) / 10


class WorkCounter:
    """Counts the tokens that models are fed in batches of sequences and the weights that change, in this process.

    A forward is seen by its token embedding over [B, T]: with gradient it trains, without it scores (old and reference
    log-probabilities, values, the prefill of `generate`). Single tokens are decoding, which engines do in ways that
    cannot be compared so: replayed graphs call no embedding.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._handles: list[Any] = []

    def start(self) -> None:
        from torch.nn.modules.module import register_module_forward_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handles = [
            register_module_forward_hook(self._see_module),
            register_optimizer_step_post_hook(self._see_optimizer),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _see_module(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        from torch import is_grad_enabled
        from torch.nn import Embedding

        if not isinstance(module, Embedding) or inputs[0].dim() < 2 or inputs[0].shape[-1] == 1:
            return
        kind = "train" if is_grad_enabled() and module.weight.requires_grad else "score"
        self.counts[f"{kind}_forwards"] += 1
        self.counts[f"{kind}_tokens"] += inputs[0].numel()

    def _see_optimizer(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self.counts["updated_weights"] += sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def report(
    *,
    versions: dict[str, str],
    step_seconds: list[float],
    rollout_seconds: list[float],
    work: Counter[str],
    peak_device_bytes: int | None,
) -> None:
    """Print a side's measurement as the line that `bench_trl.py` reads."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    result = {
        "versions": versions,
        "step_seconds": step_seconds,
        "rollout_seconds": rollout_seconds,
        "work": dict(work),
        "peak_rss_bytes": peak,
        "peak_device_bytes": peak_device_bytes,
    }
    print(RESULT_MARK + json.dumps(result), flush=True)


def set_threads(threads: int) -> None:
    """Set the number of torch threads, even if a library has set its own."""
    import torch

    torch.set_num_threads(threads)


def wait_for_device() -> None:
    """Wait until the GPU has finished, if one is used."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
