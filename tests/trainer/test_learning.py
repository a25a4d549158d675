"""The reward of the built-in tiny model rises: learning, not only running."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
FAMILIES = ["ppo", "grpo", "reinforce_plus_plus", "grpo, gspo"]
"with a critic, with groups, with neither, and with ratios of whole responses; by default the examples learn"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("learning_table")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_reward_rises_from_below_0_3_to_above_0_5(name: str, table: ModuleType, tmp_path: Path) -> None:
    steps = table.train(table.RECIPES[name], seed=1, folder=tmp_path, num_steps=26)

    rewards = [step["critic/score/mean"] for step in steps]
    assert len(rewards) == 26
    assert rewards[0] < 0.3
    assert fmean(rewards[-5:]) > 0.5


def test_the_cost_falls_below_its_limit_while_the_reward_rises(table: ModuleType, tmp_path: Path) -> None:
    steps = table.train(table.RECIPES["ppo_lagrangian"], seed=1, folder=tmp_path, num_steps=26)

    rewards, costs = ([step[f"{name}/score/mean"] for step in steps] for name in ("critic", "cost"))
    assert costs[0] > 0.15 > table.COST_LIMIT
    assert fmean(costs[-10:]) < table.COST_LIMIT
    assert rewards[0] < 0.3
    assert fmean(rewards[-5:]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("number", range(28))
def test_every_algorithm_and_every_loss_learns_with_three_seeds(
    number: int, seed: int, table: ModuleType, tmp_path: Path
) -> None:
    recipe = list(table.RECIPES.values())[number]
    assert table.learned(table.outcome(recipe, table.train(recipe, seed=seed, folder=tmp_path)))


def test_every_algorithm_and_every_loss_has_its_run(table: ModuleType) -> None:
    from rl_compat.algorithms.advantages.estimators import ESTIMATORS
    from rl_compat.algorithms.losses.policy import POLICY_LOSSES

    settings = [setting for recipe in table.RECIPES.values() for setting in recipe.settings]
    assert {f"algorithm.name={name}" for name in ESTIMATORS} <= set(settings)
    assert {f"algorithm.policy_loss={name}" for name in POLICY_LOSSES} - set(settings) == {
        "algorithm.policy_loss=ppo_clip",
        "algorithm.policy_loss=gpg",
    }, "what `auto` is"
    assert len(table.RECIPES) == 28


def test_a_run_that_did_not_learn_is_said_in_the_table(table: ModuleType) -> None:
    fine, cost = {"first": 0.2, "last": 0.7}, {"first_cost": 0.2, "last_cost": 0.15}

    page = table.page({("ppo", 1): fine, ("grpo", 1): {"first": 0.2, "last": 0.3}, ("rloo", 1): fine | cost}, [1, 2])

    assert "| ppo | 40 | 0.20 → 0.70 | not run |" in page
    assert "| grpo | 40 | 0.20 → 0.30 (did not learn) | not run |" in page
    assert "| rloo | 40 | 0.20 → 0.70, cost 0.20 → 0.15 (did not learn) | not run |" in page
    assert "1 of 3 did." in " ".join(page.split())
