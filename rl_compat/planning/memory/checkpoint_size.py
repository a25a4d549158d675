"""How large a run's checkpoints will be, known before a model is loaded."""

from __future__ import annotations

from rl_compat.capability.optimizers import STATE_BYTES
from rl_compat.config.types import ModelConfig
from rl_compat.planning.memory.request import CRITIC_ROLES
from rl_compat.planning.shapes.shape import ModelShape
from rl_compat.planning.types import Plan

FP32_BYTES = 4


def checkpoint_bytes(
    plan: Plan, model: ModelConfig, *, shape: ModelShape, critic_shape: ModelShape, scores: bool = False
) -> int:
    """Weights and optimizer states of everything that is trained; with `scores` the actor is a reward model."""
    headless = (*CRITIC_ROLES, "actor") if scores else CRITIC_ROLES
    total = 0
    for role, own_shape in (("actor", shape), *((role, critic_shape) for role in CRITIC_ROLES)):
        if role in plan.roles:
            per_parameter = FP32_BYTES + STATE_BYTES[plan.roles[role].optimizer]
            total += _num_trained(own_shape, model, is_headless=role in headless) * per_parameter
    return total


def _num_trained(shape: ModelShape, model: ModelConfig, *, is_headless: bool) -> int:
    """All parameters or the adapters'; a headless model has one number in place of the language-model head."""
    value_head = shape.hidden_size + 1 if is_headless else 0
    if model.lora_rank:
        return shape.lora_parameters(model.lora_rank, model.lora_targets) + value_head
    return shape.trunk_parameters + value_head if is_headless else shape.num_parameters
