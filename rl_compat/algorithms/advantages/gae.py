"""Advantages along a response: token rewards, discounted returns, generalized advantage estimation and V-trace."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_compat.algorithms.masking import MAX_LOG_RATIO, at_least_float32, length_mask, whiten


class AdvantageEstimate(NamedTuple):
    """Advantages and returns, both [B, T] and 0 outside the mask."""

    advantages: Tensor
    returns: Tensor


def outcome_token_rewards(*, rewards: Tensor, response_lengths: Tensor, response_mask: Tensor) -> Tensor:
    """Token rewards [B, T] with the rewards [B] on the last token of each response.

    The last token is the last one within the length [B] and the mask [B, T]. A response without tokens gets no reward.
    """
    real = response_mask & length_mask(response_lengths, response_mask.shape[1])
    is_last = real & (real.flip(1).cumsum(1).flip(1) == 1)
    return at_least_float32(rewards)[:, None].expand(real.shape).masked_fill(~is_last, 0)


def add_kl_penalty(token_rewards: Tensor, kl: Tensor, *, coef: float, mask: Tensor) -> Tensor:
    """token_rewards [B, T] minus coef times kl [B, T] on the tokens of the mask [B, T]."""
    return at_least_float32(token_rewards) - coef * at_least_float32(kl).masked_fill(~mask, 0)


def gae(
    *, token_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, gae_lambda: float
) -> AdvantageEstimate:
    """Generalized advantage estimation over token_rewards, values and response_mask [B, T] (Schulman et al. 2016).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, where t + 1 is the next token of the
    mask. Tokens outside the mask are skipped. Advantages are not whitened. Returns are A + V.
    """
    token_rewards, values = at_least_float32(token_rewards), at_least_float32(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    reversed_advantages = []
    for t in reversed(range(values.shape[1])):
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        next_value = torch.where(response_mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(response_mask[:, t], advantage, next_advantage)
        reversed_advantages.append(next_advantage)
    advantages = torch.stack(reversed_advantages[::-1], dim=1)
    outside = ~response_mask
    return AdvantageEstimate(advantages.masked_fill(outside, 0), (advantages + values).masked_fill(outside, 0))


def discounted_returns(*, token_rewards: Tensor, response_mask: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1}, where t + 1 is the next token of the mask, [B, T]. 0 outside the mask."""
    rewards = at_least_float32(token_rewards).masked_fill(~response_mask, 0)
    running = torch.zeros_like(rewards[:, 0])
    reversed_returns = []
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(response_mask[:, t], rewards[:, t] + gamma * running, running)
        reversed_returns.append(running)
    return torch.stack(reversed_returns[::-1], dim=1).masked_fill(~response_mask, 0)


def reinforce_plus_plus(*, token_rewards: Tensor, response_mask: Tensor, gamma: float) -> AdvantageEstimate:
    """Discounted returns, whitened over the batch's response tokens (Hu et al. 2025, "REINFORCE++"), [B, T].

    Returns are not whitened.
    """
    returns = discounted_returns(token_rewards=token_rewards, response_mask=response_mask, gamma=gamma)
    return AdvantageEstimate(whiten(returns, mask=response_mask), returns)


def remax(*, token_rewards: Tensor, baselines: Tensor, response_mask: Tensor) -> AdvantageEstimate:
    """Reward-to-go minus the reward [B] of the greedy response to the same prompt (Li et al. 2023, "ReMax"), [B, T].

    Returns are the reward-to-go.
    """
    returns = discounted_returns(token_rewards=token_rewards, response_mask=response_mask, gamma=1.0)
    advantages = returns - at_least_float32(baselines)[:, None]
    return AdvantageEstimate(advantages.masked_fill(~response_mask, 0), returns)


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
