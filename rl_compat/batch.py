"""The responses of a step as tensors, with fields for everything that is computed from them, and as texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rl_compat.errors import ConfigError, check_type, did_you_mean
from rl_compat.trajectory import Trajectory

_OPTIONAL = (
    "rollout_logprobs",
    "policy_versions",
    "old_logprobs",
    "ref_logprobs",
    "values",
    "token_rewards",
    "advantages",
    "returns",
    "weights",
    "selection",
    "sum_pi_squared",
    "cost_values",
    "cost_returns",
)
_SOURCES = {
    "old_logprobs": "actor.compute_logprobs(sequences).result()",
    "ref_logprobs": "reference.compute_logprobs(sequences).result()",
    "values": "critic.compute_values(sequences).result()",
    "cost_values": "cost_critic.compute_values(sequences).result()",
    "sum_pi_squared": 'actor.compute_token_outputs(sequences).result()["sum_pi_squared"]',
    "rollout_logprobs": "sequences.batch.rollout_logprobs",
}
"calls that compute a field"
_READY = "calls return futures: pass their `.result()`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B responses. Tensors are on the CPU; prompts are ragged, per-token fields are `[B, T]`.

    T is the longest response; a field's column t belongs to response token t. The mask excludes the columns past the
    length of a response, and tokens that the policy did not write. Excluded columns have no effect.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    response_ids: Tensor
    "[B, T] int64, 0 in the padding"
    response_mask: Tensor
    "[B, T] bool: True on trained tokens, which the policy wrote"
    response_lengths: Tensor
    "[B] int64: all tokens, including those that the policy did not write"
    groups: Tensor
    "[B] int64: equal for the responses to one prompt occurrence, unique over a run"
    truncated: Tensor
    "[B] bool: cut at the length limit"
    rows: Tensor | None = None
    "[B] int64: rows of the prompts in the data"
    rewards: Tensor | None = None
    "[B] float32: the outcome reward"
    rollout_logprobs: Tensor | None = None
    policy_versions: Tensor | None = None
    "int64: version of the weights that drew each token"
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    token_rewards: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    costs: Tensor | None = None
    "[B] float32: the outcome cost"
    cost_values: Tensor | None = None
    cost_returns: Tensor | None = None
    weights: Tensor | None = None
    "importance weights of tokens that another policy drew"
    sum_pi_squared: Tensor | None = None
    "sum over the vocabulary of the squared probabilities at each token"
    selection: Tensor | None = None
    "bool: tokens that a policy loss chose from the whole mini-batch"

    def __post_init__(self) -> None:
        shape = self.response_ids.shape
        assert len(shape) == 2 and shape[0] == len(self.prompt_ids)
        assert self.response_mask.shape == shape and self.response_mask.dtype == torch.bool
        for name in _OPTIONAL:
            value = getattr(self, name)
            assert value is None or value.shape == shape, f"{name} is {tuple(value.shape)}, expected {tuple(shape)}"

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory]) -> Self:
        """Pad the responses of a step on the right. The mask comes from the trajectories, never from token ids."""
        lengths = torch.tensor([len(t.response_ids) for t in trajectories], dtype=torch.int64)
        in_response = torch.arange(max(1, int(lengths.max()))) < lengths[:, None]

        def padded(rows: Iterable[Sequence[float]], dtype: torch.dtype) -> Tensor:
            values = torch.tensor([value for row in rows for value in row], dtype=dtype)
            return torch.zeros(in_response.shape, dtype=dtype).masked_scatter_(in_response, values)

        versions_known = all(len(t.policy_versions) == len(t.response_ids) for t in trajectories)
        masks = (t.response_mask or (True,) * len(t.response_ids) for t in trajectories)
        return cls(
            prompt_ids=tuple(t.prompt.token_ids for t in trajectories),
            response_ids=padded((t.response_ids for t in trajectories), torch.int64),
            response_mask=padded(masks, torch.bool),
            response_lengths=lengths,
            groups=torch.tensor([t.group for t in trajectories]),
            truncated=torch.tensor([t.finish_reason == "length" for t in trajectories]),
            rows=torch.tensor([t.prompt.row for t in trajectories]),
            rollout_logprobs=padded((t.rollout_logprobs for t in trajectories), torch.float32),
            policy_versions=padded((t.policy_versions for t in trajectories), torch.int64) if versions_known else None,
        )

    def with_(self, **changes: Any) -> Self:
        """A copy of the batch with some fields set.

        Raises ConfigError for a field that does not exist, and for a per-token tensor of another shape.
        """
        known = [item.name for item in fields(self)]
        shape = changes.get("response_ids", self.response_ids).shape
        for name, value in changes.items():
            if name not in known:
                raise ConfigError(f"`{name}` is not a field of a batch", hint=did_you_mean(name, known))
            if name in _OPTIONAL and value is not None:
                check_type(name, value, Tensor, hint=_READY)
                if value.shape != shape:
                    raise ConfigError(f"`{name}` has shape {tuple(value.shape)} and the responses {tuple(shape)}")
        return replace(self, **changes)

    def require(self, *names: str, reader: str) -> None:
        """Raise ConfigError for a field that `reader` needs and the batch lacks."""
        for name in names:
            if getattr(self, name) is None:
                value = _SOURCES.get(name)
                hint = f"set it: `batch.with_({name}={value})`" if value else "pass the `batch` of `make_experience(…)`"
                raise ConfigError(f"the batch has no `{name}`, and {reader} needs it", hint=hint)

    def select(self, rows: Sequence[int]) -> Self:
        """A batch of the given rows, in that order, trimmed to their longest response."""
        index = torch.as_tensor(list(rows), dtype=torch.int64)
        width = max([1, *self.response_lengths[index].tolist()])
        changes: dict[str, Any] = {"prompt_ids": tuple(self.prompt_ids[i] for i in rows)}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                value = value[index]
                changes[item.name] = value[:, :width] if value.dim() == 2 else value
        return replace(self, **changes)

    def joined(self, other: Self) -> Self:
        """The rows of both, padded to the longest response. A field is None if both lack it.

        Rows of a batch without weights have the weight 1.
        """
        if (self.weights is None) != (other.weights is None):
            return self._with_weights().joined(other._with_weights())
        width = max(self.response_ids.shape[1], other.response_ids.shape[1])
        changes: dict[str, Any] = {"prompt_ids": self.prompt_ids + other.prompt_ids}
        for item in fields(self):
            mine, others = getattr(self, item.name), getattr(other, item.name)
            assert (mine is None) == (others is None), f"one of the batches has no {item.name}"
            if isinstance(mine, Tensor):
                both = [pad(part, (0, width - part.shape[1])) if part.dim() == 2 else part for part in (mine, others)]
                changes[item.name] = torch.cat(both)
        return replace(self, **changes)

    def _with_weights(self) -> Self:
        return self if self.weights is not None else replace(self, weights=self.response_mask.float())

    def sequence_lengths(self) -> list[int]:
        """Prompt plus response tokens of each row."""
        return [len(p) + n for p, n in zip(self.prompt_ids, self.response_lengths.tolist(), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """B responses with their prompts: as trajectories, as texts and as tensors, in the same order."""

    trajectories: tuple[Trajectory, ...]
    texts: tuple[str, ...]
    "each response as text, without special tokens"
    batch: Batch

    @classmethod
    def from_trajectories(cls, trajectories: Sequence[Trajectory], texts: Sequence[str]) -> Self:
        return cls(trajectories=tuple(trajectories), texts=tuple(texts), batch=Batch.from_trajectories(trajectories))

    def __len__(self) -> int:
        return len(self.trajectories)
