"""A run says how far the sampler's log-probabilities were from the trainer's, in every dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.runs import PPO, settings, steps, train

GRPO = {"algorithm.name": "grpo", "algorithm.group_size": 4, "trainer.batch_size": 4}
ONE_UPDATE = {**GRPO, "trainer.mini_batch_size": 4}
SEVERAL_UPDATES = {**GRPO, "trainer.mini_batch_size": 2}
ADAPTERS = {**ONE_UPDATE, "model.lora_rank": 4}
STORED = {**ADAPTERS, "plan.frozen_storage_dtype": "fp16"}
EXACT = (0.0, 2e-5, 2e-4)
ROUNDED = (1e-6, 0.03, 0.3)
"smallest mean, and largest mean and maximum"
CASES: dict[str, tuple[dict[str, Any], tuple[float, float, float]]] = {
    "ppo": (PPO, EXACT),
    "one update": (ONE_UPDATE, EXACT),
    "one update in several micro-batches": ({**ONE_UPDATE, "plan.micro_batch_size": 3}, EXACT),
    "several updates": (SEVERAL_UPDATES, EXACT),
    "bf16": ({**ONE_UPDATE, "plan.compute_dtype": "bf16", "plan.rollout_dtype": "bf16"}, ROUNDED),
    "bf16, several updates": ({**SEVERAL_UPDATES, "plan.rollout_dtype": "bf16"}, ROUNDED),
    "a copy in fp16": ({**ONE_UPDATE, "plan.rollout_dtype": "fp16"}, ROUNDED),
    "a base in fp16": (STORED, EXACT),
    "a base in fp16, fp16 products": ({**STORED, "plan.rollout_dtype": "fp16"}, ROUNDED),
}


@pytest.mark.parametrize("case", CASES)
def test_mean_and_largest_gap_are_logged_and_as_small_as_the_dtypes_allow(
    case: str, llama_folder: Path, tmp_path: Path
) -> None:
    """In fp32 the two differ by rounding alone; half precision is measured."""
    changes, (least, mean, largest) = CASES[case]
    train(settings(llama_folder, tmp_path / "run", changes, {"data.val_files": ""}, num_steps=2, save_every=0))
    for metrics in steps(tmp_path / "run").values():
        for what in ("logprobs", "probs"):
            of_mean, of_largest = (metrics[f"training/rollout_{what}_diff_{kind}"] for kind in ("mean", "max"))
            assert least < of_mean < mean, what
            assert of_mean <= of_largest < largest, what
