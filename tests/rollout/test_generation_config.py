"""Nothing in a model's `generation_config` reaches sampling, and what it would have done is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.models import save_random_model
from rollout.conftest import PROMPTS, build
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig

from rl_compat.rollout.inference import ignored_generation_settings
from rl_compat.rollout.types import SamplingParams

BIASED = {
    "eos_token_id": 1,
    "pad_token_id": 0,
    "do_sample": True,
    "repetition_penalty": 1.1,
    "top_k": 20,
    "top_p": 0.8,
    "temperature": 0.7,
    "suppress_tokens": [10, 20, 30, 40, 50, 60, 70, 80],
    "forced_eos_token_id": 1,
    "max_length": 7,
    "min_new_tokens": 9,
    "no_repeat_ngram_size": 2,
}


@pytest.mark.parametrize(
    "params", [SamplingParams(max_new_tokens=12, seed=1), SamplingParams(max_new_tokens=9, temperature=0.0)]
)
def test_penalties_and_filters_of_the_model_have_no_effect(
    engine_name: str, llama: nn.Module, params: SamplingParams
) -> None:
    """A-GEN-01."""
    expected = build(engine_name, llama).generate(PROMPTS, params, group_size=2)
    llama.generation_config = biased = GenerationConfig(**BIASED)
    assert build(engine_name, llama).generate(PROMPTS, params, group_size=2) == expected
    assert llama.generation_config is biased


def test_settings_that_would_change_sampling_are_listed_from_the_folder(tmp_path: Path) -> None:
    """A-GEN-01."""
    file_values = {"repetition_penalty": 1.1, "top_k": 20, "top_p": 0.8, "temperature": 0.7, "do_sample": True}
    model = AutoModelForCausalLM.from_pretrained(save_random_model(tmp_path / "m", generation_config=file_values))
    assert ignored_generation_settings(model) == {
        "repetition_penalty": 1.1,
        "top_k": 20,
        "top_p": 0.8,
        "temperature": 0.7,
    }


def test_an_ordinary_generation_config_has_nothing_to_list(llama: nn.Module) -> None:
    assert ignored_generation_settings(llama) == {}
    llama.generation_config = None
    assert ignored_generation_settings(llama) == {}


def test_draws_of_an_engine_agree_with_the_plain_softmax_by_chi_square(engine_name: str, llama: nn.Module) -> None:
    """A-GEN-01: five tokens can be drawn, whatever the model's settings say."""
    llama.generation_config = GenerationConfig(**BIASED)
    params = SamplingParams(max_new_tokens=1, seed=1)
    engine = build(engine_name, llama, num_valid_tokens=5, max_num_seqs=512)
    group = engine.generate(PROMPTS[:1], params, group_size=2000)[0]
    counts = torch.tensor([response.token_ids[0] for response in group]).bincount(minlength=5)
    with torch.no_grad():
        logits = llama(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1, :5]
    expected = 2000 * logits.softmax(-1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.47


def test_a_padding_id_beyond_the_embeddings_is_replaced(llama: nn.Module) -> None:
    from rl_compat.planning.types import RolloutPlan
    from rl_compat.rollout.build import build_rollout_engine

    plan = RolloutPlan(engine="transformers", compute_dtype="fp32", max_num_seqs=8, max_prefill_tokens=64)
    params = SamplingParams(max_new_tokens=5, temperature=0.0)
    expected = build_rollout_engine(llama, plan=plan, pad_token_id=0).generate(PROMPTS, params)
    assert build_rollout_engine(llama, plan=plan, pad_token_id=999).generate(PROMPTS, params) == expected
