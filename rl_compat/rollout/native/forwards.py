"""The decoder of an engine: this project's own forward over a model's weights, or the model's."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor

from rl_compat.rollout.draws import plain_draw
from rl_compat.rollout.kernels.choice import chosen_ops, step_size
from rl_compat.rollout.linears.adapted_projection import AdaptedProjection
from rl_compat.rollout.linears.projections import Projection, SharedProjection
from rl_compat.rollout.linears.small_batch_linear import small_batch_linear_on
from rl_compat.rollout.native.cuda_graphs import StepGraphs
from rl_compat.rollout.native.decoder import SlotDecoder
from rl_compat.rollout.native.decoder_spec import read_spec
from rl_compat.rollout.native.hf_forward import HuggingFaceForward
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.native.own_forward import OwnForward
from rl_compat.rollout.weights import RolloutWeights


def decoder_over(
    memory: SlotMemory,
    weights: RolloutWeights,
    *,
    own: bool,
    num_valid_tokens: int | None = None,
    graphs: StepGraphs | None = None,
    kernel_architecture: str | None = None,
) -> SlotDecoder:
    """A decoder over the slots. Raises UnknownDecoderError with `own` for a model of an unknown family."""
    device = weights.model.get_input_embeddings().weight.device
    if not own:
        theirs = HuggingFaceForward(
            weights.model, memory, autocast_dtype=weights.autocast_dtype, captured=graphs is not None
        )
        return SlotDecoder(theirs, memory, device=device, num_valid_tokens=num_valid_tokens, graphs=graphs)
    spec, compute = read_spec(weights.model), weights.compute_dtype
    size = step_size(spec, rows=memory.num_slots, capacity=memory.capacity, compute=compute)
    ops, draw = chosen_ops(spec, size, architecture=kernel_architecture) or (None, plain_draw)
    head = weights.projection((spec.head,), torch.float32)
    ours = OwnForward(spec, memory, projection=weights.projection, head=head, compute_dtype=compute, ops=ops)
    for group in ours.projections:
        _speed_up(group, device, kernel_architecture)
    return SlotDecoder(ours, memory, device=device, num_valid_tokens=num_valid_tokens, graphs=graphs, draw=draw)


def _speed_up(projections: Sequence[Projection], device: torch.device, architecture: str | None) -> None:
    """Give layers of one shape the products for small batches, which hold them weakly, so that sleep frees them."""
    bases = [one.base if isinstance(one, AdaptedProjection) else one for one in projections]
    shared = [base for base in bases if isinstance(base, SharedProjection)]
    references = [ref(one) for one in shared]

    def weights() -> list[Tensor]:
        alive = [one for one in (reference() for reference in references) if one is not None]
        return [weight for weight in (one.whole_weight() for one in alive) if weight is not None]

    product = small_batch_linear_on(device, weights, architecture=architecture)
    for one in shared:
        one.small_batch = product
