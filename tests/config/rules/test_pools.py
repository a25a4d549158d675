"""Pools of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_compat.config.load import load_config
from rl_compat.config.rules.conflicts import problems
from rl_compat.config.toml_file import to_toml
from rl_compat.config.types import PoolConfig, RewardConfig, RunConfig
from rl_compat.errors import ConfigError

SCORE = """
[reward]
model = "a reward model"

[algorithm]
kl_in_reward = "k1"

[pools.score]
roles = ["reward", "reference"]
gpus = [4, 5]
compute_dtype = "fp32"

[pools.generate]
roles = ["rollout"]
num_devices = 2
"""


def test_pools_are_tables_and_arguments(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SCORE)

    pools = load_config(path, ["pools.score.num_nodes=2", "pools.generate.emulate=p40"]).config.pools

    assert pools == {
        "score": PoolConfig(roles=("reward", "reference"), gpus=(4, 5), compute_dtype="fp32", num_nodes=2),
        "generate": PoolConfig(roles=("rollout",), num_devices=2, emulate="p40"),
    }


def test_a_configuration_with_pools_survives_toml(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SCORE)
    config = load_config(path).config
    path.write_text(to_toml(config))

    assert load_config(path).config == config


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        (["pools.score.num_devices=1"], "pools.score.roles", ["`score`"]),
        (["pools.main.roles=reference"], "pools.main.roles", ["[plan]"]),
        (["pools.score.roles=reward"], "pools.score.roles", ["`reward`"]),
        (
            ["pools.score.roles=critic", "algorithm.name=grpo"],
            "pools.score.roles",
            ["`critic`", "`algorithm.name=grpo`"],
        ),
        (["pools.score.roles=reference", "model.lora_rank=8"], "pools.score.roles", ["LoRA"]),
        (["pools.a.roles=critic", "pools.b.roles=critic,reference"], "pools.b.roles", ["`a`", "`b`"]),
        (
            ["pools.a.roles=critic", "pools.a.gpus=1", "pools.b.roles=reference", "pools.b.gpus=1"],
            "pools.b.gpus",
            ["GPU 1"],
        ),
        (["pools.a.roles=critic", "pools.a.gpus=1,2", "pools.a.num_devices=3"], "pools.a.num_devices", ["3", "2"]),
        (["pools.a.roles=critic", "pools.a.emulate=p40", "pools.a.device=cpu"], "pools.a.emulate", ["`cpu`"]),
        (["plan.num_devices=4", "plan.num_shards=3"], "plan.num_shards", ["3", "4"]),
        (["plan.num_devices=4", "plan.tensor_parallel=3"], "plan.tensor_parallel", ["3", "plan.num_devices", "4"]),
        (
            ["plan.num_devices=4", "plan.num_shards=2", "plan.tensor_parallel=4"],
            "plan.tensor_parallel",
            ["4", "plan.num_shards", "2"],
        ),
        (["rollout.tensor_parallel=2"], "rollout.tensor_parallel", ["2", "plan.num_devices", "1"]),
        (
            ["rollout.tensor_parallel=2", "plan.num_devices=2", "pools.gen.roles=rollout", "pools.gen.gpus=2,3,4"],
            "rollout.tensor_parallel",
            ["2", "pools.gen.num_devices", "3"],
        ),
        (
            ["rollout.tensor_parallel=2", "plan.num_devices=2", "rollout.engine=native"],
            "rollout.tensor_parallel",
            ["2", "rollout.engine=native", "rollout.engine=vllm"],
        ),
    ],
)
def test_pools_that_cannot_be_are_refused(settings: list[str], key: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["algorithm.kl_in_reward=k1", *settings])

    assert key.rpartition(".")[0] in caught.value.message or f"`{key.split('.')[1]}`" in caught.value.message
    assert all(word in f"{caught.value.message} {caught.value.hint}" for word in words)
    assert caught.value.hint


@pytest.mark.parametrize(
    "setting", ["pools.score.roles=rewrd", "pools.score.gpu=1", "pools.2x.roles=reward", "pools.a=1"]
)
def test_a_misspelled_key_or_role_of_a_pool_is_refused_with_a_hint(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [setting])

    assert caught.value.hint


def test_a_pool_with_roles_of_the_run_is_fine() -> None:
    config = RunConfig(
        reward=RewardConfig(model="a reward model"), pools={"score": PoolConfig(roles=("reward", "critic"), gpus=(1,))}
    )

    assert list(problems(config)) == []
