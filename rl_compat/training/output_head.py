"""A language model in two parts: the trunk, which outputs hidden states, and the head, which outputs logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl_compat.errors import ModelError
from rl_compat.models.files.storage import ExactHead, StoredLinear
from rl_compat.planning.types import DType
from rl_compat.training.chunked_logprobs import LogitRule, chunked_logprobs, requested, token_statistics
from rl_compat.training.micro_batches import TokenMatrix
from rl_compat.training.types import Statistic, TokenOutputs

_PLAIN_HEADS = (nn.Linear, StoredLinear, ExactHead)


class SplitModel(nn.Module):
    """Trunk and head of a transformers causal language model under one root, whose forward gives token statistics.

    Raises ModelError for a model whose own forward computes other logits.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.trunk: nn.Module = model.base_model
        self.head: nn.Module = model.get_output_embeddings()
        self.rule = _logit_rule(model)
        if self.head is None or self.trunk is model:
            raise ModelError(f"`{type(model).__name__}` has no separate trunk and output head")

    def forward(
        self, matrix: TokenMatrix, *, temperature: float, chunk_tokens: int, wanted: tuple[Statistic, ...] = ()
    ) -> TokenOutputs:
        """Statistics of the N response tokens of a matrix, [N] fp32, under the tempered softmax."""
        hidden = matrix.at_predictors(self.hidden(matrix.input_ids, position_ids=matrix.position_ids))
        return self.logprobs(hidden, matrix.targets, temperature=temperature, chunk_tokens=chunk_tokens, wanted=wanted)

    def hidden(self, input_ids: Tensor, *, position_ids: Tensor | None = None) -> Tensor:
        """Token ids [B, L], padded on the right, to hidden states [B, L, H]; causal attention never reads padding.

        With `position_ids` [B, L] a pack holds several rows, each counted from 0: no row attends to another.
        """
        given = {} if position_ids is None else {"position_ids": position_ids}
        output: Tensor = self.trunk(input_ids=input_ids, use_cache=False, **given).last_hidden_state
        return output

    def logprobs(
        self,
        hidden: Tensor,
        token_ids: Tensor,
        *,
        temperature: float,
        chunk_tokens: int,
        wanted: tuple[Statistic, ...] = (),
    ) -> TokenOutputs:
        """Hidden states [N, H] and the tokens after them [N] to the requested statistics of these tokens, fp32."""
        rule = replace(self.rule, temperature=temperature)
        if type(self.head) not in _PLAIN_HEADS:
            return _module_logprobs(self.head, hidden, token_ids, rule=rule, chunk_tokens=chunk_tokens, wanted=wanted)
        return chunked_logprobs(
            hidden,
            self.head.weight,  # type: ignore[arg-type]
            token_ids,
            bias=self.head.bias,  # type: ignore[arg-type]
            rule=rule,
            chunk_tokens=chunk_tokens,
            wanted=wanted,
        )

    @torch.no_grad()
    def check(self, model: Any, device: str, dtype: DType = "fp32") -> None:
        """Compare trunk and head, which compute in `dtype`, with the logits of the model on two tokens.

        Raises ModelError if they differ or are not finite: some models overflow in fp16.
        """
        ids = torch.tensor([[1, 2]], device=device)
        expected = model(input_ids=ids, use_cache=False).logits[0].float()
        if not bool(expected.isfinite().all()):
            raise ModelError(
                f"the logits of `{type(model).__name__}` in `{dtype}` are not finite",
                hint="its weights hold NaN or infinity, or lead to them: use another model"
                + (", or `plan.compute_dtype=fp32`" if dtype == "fp16" else ""),
            )
        ours = self.rule.apply(self.head(self.hidden(ids)[0]))
        if not torch.allclose(ours, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()) + 1e-6):
            raise ModelError(
                f"`{type(model).__name__}` computes its logits in a way that training does not support",
                hint="use a model of a common family: llama, qwen, mistral, gemma, phi, granite, cohere",
            )

    @torch.no_grad()
    def keeps_packed_rows_apart(self, device: str) -> bool:
        """Whether rows that share a pack have the same hidden states as alone."""
        packs = ([[1, 2, 3], [2, 1]], [[2, 3], [1, 1, 2]])
        alone = torch.cat([self.hidden(torch.tensor([row], device=device))[0] for pack in packs for row in pack])
        ids = torch.tensor([[token for row in pack for token in row] for pack in packs], device=device)
        positions = torch.tensor([[place for row in pack for place in range(len(row))] for pack in packs])
        together = self.hidden(ids, position_ids=positions.to(device)).flatten(0, 1)
        exact = alone.dtype == torch.float32 and not torch.is_autocast_enabled(torch.device(device).type)
        tolerance = (1e-4 if exact else 0.03) * float(alone.abs().max())
        return bool(torch.allclose(together, alone, rtol=0.0, atol=tolerance))


def _module_logprobs(
    head: nn.Module,
    hidden: Tensor,
    token_ids: Tensor,
    *,
    rule: LogitRule,
    chunk_tokens: int,
    wanted: tuple[Statistic, ...],
) -> TokenOutputs:
    """The same for a head that is more than one matrix (adapters, quantized), with a checkpoint per chunk."""

    def chunk(part_hidden: Tensor, part_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return token_statistics(rule.apply(head(part_hidden)), part_ids, wanted)

    chunks = [
        checkpoint(chunk, part_hidden, part_ids, use_reentrant=False)
        for part_hidden, part_ids in zip(hidden.split(chunk_tokens), token_ids.split(chunk_tokens), strict=True)
    ]
    return requested([torch.cat(column) for column in zip(*chunks, strict=True)], wanted)


def _logit_rule(model: Any) -> LogitRule:
    """The factor and the softcap that the model family applies to the output of the head."""
    settings = model.config.get_text_config()
    softcap = getattr(settings, "final_logit_softcapping", None)
    factor = float(getattr(settings, "logit_scale", None) or 1.0)
    divisor = float(getattr(settings, "logits_scaling", None) or 1.0)
    return LogitRule(scale=factor / divisor, softcap=None if softcap is None else float(softcap))
