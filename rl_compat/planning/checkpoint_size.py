"""How large a run's checkpoints will be, known before a model is loaded."""

from __future__ import annotations

from rl_compat.capability.optimizers import STATE_BYTES
from rl_compat.config.types import ModelConfig
from rl_compat.planning.model_shape import ModelShape
from rl_compat.planning.types import Plan

FP32_BYTES = 4


def checkpoint_bytes(plan: Plan, model: ModelConfig, *, shape: ModelShape, critic_shape: ModelShape) -> int:
    """Weights and optimizer states of everything that is trained."""
    total = 0
    for role, own_shape in (("actor", shape), ("critic", critic_shape)):
        if role in plan.roles:
            per_parameter = FP32_BYTES + STATE_BYTES[plan.roles[role].optimizer]
            total += _num_trained(role, own_shape, model) * per_parameter
    return total


def _num_trained(role: str, shape: ModelShape, model: ModelConfig) -> int:
    """All parameters or the adapters'; a critic has a value head in place of the language-model head."""
    value_head = shape.hidden_size + 1 if role == "critic" else 0
    if model.lora_rank:
        return shape.lora_parameters(model.lora_rank, model.lora_targets) + value_head
    return shape.trunk_parameters + value_head if role == "critic" else shape.num_parameters
