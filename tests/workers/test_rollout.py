"""A rollout worker joined to a policy worker by its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes.engines import load_settings, random_batch, role_plan

from rl_compat.planning.types import RolloutPlan
from rl_compat.resharding.source import SharedStorage, Weight, WeightSource
from rl_compat.rollout.types import SamplingParams
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.trajectory import Prompt, Trajectory
from rl_compat.workers.policy import PolicySettings, PolicyWorker
from rl_compat.workers.rollout import RolloutSettings, RolloutWorker

PROMPTS = [Prompt(token_ids=(11, 12, 13), text=""), Prompt(token_ids=(21, 22), text="")]


class Sent:
    """Weights as they arrive from another process: copies, one at a time."""

    def __init__(self, source: SharedStorage) -> None:
        self._source = source
        self.num_sent = 0

    @property
    def version(self) -> int:
        return self._source.version

    @property
    def revision(self) -> int:
        return self._source.revision

    def resident(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __iter__(self) -> Iterator[Weight]:
        for name, tensor, version in self._source:
            self.num_sent += 1
            yield Weight(name, tensor.detach().clone(), version)


def policy(folder: Path) -> PolicyWorker:
    role = role_plan(micro_batch_size=8)
    optimizer = OptimizerSettings(lr=1e-2)
    settings = PolicySettings(
        model=load_settings(folder, role=role),
        temperature=1.0,
        num_epochs=1,
        optimizer=optimizer,
    )
    return PolicyWorker(settings)


def rollout(folder: Path, source: WeightSource, **plan: Any) -> RolloutWorker:
    settings = RolloutSettings(
        model=load_settings(folder, role=role_plan()),
        plan=RolloutPlan(engine="native", compute_dtype="fp32", max_num_seqs=4, max_prefill_tokens=64, **plan),
        pad_token_id=0,
        num_valid_tokens=60,
    )
    return RolloutWorker(settings, source)


def generate(worker: RolloutWorker) -> list[Trajectory]:
    params = SamplingParams(max_new_tokens=6, seed=3)
    return worker.generate(prompts=PROMPTS, groups=[7, 8], params=params, group_size=2)


def learn(worker: PolicyWorker) -> None:
    worker.update(batch=random_batch(), seed=1)


def test_a_rollout_in_the_same_process_generates_with_the_tensors_of_the_policy(llama_folder: Path) -> None:
    trained = policy(llama_folder)
    worker = rollout(llama_folder, trained.weight_source())
    generate(worker)
    addresses = [parameter.data_ptr() for parameter in trained.engine.model.parameters()]
    learn(trained)
    generate(worker)
    weights = worker.session._weights.model  # type: ignore[attr-defined]
    assert [parameter.data_ptr() for parameter in weights.parameters()] == addresses


@pytest.mark.parametrize("sleep_between", [False, True])
def test_every_token_carries_the_version_of_the_policy_after_updates_and_a_restored_state(
    llama_folder: Path, tmp_path: Path, sleep_between: bool
) -> None:
    trained = policy(llama_folder)
    worker = rollout(llama_folder, trained.weight_source(), sleep_between=sleep_between)
    first = generate(worker)
    trained.save_state(folder=tmp_path)
    learn(trained)
    learn(trained)
    second = generate(worker)
    trained.load_state(folder=tmp_path)
    third = generate(worker)
    for trajectories, version in ((first, 0), (second, 2), (third, 0)):
        assert {number for one in trajectories for number in one.policy_versions} == {version}
    assert [one.group for one in first] == [7, 7, 8, 8]
    assert second != first
    assert third == first


def test_a_rollout_elsewhere_loads_the_weights_once_for_each_change(llama_folder: Path) -> None:
    trained = policy(llama_folder)
    source = trained.weight_source()
    assert isinstance(source, SharedStorage)
    sent = Sent(source)
    near, far = rollout(llama_folder, source), rollout(llama_folder, sent)
    num_weights = len(list(source))
    for updates in range(3):
        expected = generate(near)
        for _ in range(2):
            assert generate(far) == expected
        assert sent.num_sent == (updates + 1) * num_weights
        learn(trained)
