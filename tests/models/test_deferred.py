"""Models whose weights wait in their files until ranks have divided them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import load_settings, role_plan
from fakes.models import save_random_model
from fakes.part_settings import lora_of
from safetensors.torch import load_file, save_file

from rl_compat.errors import ModelError
from rl_compat.models.deferred import fill, give_memory, stored_weights
from rl_compat.models.load import load_causal_lm, load_trunk


def _loaded(folder: Path, load: Any = load_causal_lm, *, lora: Any = None, **plan: Any) -> Any:
    torch.manual_seed(0)
    return load(load_settings(folder, role=role_plan(**plan), lora=lora))


def _filled(model: Any) -> Any:
    stored = stored_weights(model)
    give_memory(model, "cpu")
    fill(model, stored)
    return model


@pytest.mark.parametrize("load", [load_causal_lm, load_trunk])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_wait_without_memory_and_are_then_those_of_a_whole_load(
    tied: bool, family: str, load: Any, tmp_path: Path
) -> None:
    """DIST-09."""
    folder = save_random_model(tmp_path, family=family, tie_word_embeddings=tied)
    torch.full((2**22,), torch.nan)  # what the next allocation may find
    waiting, plain = _loaded(folder, load, num_shards=2), _loaded(folder, load)
    assert sum(parameter.untyped_storage().nbytes() for parameter in waiting.parameters()) < 200
    model = _filled(waiting)
    for mine, expected in ((model.parameters(), plain.parameters()), (model.buffers(), plain.buffers())):
        assert all(torch.equal(one, other) for one, other in zip(mine, expected, strict=True))
    ids = torch.arange(6, 40)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids)[0], plain(input_ids=ids)[0])
    if load is load_causal_lm:
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
def test_adapters_begin_as_on_a_whole_base_in_its_storage_dtype(storage: str, llama_folder: Path) -> None:
    options: dict[str, Any] = {"lora": lora_of(rank=4), "storage_dtype": storage}
    model, plain = _filled(_loaded(llama_folder, num_shards=2, **options)), _loaded(llama_folder, **options)
    for (name, mine), (expected_name, expected) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert (name, mine.dtype, mine.requires_grad) == (expected_name, expected.dtype, expected.requires_grad)
        assert torch.equal(mine, expected)


def test_a_file_without_a_weight_is_an_error_that_names_it(llama_folder: Path, tmp_path: Path) -> None:
    for file in llama_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        _loaded(tmp_path, num_shards=2)
