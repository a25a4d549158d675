"""The cache of reference values: what its key depends on, and the groups that values are computed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.runs import cpu
from safetensors.torch import save_file
from torch import Tensor
from trainer.offline.test_training import settings

from rl_compat.config.load import load_config
from rl_compat.data.encode.items import ItemBatch
from rl_compat.trainer.offline import reference_values
from rl_compat.trainer.offline.reference_values import ReferenceValues, identity_of, weights_digest
from rl_compat.trainer.offline.training import Offline
from rl_compat.trainer.setup.offline import check_offline


def offline(model: Path, output: Path, **trainer: Any) -> Offline:
    config = load_config(None, settings(model, output, "dpo", **trainer)).config
    return Offline(check_offline(config, cpu()))


def test_other_weights_under_the_same_name_and_size_have_another_digest(tmp_path: Path) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache.json"
    model.mkdir()
    save_file({"w": torch.zeros(8)}, model / "model.safetensors")
    before = weights_digest(model, cache=cache)
    save_file({"w": torch.ones(8)}, model / "model.safetensors")
    assert weights_digest(model, cache=cache) != before


def test_a_weight_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache.json"
    model.mkdir()
    save_file({"w": torch.zeros(8)}, model / "model.safetensors")
    before = weights_digest(model, cache=cache)
    monkeypatch.setattr(reference_values, "file_sha256", lambda file: pytest.fail(f"read {file} again"))
    assert weights_digest(model, cache=cache) == before


def test_dtype_and_quantization_are_part_of_the_identity() -> None:
    parts = [("digest", "fp32", "fp32", "none"), ("digest", "fp32", "bf16", "none"), ("digest", "fp32", "fp32", "nf4")]
    assert len({identity_of(*part, items=[]) for part in parts}) == 3


def test_the_groups_are_those_of_a_whole_run_wherever_a_run_resumes(llama_folder: Path, tmp_path: Path) -> None:
    recipe = offline(llama_folder, tmp_path / "run", num_steps=5)
    whole = recipe._coming_groups(0)
    assert sorted(row for group in whole for row in group) == list(range(24))
    for step in range(5):
        next(recipe.prepared.order)
        assert all(group in whole for group in recipe._coming_groups(step + 1))
    assert len(recipe._coming_groups(4)) <= len(whole)
    assert offline(llama_folder, tmp_path / "other", num_steps=1)._coming_groups(0) == whole[:1]


def test_a_group_with_a_missing_value_is_computed_whole(llama_folder: Path, tmp_path: Path) -> None:
    recipe = offline(llama_folder, tmp_path / "run", num_steps=5)
    items, groups, computed = recipe.prepared.training.items, recipe._coming_groups(0), []

    def compute(batch: ItemBatch) -> Tensor:
        computed.append(len(batch))
        return torch.zeros(len(batch))

    file = tmp_path / "reference.safetensors"
    values = ReferenceValues(file, identity="a")
    values.complete("training", items, groups[:1], compute, on_progress=lambda done: None)
    ReferenceValues(file, identity="a").complete("training", items, groups, compute, on_progress=lambda done: None)
    assert computed == [2 * len(group) for group in groups]
    ReferenceValues(file, identity="b").complete("training", items, groups[:1], compute, on_progress=lambda done: None)
    assert computed[len(groups) :] == [2 * len(groups[0])]
