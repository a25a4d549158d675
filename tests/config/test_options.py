"""Settings given as Python objects."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.facts import facts

from rl_compat.config.options import check_section
from rl_compat.config.types import AlgorithmConfig, OffPolicyConfig
from rl_compat.errors import ConfigError


@pytest.mark.parametrize(
    ("section", "value", "named"),
    [
        ("algorithm", "gpro", {"algorithm", "AlgorithmConfig", "'gpro'", 'AlgorithmConfig(name="grpo")'}),
        ("algorithm", "grpo", {"algorithm", 'AlgorithmConfig(name="grpo")'}),
        ("algorithm", {"name": "grpo"}, {"algorithm", "AlgorithmConfig"}),
        ("algorithm", AlgorithmConfig(name="gpro"), {"algorithm.name", "'gpro'", "grpo"}),  # type: ignore[arg-type]
        ("algorithm", AlgorithmConfig(gamma="x"), {"algorithm.gamma", "'x'"}),  # type: ignore[arg-type]
        ("algorithm", AlgorithmConfig(gamma=2.0), {"algorithm.gamma", "2.0", "1"}),
        ("off_policy", OffPolicyConfig(truncate=-1.0), {"off_policy.truncate", "-1.0", "0"}),
        ("off_policy", "token", {"off_policy", "OffPolicyConfig"}),
    ],
)
def test_a_section_that_cannot_be_used_is_refused_with_its_setting(section: str, value: Any, named: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_section(section, value)
    assert named <= facts(caught.value)


def test_a_section_with_other_values_is_accepted() -> None:
    check_section("algorithm", AlgorithmConfig(name="dapo", gamma=1, clip_dual=None))
