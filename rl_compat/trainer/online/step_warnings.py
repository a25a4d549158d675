"""Warnings about steps that learn nothing or from wrong numbers, each once per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rl_compat.config.types import AlgorithmConfig
from rl_compat.trainer.loop import Collected
from rl_compat.units import counted

NEGATIVE_STEPS = 10
"steps in a row with a negative KL estimate; a few occur by chance"


class StepWarnings:
    """Looks at the steps of a run one after the other."""

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._estimators = {"actor/reward_kl_penalty": algorithm.kl_in_reward, "actor/kl_loss": algorithm.kl_loss}
        self._num_negative: Counter[str] = Counter()
        self._said: set[str] = set()

    def take_notes(self, step: int, collected: Collected, metrics: Mapping[str, float]) -> list[str]:
        """The warnings that are new with a step, which has these metrics."""
        found = dict([*self._about_data(step, collected), *self._about_kl(metrics)])
        new = {kind: note for kind, note in found.items() if kind not in self._said}
        self._said |= new.keys()
        return list(new.values())

    def _about_data(self, step: int, collected: Collected) -> Iterator[tuple[str, str]]:
        """At most one kind of warning with its text."""
        experience, sampling = collected.experience, collected.metrics
        mask, advantages = experience.batch.response_mask, experience.batch.advantages
        assert advantages is not None
        num_tokens, num_responses = int(mask.sum()), counted(len(collected.sequences), "response")
        if empty_fraction(collected) == 1.0:
            yield (
                "empty",
                f"all {num_responses} of step {step} are empty, the model ends at once: such a step learns nothing; "
                "look at the samples of the run, the chat template and the end tokens",
            )
        elif num_tokens <= 1:
            yield (
                "tokens",
                f"step {step} has {counted(num_tokens, 'token')} to learn from in {num_responses}: "
                "the others have no reward or are left out; such a step learns nothing",
            )
        elif sampling.get("training/filter_groups/kept_prompts") == 0.0:
            prompts = int(sampling["training/filter_groups/sampled_prompts"])
            rounds = int(sampling["training/num_gen_batches"])
            yield (
                "spread",
                f"no prompt had two different rewards, of {counted(prompts, 'prompt')} in {counted(rounds, 'round')}: "
                "such a step learns nothing; try easier or harder prompts, a finer reward or a larger "
                "`algorithm.group_size`",
            )
        elif not bool(advantages[mask].any()):
            yield (
                "advantages",
                f"every advantage of step {step} is 0, so it learns nothing: the responses to each prompt have equal "
                "rewards; try easier or harder prompts, or a finer reward",
            )

    def _about_kl(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        for name, kind in self._estimators.items():
            if name not in metrics:
                continue
            self._num_negative[name] = self._num_negative[name] + 1 if metrics[name] < 0 else 0
            if self._num_negative[name] == NEGATIVE_STEPS:
                yield (
                    name,
                    f"`{name}`, the KL by the estimator `{kind}`, is negative for {NEGATIVE_STEPS} steps, last "
                    f"{metrics[name]:.3g}: a KL divergence is never below 0, so the penalty is a bonus, and the "
                    "responses are not drawn from the policy whose probabilities are compared (`rollout.top_p`, "
                    "`rollout.top_k`, `rollout.min_p`, another precision); `k3` is never negative",
                )


def empty_fraction(collected: Collected) -> float:
    """The fraction of responses without text."""
    texts = collected.sequences.texts
    return sum(not text.strip() for text in texts) / len(texts)
