from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.group import (
    gdpo,
    gpg,
    group_statistics,
    group_sums,
    grpo,
    grpo_passk,
    opo,
    optimal_token_baseline,
    reinforce_plus_plus_baseline,
    rloo,
    tir_optimal_token_baseline,
    zero_spread_fraction,
)
from rl_compat.algorithms.masking import length_mask

NAN = float("nan")
ROOT_HALF = math.sqrt(0.5)


def lengths_mask(*lengths: int) -> Tensor:
    return torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]


def rows_of(estimate, mask: Tensor) -> list[float]:
    """The one advantage of each row, which all its tokens share; 0 outside the mask."""
    first = estimate.advantages[:, 0]
    assert torch.equal(estimate.advantages, torch.where(mask, first[:, None], 0.0))
    assert torch.equal(estimate.returns, estimate.advantages)
    return first.tolist()


def case(rewards: list[float], groups: list[int], *lengths: int) -> dict[str, Tensor]:
    mask = lengths_mask(*(lengths or [1] * len(rewards)))
    return {"rewards": torch.tensor(rewards), "groups": torch.tensor(groups), "response_mask": mask}


@pytest.mark.parametrize(
    ("name", "estimator", "settings"),
    [
        ("rloo", rloo, {}),
        ("rloo_vectorized", rloo, {}),
        ("opo", opo, {}),
        ("gpg", gpg, {}),
        ("grpo_passk", grpo_passk, {"normalize_by_std": True}),
        ("reinforce_plus_plus_baseline", reinforce_plus_plus_baseline, {}),
    ],
)
def test_matches_the_golden_advantages(golden, name, estimator, settings):
    estimate = estimator(
        rewards=(golden.input("token_rewards") * golden.mask).sum(1),
        groups=golden.groups,
        response_mask=golden.mask,
        **settings,
    )

    for part in ("advantages", "returns"):
        assert_close(getattr(estimate, part), golden.output("advantages", name, part), atol=1e-6, rtol=0)


def test_gdpo_of_one_reward_matches_the_golden_advantages(golden):
    estimate = gdpo(
        reward_parts={"only": (golden.input("token_rewards") * golden.mask).sum(1)},
        weights={"only": 1.0},
        groups=golden.groups,
        response_mask=golden.mask,
    )

    assert_close(estimate.advantages, golden.output("advantages", "gdpo", "advantages"), atol=1e-6, rtol=0)


class TestRLOO:
    def test_every_reward_is_compared_with_the_mean_of_the_others(self, responses):
        """Equation of Ahmadian et al. as a loop."""
        expected = []
        for row, group in enumerate(responses.groups.tolist()):
            others = [r for i, r in enumerate(responses.rewards.tolist()) if i != row and responses.groups[i] == group]
            expected.append(responses.rewards[row].item() - sum(others) / len(others))

        estimate = rloo(rewards=responses.rewards, groups=responses.groups, response_mask=responses.mask)

        expected = torch.tensor(expected, dtype=torch.float64)[:, None]
        assert_close(estimate.advantages, torch.where(responses.mask, expected, 0.0))

    def test_hand_worked(self):
        inputs = case([1.0, 0.0, 0.0, 4.0], [0, 0, 0, 1])

        assert rows_of(rloo(**inputs), inputs["response_mask"]) == [1.0, -0.5, -0.5, 4.0]


class TestOPO:
    def test_the_baseline_weighs_rewards_by_length(self):
        """(3 * 1 + 1 * 0) / 4 = 0.75; the group of one keeps its reward."""
        inputs = case([1.0, 0.0, 5.0], [0, 0, 1], 3, 1, 2)

        assert rows_of(opo(**inputs), inputs["response_mask"]) == [0.25, -0.75, 5.0]

    def test_equal_rewards_of_unequal_length_give_exactly_zero(self):
        inputs = case([0.1, 0.1, 0.1], [0, 0, 0], 7, 3, 11)

        assert rows_of(opo(**inputs), inputs["response_mask"]) == [0, 0, 0]

    def test_a_group_of_empty_responses_is_defined(self):
        estimate = opo(rewards=torch.ones(2), groups=torch.zeros(2).long(), response_mask=torch.zeros(2, 3).bool())

        assert estimate.advantages.tolist() == [[0, 0, 0], [0, 0, 0]]


class TestGPG:
    def test_scales_by_the_share_of_rows_with_a_reward(self):
        """4 rows, 2 of them with a nonzero reward: alpha is 2."""
        inputs = case([1.0, 0.0, 0.0, 3.0], [0, 0, 1, 1])

        assert rows_of(gpg(**inputs), inputs["response_mask"]) == [1, -1, -3, 3]

    def test_no_reward_anywhere_gives_zero(self):
        inputs = case([0.0, 0.0], [0, 0])

        assert rows_of(gpg(**inputs), inputs["response_mask"]) == [0, 0]

    def test_an_unscored_row_counts_in_neither_number(self):
        inputs = case([1.0, 0.0, NAN], [0, 0, 0])

        estimate = gpg(**inputs, scored=torch.tensor([True, True, False]))

        assert rows_of(estimate, inputs["response_mask"]) == [1, -1, 0]


class TestPassK:
    def test_only_the_best_learns_by_its_lead(self):
        inputs = case([1.0, 5.0, 4.5, 2.0, 7.0], [0, 1, 1, 0, 1])

        estimate = grpo_passk(**inputs, normalize_by_std=False)

        assert rows_of(estimate, inputs["response_mask"]) == [0, 0, 0, 1, 2]

    def test_the_lead_is_divided_by_the_spread_of_the_group(self):
        inputs = case([1.0, 2.0], [0, 0])

        estimate = grpo_passk(**inputs, normalize_by_std=True)

        assert rows_of(estimate, inputs["response_mask"]) == pytest.approx([0, 1 / (ROOT_HALF + 1e-6)])

    def test_equal_bests_and_a_group_of_one_get_nothing(self):
        inputs = case([3.0, 3.0, 1.0, 8.0], [0, 0, 0, 1])

        assert rows_of(grpo_passk(**inputs, normalize_by_std=True), inputs["response_mask"]) == [0, 0, 0, 0]

    def test_an_unscored_row_is_neither_best_nor_second(self):
        inputs = case([NAN, 5.0, 4.5], [0, 0, 0])

        estimate = grpo_passk(**inputs, normalize_by_std=False, scored=torch.tensor([False, True, True]))

        assert rows_of(estimate, inputs["response_mask"]) == [0, 0.5, 0]


class TestGDPO:
    def test_rewards_of_different_size_have_the_share_of_their_weights(self):
        """Both rewards compare to +-0.7071, so the sums are 0.7071 times (3, -1, 1, -3), before the whitening."""
        groups, mask = torch.tensor([0, 0, 1, 1]), torch.ones(4, 1, dtype=torch.bool)

        estimate = gdpo(
            reward_parts={"right": torch.tensor([1.0, 0.0, 0.0, 0.0]), "short": torch.tensor([900.0, 100.0, 9.0, 7.0])},
            weights={"right": 2.0, "short": 1.0},
            groups=groups,
            response_mask=mask,
        )

        sums = torch.tensor([3.0, -3.0, 1.0, -1.0])
        assert_close(estimate.advantages[:, 0], sums / sums.std(), atol=2e-6, rtol=0)

    def test_whitens_over_tokens_not_rows(self):
        """Rows of three tokens and one: +-0.7071 has mean 0.3536 and sample variance 0.5 over the four tokens."""
        estimate = gdpo(
            reward_parts={"only": torch.tensor([1.0, 0.0])},
            weights={"only": 5.0},
            groups=torch.tensor([0, 0]),
            response_mask=lengths_mask(3, 1),
        )

        assert estimate.advantages[:, 0].tolist() == pytest.approx([0.5, -1.5], abs=1e-5)

    def test_equal_rewards_give_exactly_zero(self):
        estimate = gdpo(
            reward_parts={"a": torch.full((3,), 0.1), "b": torch.full((3,), 0.7)},
            weights={"a": 0.3, "b": 0.1},
            groups=torch.zeros(3).long(),
            response_mask=torch.ones(3, 2).bool(),
        )

        assert estimate.advantages.abs().max().item() == 0


class TestReinforcePlusPlusBaseline:
    def test_whitens_the_differences_to_the_group_mean_over_tokens(self):
        """Differences 0.5 on three tokens and -0.5 on one: mean 0.25, sample variance 0.25."""
        inputs = case([1.0, 0.0], [0, 0], 3, 1)

        rows = rows_of(reinforce_plus_plus_baseline(**inputs), inputs["response_mask"])

        assert rows == pytest.approx([0.5, -1.5])

    def test_equal_rewards_give_exactly_zero(self):
        inputs = case([0.1, 0.1, 0.1, 0.7, 0.7], [0, 0, 0, 1, 1], 3, 1, 2, 2, 2)

        assert rows_of(reinforce_plus_plus_baseline(**inputs), inputs["response_mask"]) == [0] * 5


def test_statistics_count_the_scored_rows_of_each_group():
    group = group_statistics(
        torch.tensor([1.0, 5.0, 3.0, 9.0, 2.0], dtype=torch.float64),
        groups=torch.tensor([7, 4, 7, 7, 4]),
        scored=torch.tensor([True, True, True, False, False]),
    )

    assert group.num_rows.tolist() == [2, 3]
    assert group.num_scored.tolist() == [1, 2]
    assert group.of_rows(group.means).tolist() == [2, 5, 2, 2, 5]
    assert group.stds.tolist() == pytest.approx([1, 2**0.5])
    assert group.equal.tolist() == [True, False]


@pytest.mark.parametrize("size", [3, 7, 10])
def test_the_mean_of_equal_rewards_is_that_reward_to_the_last_digit(size):
    group = group_statistics(
        torch.full((size,), 0.1), groups=torch.zeros(size, dtype=torch.int64), scored=torch.ones(size).bool()
    )

    assert group.means.item() == torch.tensor(0.1).item()
    assert group.stds.item() == 0


def test_a_group_without_scores_has_defined_statistics():
    group = group_statistics(torch.zeros(2), groups=torch.tensor([0, 0]), scored=torch.zeros(2).bool())

    assert (group.means.item(), group.stds.item(), group.num_scored.item()) == (0, 1, 0)


def test_sums_run_over_the_rows_of_a_group():
    sums = group_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), groups=torch.tensor([1, 0, 1]))

    assert sums.tolist() == [[6, 8], [3, 4], [6, 8]]


def test_zero_spread_counts_the_groups_that_could_have_differed():
    rewards, groups = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5, 0.2, NAN]), torch.tensor([0, 0, 1, 1, 2, 3, 3])
    scored = torch.tensor([True] * 6 + [False])

    assert zero_spread_fraction(rewards=rewards, groups=groups, scored=scored) == 0.5
    assert zero_spread_fraction(rewards=torch.tensor([0.3]), groups=torch.tensor([0])) == 0.0


ESTIMATORS = {
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": tir_optimal_token_baseline,
}


@pytest.fixture
def sum_pi_squared(responses) -> Tensor:
    return torch.rand(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def slow_loop(responses, sum_pi_squared: Tensor, importance: Tensor | None, *, by_number: bool) -> Tensor:
    """The estimator token by token; tokens of a group meet by column, or by their number within the mask."""
    tokens: list[dict[int, tuple[int, float, float]]] = []
    for b in range(6):
        columns = responses.mask[b].nonzero().flatten().tolist()
        places, weight = {}, 0.0
        for i, t in enumerate(columns):
            energy = 1 - 2 * math.exp(responses.logprobs[b, t]) + sum_pi_squared[b, t].item()
            weight += energy * (1.0 if importance is None else importance[b, t].item() ** 2)
            to_go = sum(responses.token_rewards[b, c].item() for c in columns[i:])
            places[i if by_number else t] = (t, to_go, weight)
        tokens.append(places)
    advantages = torch.zeros(6, 7, dtype=torch.float64)
    for b in range(6):
        others = [other for other in range(6) if responses.groups[other] == responses.groups[b] and other != b]
        longest_other = max(len(tokens[other]) for other in others)
        for place, (t, to_go, _) in tokens[b].items():
            met = [tokens[other][place][1:] for other in [b, *others] if place in tokens[other]]
            baseline = sum(g * w for g, w in met) / (sum(w for _, w in met) + 1e-8)
            advantages[b, t] = to_go if place >= longest_other and len(tokens[b]) > longest_other else to_go - baseline
    return advantages


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_formula_token_by_token(responses, sum_pi_squared, name, weighted):
    logprobs = -responses.logprobs.abs()
    responses.logprobs = logprobs
    importance = sum_pi_squared.flip(0) + 0.5 if weighted else None

    estimate = ESTIMATORS[name](
        token_rewards=responses.padded_with(responses.token_rewards, float("nan")),
        logprobs=logprobs,
        sum_pi_squared=sum_pi_squared,
        groups=responses.groups,
        response_mask=responses.mask,
        importance=importance,
    )

    expected = slow_loop(responses, sum_pi_squared, importance, by_number=name.startswith("tir"))
    assert_close(estimate.advantages, expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_matches_the_golden_numbers(golden, name):
    estimate = ESTIMATORS[name](
        token_rewards=golden.input("token_rewards"),
        logprobs=golden.input("old_logprobs"),
        sum_pi_squared=golden.input("sum_pi_squared"),
        groups=golden.groups,
        response_mask=golden.mask,
    )

    for part in ("advantages", "returns"):
        expected = golden.output("advantages", name, part).masked_fill(~golden.mask, 0)
        assert_close(getattr(estimate, part), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_surer_row_counts_less_in_the_baseline(name):
    """Energies 1 - 2 * 0.5 + 0.5 = 0.5 and 1 - 2 * 0.25 + 1 = 1.5, so the baseline of 1 and 0 is 0.25."""
    estimate = ESTIMATORS[name](
        token_rewards=torch.tensor([[1.0], [0.0]]),
        logprobs=torch.tensor([[0.5], [0.25]]).log(),
        sum_pi_squared=torch.tensor([[0.5], [1.0]]),
        groups=torch.tensor([3, 3]),
        response_mask=torch.ones(2, 1, dtype=torch.bool),
    )

    assert estimate.advantages.flatten().tolist() == pytest.approx([0.75, -0.25])
    assert estimate.returns.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one_and_the_tail_of_the_longest_have_no_baseline(name):
    estimate = ESTIMATORS[name](
        token_rewards=torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, 5.0]]),
        logprobs=torch.full((3, 2), 0.5).log(),
        sum_pi_squared=torch.full((3, 2), 0.5),
        groups=torch.tensor([0, 1, 1]),
        response_mask=torch.tensor([[True, True], [True, False], [True, True]]),
    )

    assert estimate.advantages[0].tolist() == [1, 1]
    assert estimate.advantages[1:].flatten().tolist() == pytest.approx([-2.5, 0, 2.5, 5])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_of_equal_length_give_nothing(name):
    """To the epsilon in the baseline's denominator."""
    estimate = ESTIMATORS[name](
        token_rewards=torch.tensor([[0.0, 0.7]] * 3, dtype=torch.float64),
        logprobs=torch.tensor([[0.2, 0.4], [0.9, 0.1], [0.5, 0.5]], dtype=torch.float64).log(),
        sum_pi_squared=torch.full((3, 2), 0.5, dtype=torch.float64),
        groups=torch.zeros(3, dtype=torch.int64),
        response_mask=torch.ones(3, 2, dtype=torch.bool),
    )

    assert estimate.advantages.abs().max().item() < 1e-7


def every_token(num_rows: int, num_tokens: int = 2) -> Tensor:
    return torch.ones(num_rows, num_tokens, dtype=torch.bool)


def row_advantages(
    rewards: list[float], groups: list[int], *, normalize_by_std: bool = True, scored=None
) -> list[float]:
    estimate = grpo(
        rewards=torch.tensor(rewards),
        groups=torch.tensor(groups),
        response_mask=every_token(len(rewards)),
        normalize_by_std=normalize_by_std,
        scored=None if scored is None else torch.tensor(scored),
    )
    assert torch.equal(estimate.advantages[:, 0], estimate.advantages[:, 1])
    assert torch.equal(estimate.returns, estimate.advantages)
    return estimate.advantages[:, 0].tolist()


def test_a_group_of_one_keeps_its_reward():
    """A-ALG-01: mean 0, deviation 1, as documented."""
    assert row_advantages([1.0], [0]) == pytest.approx([1.0], abs=2e-6)
    assert row_advantages([1.0], [0], normalize_by_std=False) == [1.0]


@pytest.mark.parametrize("reward", [1.0, 0.0, 0.1])
@pytest.mark.parametrize("size", [3, 4, 7])
@pytest.mark.parametrize("normalize_by_std", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(reward, size, normalize_by_std, dtype):
    """A-ALG-02."""
    rewards, groups = torch.full((size,), reward, dtype=dtype), torch.zeros(size, dtype=torch.int64)

    estimate = grpo(rewards=rewards, groups=groups, response_mask=every_token(size), normalize_by_std=normalize_by_std)

    assert estimate.advantages.abs().max().item() == 0


def test_rewards_are_compared_within_their_group_in_any_order():
    """A-ALG-03: the sample deviation, so two rewards lie 0.7071 deviations from their mean, less the epsilon."""
    advantages = row_advantages([1.0, 5.0, 0.0, 3.0], [4, 9, 4, 9])

    half_root = math.sqrt(0.5)
    expected = [half_root, half_root, -half_root, -half_root]
    assert advantages == pytest.approx(expected, abs=2e-6)
    assert advantages[0] == pytest.approx(0.5 / (half_root + 1e-6), rel=1e-7)


def test_without_the_deviation_only_the_mean_is_taken_off():
    assert row_advantages([1.0, 5.0, 0.0, 3.0], [0, 1, 0, 1], normalize_by_std=False) == [0.5, 1.0, -0.5, -1.0]


def test_occurrences_of_the_same_prompt_are_groups_of_their_own():
    """A-ALG-11: group ids number the occurrences, so equal texts do not meet."""
    a_first, a_second, *others = row_advantages([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2])

    assert a_first > 0 > a_second
    assert others == [0, 0, 0, 0]


@pytest.mark.parametrize("filler", [0.0, NAN, 100.0])
def test_an_unscored_row_gets_nothing_and_moves_nobody(filler):
    """A-REW-07."""
    first, unscored, last = row_advantages([1.0, filler, 0.0], [0, 0, 0], scored=[True, False, True])

    assert [first, last] == row_advantages([1.0, 0.0], [0, 0])
    assert unscored == 0


def test_a_row_whose_siblings_are_all_unscored_has_nothing_to_be_compared_with():
    assert row_advantages([1.0, NAN, NAN], [0, 0, 0], scored=[True, False, False]) == [0, 0, 0]


def test_a_group_without_any_score_is_zero():
    assert row_advantages([NAN, NAN], [0, 0], scored=[False, False]) == [0, 0]


def test_advantages_stand_only_on_the_tokens_of_the_mask(responses):
    estimate = grpo(
        rewards=responses.rewards, groups=responses.groups, response_mask=responses.mask, normalize_by_std=True
    )

    assert estimate.advantages[~responses.mask].abs().max().item() == 0
    assert (estimate.advantages[responses.mask] != 0).all()


def test_the_order_of_rows_does_not_matter(responses):
    order = torch.tensor([4, 1, 5, 0, 3, 2])

    straight = grpo(
        rewards=responses.rewards, groups=responses.groups, response_mask=responses.mask, normalize_by_std=True
    )
    shuffled = grpo(
        rewards=responses.rewards[order],
        groups=responses.groups[order],
        response_mask=responses.mask[order],
        normalize_by_std=True,
    )

    assert_close(shuffled.advantages, straight.advantages[order])


@pytest.mark.parametrize(
    ("run", "by_std"), [("grpo", True), ("grpo_vectorized", True), ("grpo norm_adv_by_std_in_grpo=False", False)]
)
def test_grpo_matches_the_golden_advantages(golden, run, by_std):
    estimate = grpo(
        rewards=(golden.input("token_rewards") * golden.mask).sum(1),
        groups=golden.groups,
        response_mask=golden.mask,
        normalize_by_std=by_std,
    )

    assert_close(estimate.advantages, golden.output("advantages", run, "advantages"), atol=1e-6, rtol=0)
    assert_close(estimate.returns, golden.output("advantages", run, "returns"), atol=1e-6, rtol=0)


def test_an_empty_response_is_compared_by_its_score():
    """A-REW-11."""
    estimate = grpo(
        rewards=torch.tensor([10.0, 0.0]),
        groups=torch.tensor([0, 0]),
        response_mask=length_mask(torch.tensor([0, 2]), 3),
        normalize_by_std=True,
    )

    assert estimate.advantages[0].tolist() == [0, 0, 0]
    assert estimate.advantages[1].tolist() == pytest.approx([-math.sqrt(0.5), -math.sqrt(0.5), 0], abs=2e-6)
