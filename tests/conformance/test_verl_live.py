"""verl's own functions as an oracle: random inputs, the same numbers to 1e-6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conformance.verl_oracle import UNEVEN, WHOLE, Draw, draw, verl_module
from fakes.part_settings import estimator_settings
from fakes.verl_settings import load_config
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.estimators import ESTIMATORS, AdvantageInputs
from rl_compat.algorithms.kl import KLController, kl_estimate
from rl_compat.algorithms.losses.policy import POLICY_LOSSES, aggregate
from rl_compat.algorithms.losses.types import PolicyLossInputs, PolicyLossNumbers
from rl_compat.algorithms.losses.value import value_loss
from rl_compat.algorithms.off_policy.importance import importance_weights, mismatch_metrics
from rl_compat.algorithms.off_policy.rejection import rejection_mask
from rl_compat.algorithms.off_policy.rejection_rules import RULE_NAMES, parse_rejection_rules
from rl_compat.algorithms.table import LOSS_READS
from rl_compat.verl.keys.policy import ESTIMATORS as VERLS_ESTIMATORS
from rl_compat.verl.keys.policy import LOSSES as VERLS_LOSSES
from rl_compat.verl.keys.policy import OWN_AGGREGATION
from rl_compat.verl.keys.rules import KL_NAMES

pytestmark = pytest.mark.slow

SEEDS = range(5)
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
A, C = "actor_rollout_ref.actor", "algorithm.rollout_correction"
PARTS = ("correct", "format")


@pytest.fixture(scope="module")
def core() -> Any:
    return verl_module("verl.trainer.ppo.core_algos")


@pytest.fixture(scope="module")
def correction() -> Any:
    return verl_module("verl.trainer.ppo.rollout_corr_helper")


def close(ours: Tensor, verls: Any) -> None:
    assert_close(ours.detach().double(), torch.as_tensor(verls).detach().double(), atol=1e-6, rtol=1e-6)


def test_the_version_is_one_whose_keys_are_known() -> None:
    version = verl_module("verl").__version__

    print(f"verl {version}")
    assert tuple(int(part) for part in version.split(".")[:2]) >= (0, 9)


def test_every_estimator_and_loss_of_verls_has_a_name_here(core: Any) -> None:
    assert set(VERLS_ESTIMATORS) == {estimator.value for estimator in core.AdvantageEstimator}
    assert set(VERLS_LOSSES) | {"bypass_mode"} == set(core.POLICY_LOSS_REGISTRY)


def estimator_arguments(name: str, drawn: Draw) -> dict[str, Any]:
    """What verl's trainer hands to an estimator."""
    shared: dict[str, Any] = {"token_level_rewards": drawn.token_rewards, "response_mask": drawn.mask.double()}
    if name == "gae":
        return {**shared, "values": drawn["values"], "gamma": 0.98, "lam": 0.9}
    if name == "reinforce_plus_plus":
        return {**shared, "config": SimpleNamespace(gamma=0.98)}
    if name == "remax":
        return {**shared, "reward_baselines": drawn["values"][:, 0]}
    if name.endswith("optimal_token_baseline"):
        policy = {"old_log_probs": drawn["old_logprobs"], "sum_pi_squared": drawn["sum_pi_squared"]}
        return {**shared, **policy, "index": drawn.index, "rollout_is_weights": drawn["weights"]}
    if name == "grpo_passk":
        return {**shared, "index": drawn.index, "config": {"norm_adv_by_std_in_grpo": True}}
    if name == "gdpo":
        return {**shared, "index": drawn.index, **gdpo_arguments(drawn)}
    return {**shared, "index": drawn.index}


def gdpo_arguments(drawn: Draw) -> dict[str, Any]:
    parts = {"correct": drawn.rewards.numpy(), "format": drawn["advantages"][:, 0].numpy()}
    width = drawn.mask.shape[1]
    last = drawn.mask.long().cumsum(1).argmax(1)
    attention = torch.arange(width)[None, :] <= last[:, None]
    batch = {"prompts": torch.zeros(len(last), 1), "attention_mask": torch.cat([attention[:, :1], attention], 1).long()}
    config = {"gdpo_reward_keys": list(PARTS), "gdpo_reward_weights": [1.0, 0.5]}
    return {"config": config, "non_tensor_batch": parts, "batch": batch}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", sorted(VERLS_ESTIMATORS))
def test_an_estimator_gives_the_advantages_and_returns_of_verls(name: str, seed: int, core: Any) -> None:
    """Outside the mask ours are 0, where verl's GAE keeps a whitened leftover.

    The estimators that refuse or treat a group of one in their own way are drawn without one.
    """
    drawn = draw(seed, sizes=WHOLE if name in ("grpo_passk", "rloo_vectorized") else UNEVEN)
    advantages, returns = core.get_adv_estimator_fn(name)(**estimator_arguments(name, drawn))

    ours = ESTIMATORS[VERLS_ESTIMATORS[name]](
        AdvantageInputs(
            token_rewards=drawn.token_rewards,
            rewards=drawn.rewards,
            response_mask=drawn.mask,
            groups=drawn.groups,
            values=drawn["values"],
            baselines=drawn["values"][:, 0],
            logprobs=drawn["old_logprobs"],
            sum_pi_squared=drawn["sum_pi_squared"],
            importance=drawn["weights"],
            reward_parts={"correct": drawn.rewards, "format": drawn["advantages"][:, 0]},
            part_weights={"correct": 1.0, "format": 0.5},
            **estimator_settings(gamma=0.98, gae_lambda=0.9),
        )
    )

    close(ours.advantages[drawn.mask], advantages[drawn.mask])
    close(ours.returns[drawn.mask], returns[drawn.mask])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "grpo_passk"])
def test_estimators_without_the_spread_give_those_of_verls(name: str, seed: int, core: Any) -> None:
    drawn = draw(seed, sizes=WHOLE)
    config = verl_module("verl.trainer.config.algorithm").AlgoConfig(norm_adv_by_std_in_grpo=False)
    arguments = {**estimator_arguments(name, drawn), "norm_adv_by_std_in_grpo": False, "config": config}
    advantages, _ = core.get_adv_estimator_fn(name)(**arguments)

    ours = ESTIMATORS[VERLS_ESTIMATORS[name]](
        AdvantageInputs(
            token_rewards=drawn.token_rewards,
            rewards=drawn.rewards,
            response_mask=drawn.mask,
            groups=drawn.groups,
            **estimator_settings(normalize_by_std=False),
        )
    )

    close(ours.advantages[drawn.mask], advantages[drawn.mask])


NUMBERS: Mapping[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.15,
    "clip_ratio_high": 0.28,
    "clip_ratio_c": 2.5,
    "tau_pos": 1.2,
    "tau_neg": 1.4,
}
LOSS_NUMBERS: Mapping[str, Any] = {
    "clip_cov_ratio": 0.1,
    "clip_cov_lb": -0.5,
    "clip_cov_ub": 2.0,
    "kl_cov_ratio": 0.1,
    "ppo_kl_coef": 0.3,
    "dro_beta": 0.2,
}


def actor_config(**correction: Any) -> Any:
    """verl's configuration of the actor with the numbers above."""
    config = verl_module("verl.workers.config")
    algorithm = verl_module("verl.trainer.config.algorithm")
    policy_loss = config.PolicyLossConfig(
        **LOSS_NUMBERS, rollout_correction=algorithm.RolloutCorrectionConfig(**correction)
    )
    return config.ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **NUMBERS
    )


def numbers_of(name: str) -> tuple[str, PolicyLossNumbers]:
    """Our loss and its numbers, by way of verl's keys."""
    keys = [f"{A}.{key}={value}" for key, value in NUMBERS.items()]
    keys += [f"{A}.policy_loss.{key}={value}" for key, value in LOSS_NUMBERS.items()]
    algorithm = load_config(None, [*keys, f"{A}.policy_loss.loss_mode={name}"]).config.algorithm
    keys = {key for reads in LOSS_READS.values() for key in reads}
    numbers = PolicyLossNumbers(**{key.replace(".", "_"): attrgetter(key)(algorithm) for key in keys})
    return algorithm.policy_loss, numbers


def loss_and_gradient(loss: Callable[[Tensor], Tensor], logprobs: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = logprobs.clone().requires_grad_()
    value = loss(logprobs)
    value.backward()
    assert logprobs.grad is not None
    return value, logprobs.grad


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [False, True], ids=["alone", "weighted"])
@pytest.mark.parametrize("name", sorted(VERLS_LOSSES))
def test_a_policy_loss_has_the_value_the_gradient_and_the_counts_of_verls(
    name: str, weights: bool, seed: int, core: Any
) -> None:
    """`clip_cov` draws tokens from the global generator there: they are read off its gradient and given to ours."""
    drawn, config = draw(seed), actor_config()
    given = drawn["weights"] if weights else None
    mask, metrics = drawn.mask.double(), dict[str, Any]()

    def verls(logprobs: Tensor) -> Tensor:
        value, found = core.get_policy_loss_fn(name)(
            drawn["old_logprobs"], logprobs, drawn["advantages"], mask, rule.aggregation, config, given
        )
        metrics.update(found)
        return value

    native, numbers = numbers_of(name)
    rule = POLICY_LOSSES[native]
    torch.manual_seed(seed)
    expected, expected_gradient = loss_and_gradient(verls, drawn["logprobs"])

    def inputs(logprobs: Tensor, selection: Tensor | None = None) -> PolicyLossInputs:
        return PolicyLossInputs(
            logprobs=logprobs,
            old_logprobs=drawn["old_logprobs"],
            advantages=drawn["advantages"],
            response_mask=drawn.mask,
            weights=given,
            selection=selection,
            numbers=numbers,
        )

    selection = rule.select(inputs(drawn["logprobs"]), 0) if rule.select else None
    if name == "clip_cov":
        selection = chosen_by_verl(inputs(drawn["logprobs"]), expected_gradient)
    counts: dict[str, Tensor] = {}

    def ours(logprobs: Tensor) -> Tensor:
        loss = rule.loss(inputs(logprobs, selection))
        counts.update(clipped=loss.num_clipped, lower=loss.num_clipped_lower, kl=loss.sum_kl)
        return aggregate(
            loss.losses,
            mask=drawn.mask,
            mode=rule.aggregation,
            num_tokens=int(drawn.mask.sum()),
            num_sequences=len(drawn.mask),
            width=drawn.mask.shape[1],
        )

    value, gradient = loss_and_gradient(ours, drawn["logprobs"])

    close(value, expected)
    close(gradient[drawn.mask], expected_gradient[drawn.mask])
    for key, count in {"pg_clipfrac": "clipped", "pg_clipfrac_lower": "lower", "ppo_kl": "kl"}.items():
        if f"actor/{key}" in metrics:
            close(counts[count] / drawn.mask.sum(), metrics[f"actor/{key}"])


def chosen_by_verl(inputs: PolicyLossInputs, gradient: Tensor) -> Tensor:
    """The tokens whose gradient verl's `clip_cov` set to 0 though the clip did not."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    bounded = ratio.clamp(1 - inputs.numbers.clip_low, 1 + inputs.numbers.clip_high)
    stopped = -inputs.advantages * bounded > -inputs.advantages * ratio
    return (gradient == 0) & inputs.response_mask & ~stopped


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_an_aggregation_is_that_of_verls_for_whole_batches_and_parts_of_them(mode: Any, seed: int, core: Any) -> None:
    drawn = draw(seed)
    losses, mask = drawn["advantages"], drawn.mask
    tokens, rows, width = int(mask.sum()), len(mask), mask.shape[1]

    def ours(part: slice) -> Tensor:
        counts = {"num_tokens": tokens, "num_sequences": rows, "width": width}
        return aggregate(losses[part], mask=mask[part], mode=mode, **counts)

    def verls(part: slice, **counts: int) -> Tensor:
        return core.agg_loss(losses[part], mask[part].double(), mode, **counts)

    close(ours(slice(None)), verls(slice(None)))
    for part in (slice(0, 5), slice(5, 12)):
        close(ours(part), verls(part, batch_num_tokens=tokens, global_batch_size=rows))


@pytest.mark.parametrize("mode", sorted(OWN_AGGREGATION))
def test_the_losses_with_an_average_of_their_own_have_it_in_verl_too(mode: str, core: Any) -> None:
    drawn, config = draw(1), actor_config()
    arguments = (drawn["old_logprobs"], drawn["logprobs"], drawn["advantages"], drawn.mask.double())

    losses = [core.get_policy_loss_fn(mode)(*arguments, asked, config)[0] for asked in MODES]

    for loss in losses:
        close(loss, losses[0])
    assert POLICY_LOSSES[VERLS_LOSSES[mode]].aggregation == OWN_AGGREGATION[mode]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize("name", sorted(KL_NAMES))
def test_a_kl_estimate_has_the_value_and_the_gradient_of_verls(name: str, plus: str, seed: int, core: Any) -> None:
    drawn = draw(seed, spread=3.0)
    kind: Any = KL_NAMES[name] + plus

    def verls(logprobs: Tensor) -> Tensor:
        return core.kl_penalty(logprobs, drawn["ref_logprobs"], name + plus).sum()

    def ours(logprobs: Tensor) -> Tensor:
        return kl_estimate(kind, logprobs=logprobs, ref_logprobs=drawn["ref_logprobs"]).sum()

    for found, expected in zip(
        loss_and_gradient(ours, drawn["logprobs"]), loss_and_gradient(verls, drawn["logprobs"]), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_adaptive_coefficient_moves_as_in_verl(seed: int, core: Any) -> None:
    verls = core.AdaptiveKLController(init_kl_coef=0.2, target_kl=0.1, horizon=1000)
    ours = KLController(coef=0.2, target=0.1, horizon=1000)

    for kl in draw(seed)["values"][:, 0].abs().tolist():
        verls.update(current_kl=kl, n_steps=64)
        ours.update(kl=kl, num_sequences=64)

        assert ours.coef == pytest.approx(verls.value, abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_the_loss_of_the_critic_is_verls(mode: Any, seed: int, core: Any) -> None:
    drawn = draw(seed)
    expected, fraction = core.compute_value_loss(
        vpreds=drawn["values"],
        returns=drawn["returns"],
        values=drawn["old_values"],
        response_mask=drawn.mask.double(),
        cliprange_value=0.3,
        loss_agg_mode=mode,
    )

    loss = value_loss(
        values=drawn["values"],
        old_values=drawn["old_values"],
        returns=drawn["returns"],
        response_mask=drawn.mask,
        clip_value=0.3,
    )
    tokens, rows, width = int(drawn.mask.sum()), len(drawn.mask), drawn.mask.shape[1]

    close(
        aggregate(loss.losses, mask=drawn.mask, mode=mode, num_tokens=tokens, num_sequences=rows, width=width), expected
    )
    close(loss.num_clipped / drawn.mask.sum(), fraction)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalized"])
@pytest.mark.parametrize("threshold", ["2.0", "0.5_3.0"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_are_verls_by_way_of_its_keys(
    level: str, threshold: str, normalize: bool, seed: int, correction: Any
) -> None:
    drawn = draw(seed)
    verls, _, metrics = correction.compute_rollout_correction_and_rejection_mask(
        drawn["old_logprobs"],
        drawn["rollout_logprobs"],
        drawn.mask.double(),
        rollout_is=level,
        rollout_is_threshold=threshold,
        rollout_is_batch_normalize=normalize,
    )
    keys = {"rollout_is": level, "rollout_is_threshold": threshold, "rollout_is_batch_normalize": normalize}
    off_policy = load_config(None, [f"{C}.{key}={value}" for key, value in keys.items()]).config.off_policy

    assert off_policy.importance != "none"
    ours = importance_weights(
        old_logprobs=drawn["old_logprobs"],
        rollout_logprobs=drawn["rollout_logprobs"],
        response_mask=drawn.mask,
        level=off_policy.importance,
        truncate=off_policy.truncate,
        band=off_policy.band,
        normalize=off_policy.normalize,
    )

    close(ours.weights[drawn.mask], verls.batch["rollout_is_weights"][drawn.mask])
    same_metrics(ours.metrics, metrics)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [*RULE_NAMES, "token_k1,seq_mean_k3"])
def test_rejection_is_verls_by_way_of_its_keys(name: str, seed: int, correction: Any) -> None:
    drawn = draw(seed, spread=0.3)
    bounds = ",".join("0.7_1.5" if part.endswith("k1") else "0.2" for part in name.split(","))
    _, mask, metrics = correction.compute_rollout_correction_and_rejection_mask(
        drawn["old_logprobs"],
        drawn["rollout_logprobs"],
        drawn.mask.double(),
        rollout_rs=name,
        rollout_rs_threshold=bounds,
    )
    keys = [f"{C}.rollout_rs='{name}'", f"{C}.rollout_rs_threshold='{bounds}'"]

    ours = rejection_mask(
        old_logprobs=drawn["old_logprobs"],
        rollout_logprobs=drawn["rollout_logprobs"],
        response_mask=drawn.mask,
        rules=parse_rejection_rules(load_config(None, keys).config.off_policy.reject),
    )

    assert torch.equal(ours.mask, mask.bool())
    same_metrics(ours.metrics, metrics)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_the_bypass_of_the_old_policy_is_verls(loss_type: str, seed: int, core: Any) -> None:
    """There the weights are those of the policy as it is in the update, here given to the loss the same way."""
    drawn, sampler = draw(seed, spread=0.3), draw(seed)["old_logprobs"]
    setting = {"rollout_is": "token", "rollout_rs": "token_k3", "rollout_rs_threshold": "0.2"}
    config = actor_config(bypass_mode=True, loss_type=loss_type, **setting)

    def verls(logprobs: Tensor) -> Tensor:
        mask = drawn.mask.double()
        return core.get_policy_loss_fn("bypass_mode")(
            sampler, logprobs, drawn["advantages"], mask, "token-mean", config
        )[0]

    keys = [f"{C}.{key}={value}" for key, value in {**setting, "bypass_mode": True, "loss_type": loss_type}.items()]
    settings = load_config(None, [*keys, *(f"{A}.{key}={value}" for key, value in NUMBERS.items())]).config
    pair = {"old_logprobs": drawn["logprobs"], "rollout_logprobs": sampler}
    rules = parse_rejection_rules(settings.off_policy.reject)
    mask = rejection_mask(**pair, response_mask=drawn.mask, rules=rules).mask
    level, weights = settings.off_policy.importance, None
    if level != "none":
        bound = settings.off_policy.truncate
        weights = importance_weights(**pair, response_mask=drawn.mask, level=level, truncate=bound).weights

    def ours(logprobs: Tensor) -> Tensor:
        inputs = PolicyLossInputs(
            logprobs=logprobs,
            old_logprobs=sampler,
            advantages=drawn["advantages"],
            response_mask=mask,
            weights=weights,
            numbers=numbers_of("vanilla")[1],
        )
        losses = POLICY_LOSSES[settings.algorithm.policy_loss].loss(inputs).losses
        return aggregate(losses, mask=mask, mode="token-mean", num_tokens=int(mask.sum()), num_sequences=len(mask))

    assert (level == "none") == (loss_type == "ppo_clip")
    for found, expected in zip(
        loss_and_gradient(ours, drawn["logprobs"]), loss_and_gradient(verls, drawn["logprobs"]), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_logged_of_the_mismatch_is_verls(seed: int, correction: Any) -> None:
    drawn = draw(seed)
    verls = correction.compute_offpolicy_metrics(drawn["old_logprobs"], drawn["rollout_logprobs"], drawn.mask.double())
    ours = mismatch_metrics(
        old_logprobs=drawn["old_logprobs"], rollout_logprobs=drawn["rollout_logprobs"], response_mask=drawn.mask
    )

    same_metrics(ours, verls)


def same_metrics(ours: Mapping[str, float], verls: Mapping[str, Any]) -> None:
    """Every metric that both have is the same, and there are some."""
    found = {name.removeprefix("rollout_corr/"): float(value) for name, value in verls.items()}
    shared = {name.removeprefix("rollout_corr/"): value for name, value in ours.items()}
    common = set(found) & set(shared)

    assert common
    for name in sorted(common):
        assert shared[name] == pytest.approx(found[name], abs=1e-5, rel=1e-5), name
