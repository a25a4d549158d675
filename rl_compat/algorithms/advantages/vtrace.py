"""V-trace: off-policy returns and advantages with a critic."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_compat.algorithms.advantages.gae import AdvantageEstimate
from rl_compat.algorithms.precision import MAX_LOG_RATIO, at_least_float32


def vtrace(
    *,
    token_rewards: Tensor,
    values: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    response_mask: Tensor,
    gamma: float,
    gae_lambda: float = 1.0,
    max_rho: float = 1.0,
    max_c: float = 1.0,
) -> AdvantageEstimate:
    """V-trace over responses, all [B, T] (Espeholt et al. 2018, "IMPALA", section 4.1).

    With ratio = exp(old_logprobs - rollout_logprobs), the current policy over the one that sampled,
    rho = min(max_rho, ratio) and c = gae_lambda min(max_c, ratio): returns v_t = V_t + delta_t + gamma c_t (v_{t+1} -
    V_{t+1}) with delta_t = rho_t (r_t + gamma V_{t+1} - V_t), and advantages rho_t (r_t + gamma v_{t+1} - V_t). t + 1
    is the next token of the mask, and v and V are 0 after the last. Results are 0 outside the mask and not whitened.
    """
    outside = ~response_mask
    token_rewards, values, difference = (
        at_least_float32(x).detach().masked_fill(outside, 0)
        for x in (token_rewards, values, at_least_float32(old_logprobs) - at_least_float32(rollout_logprobs))
    )
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    rho, c = ratio.clamp(max=max_rho), gae_lambda * ratio.clamp(max=max_c)
    next_value = next_return = torch.zeros_like(values[:, 0])
    returns, advantages = torch.zeros_like(values), torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        inside = response_mask[:, t]
        delta = rho[:, t] * (token_rewards[:, t] + gamma * next_value - values[:, t])
        advantages[:, t] = rho[:, t] * (token_rewards[:, t] + gamma * next_return - values[:, t])
        returns[:, t] = values[:, t] + delta + gamma * c[:, t] * (next_return - next_value)
        next_value = torch.where(inside, values[:, t], next_value)
        next_return = torch.where(inside, returns[:, t], next_return)
    return AdvantageEstimate(advantages.masked_fill(outside, 0), returns.masked_fill(outside, 0))
