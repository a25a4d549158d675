"""What makes two configurations different runs."""

from __future__ import annotations

from dataclasses import replace

from rl_compat.config.types import PlanConfig, PoolConfig, RunConfig
from rl_compat.trainer.run_folder import differences


def test_a_run_may_continue_on_other_devices_and_pools() -> None:
    before = replace(RunConfig(), pools={"score": PoolConfig(roles=("critic",))})
    now = replace(
        RunConfig(), plan=PlanConfig(num_devices=4), pools={"value": PoolConfig(roles=("critic",), gpus=(4,))}
    )

    assert differences(before, now) == differences(RunConfig(), before) == []


def test_a_run_may_not_continue_with_another_model() -> None:
    other = replace(RunConfig(), model=replace(RunConfig().model, path="another"))

    assert differences(RunConfig(), other) == [("model.path", RunConfig().model.path, "another")]
