from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rl_compat.algorithms.advantages.group import gdpo, gpg, grpo_passk, opo, reinforce_plus_plus_baseline, rloo

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
