"""Plans as files."""

from __future__ import annotations

import pytest
from fakes.machines import PPO, QWEN_05B, planned, recorded

from rl_compat.errors import ConfigError
from rl_compat.planning.serialize import from_json, load_plan, save_plan, to_json


def test_a_plan_survives_json(tmp_path) -> None:
    plan = planned(PPO, recorded("p40"), QWEN_05B)

    assert from_json(to_json(plan)) == plan
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        (None, "plan.json`"),
        ("{", "plan.json`"),
        ('{"schema": 99}', "`99`"),
        ('{"schema": 1}', r"`1`.*`2`"),
        ('{"schema": 2}', r"`plan\.\w+`"),
        ("[1]", "`None`"),
    ],
)
def test_a_damaged_plan_is_refused_by_file(text, literal, tmp_path) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=literal) as caught:
        load_plan(path)

    assert "plan.json" in caught.value.message
