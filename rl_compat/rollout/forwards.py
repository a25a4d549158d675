"""The forward that decodes: this project's own over a model's weights, or the model's."""

from __future__ import annotations

import torch

from rl_compat.rollout.decoder import Forward
from rl_compat.rollout.decoder_spec import read_spec
from rl_compat.rollout.hf_forward import HuggingFaceForward
from rl_compat.rollout.kv_cache import SlotMemory
from rl_compat.rollout.own_forward import OwnForward
from rl_compat.rollout.weights import RolloutWeights


def forward_over(memory: SlotMemory, weights: RolloutWeights, *, own: bool, captured: bool) -> Forward:
    """Over the slots of the memory. `captured` says that decode steps are recorded in CUDA graphs.

    Raises UnknownDecoderError when `own` is asked for and the model is of no family described here.
    """
    if not own:
        return HuggingFaceForward(weights.model, memory, autocast_dtype=weights.autocast_dtype, captured=captured)
    spec = read_spec(weights.model)
    return OwnForward(
        spec,
        memory,
        projection=weights.projection,
        head=weights.projection((spec.head,), torch.float32),
        compute_dtype=weights.compute_dtype,
    )
