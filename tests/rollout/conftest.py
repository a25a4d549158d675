"""Engines and models that the rollout tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from fakes.models import save_random_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.source import SharedStorage
from rl_compat.rollout.build import build_rollout_engine
from rl_compat.rollout.session import RolloutSession

PROMPTS: tuple[tuple[int, ...], ...] = ((11, 12, 13), (21, 22, 23, 24, 25, 26, 27, 28, 29), (31,), (41, 42))


def small(config_class: type, *, head_dim: int = 8, **more: object) -> object:
    return config_class(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        **more,
    )


def gemma3() -> nn.Module:
    """Two layers that look back 6 tokens and one that looks back over everything."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return Gemma3ForCausalLM(
        small(Gemma3TextConfig, head_dim=32, sliding_window=6, layer_types=kinds, query_pre_attn_scalar=32)
    )


def mistral() -> nn.Module:
    return MistralForCausalLM(small(MistralConfig, head_dim=32, sliding_window=5))


def qwen3() -> nn.Module:
    return Qwen3ForCausalLM(small(Qwen3Config, head_dim=32))


BUILT: dict[str, Callable[[], nn.Module]] = {"gemma3": gemma3, "mistral": mistral, "qwen3": qwen3}


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads of 32 numbers, the smallest that vLLM attends with on a CPU."""
    return save_random_model(
        tmp_path_factory.mktemp("llama"), family="llama", hidden_size=64, num_heads=2, num_kv_heads=1
    )


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(
        tmp_path_factory.mktemp("qwen2"), family="qwen2", hidden_size=64, num_heads=2, num_kv_heads=1
    )


@pytest.fixture(params=["llama", "qwen2", "gemma3", "mistral", "qwen3"])
def model(request: pytest.FixtureRequest, llama_folder: Path, qwen2_folder: Path) -> nn.Module:
    torch.manual_seed(3)
    if request.param in BUILT:
        return BUILT[request.param]().eval()
    folder = {"llama": llama_folder, "qwen2": qwen2_folder}[request.param]
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture
def llama(llama_folder: Path) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float32)


@pytest.fixture
def qwen2(qwen2_folder: Path) -> nn.Module:
    """Has biases in its projections."""
    return AutoModelForCausalLM.from_pretrained(qwen2_folder, dtype=torch.float32)


@pytest.fixture(params=["native", "transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(engine_name: str, llama: nn.Module) -> RolloutSession:
    return build(engine_name, llama)


def build(name: str, model: nn.Module, *, num_valid_tokens: int | None = None, **changes: object) -> RolloutSession:
    settings = {"compute_dtype": "fp32", "max_num_seqs": 8, "max_prefill_tokens": 64} | changes
    plan = RolloutPlan(engine=name, **settings)
    return build_rollout_engine(model, plan=plan, pad_token_id=0, num_valid_tokens=num_valid_tokens)


def load_newest(engine: RolloutSession, *, version: int | None = None) -> None:
    """Load the weights that the engine's model has now, as the next policy version unless another is given."""
    version = engine.policy_version + 1 if version is None else version
    engine.load(SharedStorage(engine._source, version=version))


def plain_generate(model: nn.Module, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Greedy tokens of one prompt by `generate` itself, which takes an end token from the model if it finds one."""
    model.generation_config = GenerationConfig()
    ids = torch.tensor([list(prompt)])
    settings = GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return output[0, len(prompt) :].tolist()


@torch.no_grad()
def forward_logprobs(model: nn.Module, prompt: Sequence[int], response: Sequence[int], temperature: float) -> Tensor:
    """Log-probabilities of a response by one forward without a cache."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)
