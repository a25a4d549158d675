"""Trunk and head used apart give what the whole model gives, for families that change their logits too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from rl_compat.errors import ModelError
from rl_compat.training.output_head import SplitModel

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
FAMILIES = {
    "gemma2 caps its logits": (transformers.Gemma2Config, {"final_logit_softcapping": 2.0}),
    "granite divides its logits": (transformers.GraniteConfig, {"logits_scaling": 8.0}),
    "cohere multiplies its logits": (transformers.CohereConfig, {"logit_scale": 0.0625}),
    "qwen3": (transformers.Qwen3Config, {}),
    "phi has a bias in its head": (transformers.PhiConfig, {}),
}


def _model(config: Any) -> Any:
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_models_own_logits(family: str) -> None:
    config_class, changes = FAMILIES[family]
    model = _model(config_class(**(SIZES | changes)))
    ids = torch.randint(2, 64, (2, 9))
    split = SplitModel(model)
    split.check(model, "cpu")
    logprobs, entropy, _ = split.logprobs(
        split.hidden(ids)[:, :-1].flatten(0, 1),
        ids[:, 1:].flatten(),
        temperature=0.8,
        chunk_tokens=5,
        wanted=("entropy",),
    )
    expected = torch.distributions.Categorical(logits=model(ids).logits[:, :-1] / 0.8)
    torch.testing.assert_close(logprobs, expected.log_prob(ids[:, 1:]).flatten())
    torch.testing.assert_close(entropy, expected.entropy().flatten())


class _ShiftedLlama(transformers.LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.square()
        return output


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused() -> None:
    torch.manual_seed(0)
    model = _ShiftedLlama(transformers.LlamaConfig(**SIZES)).eval()
    with pytest.raises(ModelError, match="`_ShiftedLlama`"):
        SplitModel(model).check(model, "cpu")


class _TwoMatrixHead(torch.nn.Module):
    """A head that is more than one matrix, as one with adapters is."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.extra = torch.nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + self.extra(hidden)


def test_a_head_of_several_matrices_gives_the_same_values_and_gradients() -> None:
    model = _model(transformers.LlamaConfig(**SIZES))
    model.lm_head = _TwoMatrixHead(model.lm_head)
    ids = torch.randint(2, 64, (1, 12))
    split = SplitModel(model)
    logprobs, entropy, _ = split.logprobs(
        split.hidden(ids)[0, :-1], ids[0, 1:], temperature=0.8, chunk_tokens=4, wanted=("entropy",)
    )
    assert entropy is not None
    grads = torch.autograd.grad((logprobs - entropy).sum(), list(model.lm_head.parameters()))
    expected = torch.distributions.Categorical(logits=model(ids).logits[0, :-1] / 0.8)
    expected_loss = (expected.log_prob(ids[0, 1:]) - expected.entropy()).sum()
    torch.testing.assert_close((logprobs - entropy).sum(), expected_loss)
    torch.testing.assert_close(grads, torch.autograd.grad(expected_loss, list(model.lm_head.parameters())))
