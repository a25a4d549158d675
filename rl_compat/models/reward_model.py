"""A reward model: one number for a conversation, read at its last token, independent of the padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_compat.models.load import load_sequence_classifier
from rl_compat.planning.types import RolePlan


class RewardNetwork(nn.Module):
    """Token ids [B, L], padded on the right, with lengths [B], to rewards [B] in fp32.

    The reward of a decoder is read at position `length - 1`. The lengths are an argument because the pad token may be
    missing or equal to the end token. Encoders use their own pooling and the attention mask.
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier
        self.reads_last_token = isinstance(getattr(classifier, "score", None), nn.Linear)

    @property
    def max_length(self) -> int | None:
        """The longest input of the model in tokens, None if its config does not say."""
        config: Any = self.classifier.config
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        return int(longest) if isinstance(longest, int) and longest > 0 else None

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        model: Any = self.classifier
        inside = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths[:, None]
        mask = None if bool(inside.all()) else inside.long()
        if not self.reads_last_token:
            return model(input_ids=input_ids, attention_mask=mask).logits[:, 0].float()  # type: ignore[no-any-return]
        hidden = model.base_model(input_ids=input_ids, attention_mask=mask, use_cache=False)[0]
        last = hidden[torch.arange(len(lengths), device=hidden.device), lengths - 1]
        return model.score(last)[:, 0].float()  # type: ignore[no-any-return]


def load_reward_model(folder: Path, *, role: RolePlan, trust_remote_code: bool = False) -> RewardNetwork:
    """The frozen reward model in a folder, on the device of the role. Raises ModelError."""
    return RewardNetwork(load_sequence_classifier(folder, role=role, trust_remote_code=trust_remote_code)).eval()
