"""verl's keys of training that generates while it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rl_compat.verl.keys.rules import Given, Outcome, Rule, no_effect, other_than, refused, translated

MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
SYNC_EVERY = "async_training.trigger_parameter_sync_step"
MINI_BATCHES = "async_training.require_batches"


def _staleness(key: str, value: Any, given: Given) -> Outcome:
    """verl counts rows that start ahead as a fraction of those of a step."""
    if not isinstance(value, int | float) or value < 0:
        return refused("it is a number of at least 0")
    native = {"trainer.flow": "async", "trainer.max_staleness": math.ceil(value)}
    return translated(native, "steps by which generation may be ahead")


def _batch_size(key: str, value: Any, given: Given) -> Outcome:
    """Rows are learned from between two handovers of the weights, which is a step here."""
    mini_batch = given.get(MINI_BATCH, "trainer.mini_batch_size")
    rows = mini_batch * (given.get(SYNC_EVERY) or 1) * (given.get(MINI_BATCHES) or 1)
    native = {"trainer.batch_size": rows, "trainer.mini_batch_size": mini_batch}
    return translated(native, "rows between two handovers of weights")


def _partial(key: str, value: Any, given: Given) -> Outcome:
    return translated({"rollout.on_update": "continue" if value else "wait"}, "of unfinished responses")


def _rollout_logprobs(key: str, value: Any, given: Given) -> Outcome:
    bypass = bool(value) if key.endswith("use_rollout_log_probs") else not value
    return translated({"off_policy.bypass": bypass}, "whether the sampler's log-probabilities are the old ones")


def trainer_mode(key: str, value: Any, given: Given) -> Outcome:
    """`trainer.v1.trainer_mode`."""
    if value == "sync":
        return no_effect("generation takes turns with training")
    if value in ("colocate_async", "separate_async"):
        return translated({"trainer.flow": "async"}, "generation works while the actor learns")
    return refused("only `sync`, `colocate_async` and `separate_async` exist here")


ASYNC_TRAINING: Mapping[str, Rule] = {
    "async_training.staleness_threshold": _staleness,
    SYNC_EVERY: _batch_size,
    MINI_BATCHES: _batch_size,
    "async_training.partial_rollout": _partial,
    "async_training.use_rollout_log_probs": _rollout_logprobs,
    "async_training.compute_prox_log_prob": _rollout_logprobs,
    "async_training.recompute_old_log_prob": _rollout_logprobs,
    "async_training.*": other_than((), "`trainer.flow=async` has no such setting"),
}
