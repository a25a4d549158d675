from __future__ import annotations

from typing import get_args

import pytest

from rl_compat.algorithms.advantages.estimators import ESTIMATORS
from rl_compat.algorithms.losses.policy import POLICY_LOSSES
from rl_compat.algorithms.table import ALGORITHMS, LOSS_READS, policy_loss_of
from rl_compat.config.settings import settings
from rl_compat.config.types import AlgorithmConfig, AlgorithmName, PolicyLossName


def test_every_row_is_listed_under_its_name_and_can_be_asked_for():
    assert [row.name for row in ALGORITHMS.values()] == list(ALGORITHMS)
    assert set(ALGORITHMS) == set(get_args(AlgorithmName))


def test_every_row_has_its_estimator():
    assert set(ESTIMATORS) == {row.name for row in ALGORITHMS.values() if row.learns_from == "prompts"}


def test_every_policy_loss_has_a_row_that_says_what_it_reads():
    assert set(LOSS_READS) == set(POLICY_LOSSES) == {*get_args(PolicyLossName)} - {"auto"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_name_sets_and_reads_are_settings(name):
    row = ALGORITHMS[name]
    assert set(row.defaults) <= set(settings())
    assert all(hasattr(AlgorithmConfig(), field) for field in row.reads)
    assert row.policy_loss in POLICY_LOSSES
    assert all(settings()[key].default != value for key, value in row.defaults.items()), "a default already"


def test_only_auto_asks_the_algorithm_for_its_loss():
    assert policy_loss_of("ppo", "auto") == "ppo_clip"
    assert policy_loss_of("gpg", "auto") == "gpg"
    assert policy_loss_of("gpg", "cispo") == "cispo"
