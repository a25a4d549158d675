"""Whole runs on several processes: the numbers of one process, also after a failure and when they are resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from fakes.failing import REQUEST, FailingPolicy, request
from fakes.processes import ended
from fakes.runs import GRPO_LORA, PPO, cpu, flip_a_byte, settings, steps
from transformers import LlamaModel

from rl_compat.config.load import load_config
from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.pool import ResourcePool
from rl_compat.distributed.ranks import Ranks
from rl_compat.errors import ConfigError, ModelError, RLCompatError
from rl_compat.models.files.registry import resolve_model
from rl_compat.rollout.native.engine import NativeEngine
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.reporter import Reporter, SilentReporter
from rl_compat.trainer.run import RunOutcome
from rl_compat.trainer.training import Training
from rl_compat.training.base import TrainEngine
from rl_compat.workers import actor

pytest.importorskip("ray")

STEADY = {"optimizer.schedule": "constant"}
"the rate does not depend on the number of steps"
GRPO = GRPO_LORA | {"model.lora_dropout": 0.0}
"dropout draws other numbers on each process"
DPO = {"algorithm.name": "dpo", "optimizer.schedule": "cosine"}
ONLY_ONLINE = ("reward.", "optimizer.critic_lr")
"settings that offline training refuses"


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(arguments: list[str], *, reporter: Reporter | None = None, **plan: Any) -> RunOutcome:
    """What `rlc train` does on processes of the CPU."""
    on = [f"plan.{key}={value}" for key, value in {"device": "cpu", **plan}.items()]
    training = Training(load_config(None, [*arguments, *on]).config, cpu())
    if isinstance(reporter, Strikes):
        reporter.pool = training.recipe.prepared.setup.pool_of("actor")
    try:
        return training.run(reporter or SilentReporter())
    finally:
        training.close()


def samples(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


def without_handovers(run: Path) -> dict[int, dict[str, Any]]:
    """The metrics of each step; a policy whose weights are shared has those of handovers as well."""
    return {
        step: {name: value for name, value in metrics.items() if not name.startswith("handover/")}
        for step, metrics in steps(run).items()
    }


def assert_same(run: Path, other: Path, *, tolerance: float = 1e-5) -> None:
    mine, others = without_handovers(run), without_handovers(other)
    assert list(mine) == list(others)
    for step, metrics in mine.items():
        assert metrics == pytest.approx(others[step], rel=1e-4, abs=tolerance), step
    if (other / "samples.jsonl").exists():
        assert samples(run) == samples(other)


def test_two_processes_train_as_one_does_and_one_process_continues_their_run(
    llama_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """CKPTD-03; nothing of Ray is on the console."""
    one, two = tmp_path / "one", tmp_path / "two"
    train(settings(llama_folder, one, PPO, STEADY, num_steps=4))
    capfd.readouterr()
    outcome = train(settings(llama_folder, two, PPO, STEADY, num_steps=3), num_devices=2)
    assert (outcome.ending, outcome.step) == ("finished", 3)
    assert capfd.readouterr() == ("", "")
    train(settings(llama_folder, two, PPO, STEADY, num_steps=4))
    assert_same(two, one)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_two_processes_train_as_one_does_with_other_algorithms(
    algorithm: str, llama_folder: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for run, plan in ((one, {}), (two, {"num_devices": 2})):
        arguments = settings(llama_folder, run, GRPO if algorithm == "grpo" else DPO, num_steps=3)
        train([a for a in arguments if algorithm == "grpo" or not a.startswith(ONLY_ONLINE)], **plan)
    assert_same(two, one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"num_devices": 2}),
        ({"num_devices": 2}, {"num_devices": 4}),
        ({"num_devices": 2}, {"num_devices": 3}),
        ({"num_devices": 2, "num_shards": 2}, {}),
        ({"num_devices": 4, "num_shards": 4}, {}),
        ({"num_devices": 2, "num_shards": 2}, {"num_devices": 3, "num_shards": 3}),
        ({}, {"num_devices": 2, "num_shards": 2}),
        ({"num_devices": 2, "num_shards": 2}, {"num_devices": 4, "num_shards": 2}),
        ({"num_devices": 2, "tensor_parallel": 2}, {"num_devices": 2, "num_shards": 2}),
        ({}, {"num_devices": 4, "tensor_parallel": 2}),
    ],
)
def test_a_run_continues_on_another_number_of_processes(
    first: dict[str, int], then: dict[str, int], llama_folder: Path, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    train(settings(llama_folder, one, PPO, STEADY, num_steps=4))
    train(settings(llama_folder, other, PPO, STEADY, num_steps=2), **first)
    train(settings(llama_folder, other, PPO, STEADY, num_steps=4), **then)
    assert_same(other, one)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_two_processes_train_smollm2_as_one_does(algorithm: str, tmp_path: Path) -> None:
    """Two steps of all weights, or of adapters, of a model with 135 million weights."""
    try:
        model = resolve_model("smollm2-135m", download=False).folder
    except ModelError as error:
        pytest.skip(error.message)
    small = STEADY | {"data.max_prompt_length": 64, "optimizer.actor_lr": 1e-6, "trainer.save_every": 0}
    own = PPO | {"optimizer.critic_lr": 1e-6} if algorithm == "ppo" else GRPO
    one, two = tmp_path / "one", tmp_path / "two"
    for run, plan in ((one, {}), (two, {"num_devices": 2})):
        train(settings(model, run, own, small, num_steps=2, validate_before="false"), **plan)
    assert_same(two, one, tolerance=5e-5)  # of differences between sampler and trainer, which are rounding


@pytest.mark.slow
def test_a_reward_function_that_hangs_costs_two_processes_what_it_costs_one(llama_folder: Path, tmp_path: Path) -> None:
    function = tmp_path / "hangs.py"
    function.write_text(
        "import time\n"
        "def compute_score(solution_str):\n"
        "    if sum(map(ord, solution_str)) % 13 == 0:\n"
        "        time.sleep(3600)\n"
        "    return float(len(solution_str))\n"
    )
    hangs = {"reward.functions": f"{function}:compute_score", "reward.timeout_seconds": 0.5, "reward.on_error": "skip"}
    one, two = tmp_path / "one", tmp_path / "two"
    for run, plan in ((one, {}), (two, {"num_devices": 2})):
        train(settings(llama_folder, run, GRPO, STEADY, hangs, {"data.val_files": ""}, num_steps=2), **plan)
    assert any(step["reward/timeouts"] > 0 for step in steps(one).values())
    assert_same(two, one)


def test_a_node_that_does_not_share_the_folder_of_the_run_stops_it_before_it_loads(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResourcePool, "nodes_without", lambda pool, file: ["node-b"] if file.read_text() else [])
    with pytest.raises(ConfigError, match="`node-b`") as error:
        train(settings(llama_folder, tmp_path / "run", num_steps=1))
    assert "`trainer.output_dir`" in str(error.value.hint)
    assert not list((tmp_path / "run").glob("*token*"))


class Process:
    """A worker that tells its process, and lets it run out of memory."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @dispatch(merge=lambda results, shares: list(results))
    def number(self) -> int:
        return os.getpid()

    @dispatch()
    def run_out_of_memory(self, *, rank: int, phase: str) -> None:
        """From now on in this rank: in the engine that generates, in writing a checkpoint, or in every model."""
        if self.ranks.rank != rank:
            return

        def fail(*arguments: object, **named: object) -> NoReturn:
            raise torch.OutOfMemoryError("no room")

        if phase in ("gen", "testing"):
            NativeEngine._advance = fail  # type: ignore[method-assign]
        elif phase == "saving":
            TrainEngine.save_state = fail  # type: ignore[method-assign]
        else:
            LlamaModel.forward = fail  # type: ignore[method-assign]


class Strikes:
    """A reporter that sends a signal to the process of a rank, or takes its memory, when a phase begins in step 2."""

    def __init__(self, fault: str, *, phase: str, rank: int = 1) -> None:
        self.fault, self.at_phase, self.rank = fault, phase, rank
        self.pool: ResourcePool
        self.processes: list[int] = []
        self.struck: float | None = None
        "when"
        self._group: WorkerGroup[Process] | None = None
        self._step = 0

    def say(self, text: str) -> None:
        del text

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        del total
        if name == "step":
            self._step = done + 1
            if self._group is None:
                self._group = self.pool.start(lambda place: Process(place.ranks))
                self.processes = self._group.run(Process.number).result()
        if self._step == 2 and name.startswith(self.at_phase) and self.struck is None:
            self.struck = time.monotonic()
            if self.fault == "memory":
                assert self._group is not None
                self._group.run(Process.run_out_of_memory, rank=self.rank, phase=self.at_phase)
            else:
                os.kill(self.processes[self.rank], getattr(signal, self.fault))


OFTEN = {"trainer.validate_every": 1, "trainer.num_steps": 3}


@pytest.fixture(scope="module")
def undisturbed(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train(settings(llama_folder, run, PPO, OFTEN, save_every=0))
    return run


IN_MODELS = ("old_log_prob", "ref", "values", "update_critic", "update_actor")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["gen", "reward", *IN_MODELS, "saving", "testing"])
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP", "memory"])
def test_a_rank_that_ends_or_stands_still_or_lacks_memory_costs_at_most_the_step_that_it_was_in(
    fault: str,
    phase: str,
    llama_folder: Path,
    tmp_path: Path,
    undisturbed: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """DIST-05, DIST-07. While functions compute rewards, a rank is idle, and memory is theirs."""
    if (fault, phase) == ("memory", "reward"):
        pytest.skip("reward functions are not in the processes of the pool")
    rank = 0 if phase == "update_actor" else 1
    run = tmp_path / "run"
    strikes = Strikes(fault, phase=phase, rank=rank)
    arguments = settings(llama_folder, run, PPO, OFTEN, save_every=2 if phase == "saving" else 0)
    with pytest.raises((RLCompatError, torch.OutOfMemoryError)) as error:
        train(arguments, reporter=strikes, num_devices=2)
    assert strikes.struck is not None
    seconds = time.monotonic() - strikes.struck
    told = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    record_property("seconds", round(seconds, 1))
    record_property("cause", told)
    newest = find_newest(run / "checkpoints").step
    record_property("saved", newest)
    assert seconds < 30
    assert f"rank {rank}" in told
    if fault != "memory":
        assert told.startswith(f"rank {rank} ") and f"process {strikes.processes[rank]}" in told
    assert all(ended(process) for process in strikes.processes)
    assert newest == (2 if phase == "saving" else 1)
    train(arguments)
    assert_same(run, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "kind", "first"),
    [("update", "raise", 2), ("second mini-batch", "raise", 4), ("save_state", "raise", 1), ("forward", "memory", 7)],
)
def test_an_error_of_one_rank_alone_is_the_error_of_the_run(
    where: str, kind: str, first: int, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIST-06, DIST-07"""
    monkeypatch.setattr(actor, "PolicyWorker", FailingPolicy)
    model, one, run = tmp_path / "model", tmp_path / "one", tmp_path / "run"
    shutil.copytree(llama_folder, model)
    train(settings(model, one, PPO, num_steps=3))
    request(model, where=where, kind=kind, call=first, calls=10**9)
    error: type[Exception] = RLCompatError if kind == "memory" else ValueError
    with pytest.raises(error, match="rank 1" if kind == "memory" else "17") as raised:
        train(settings(model, run, PPO, num_steps=3, save_every=3), num_devices=2)
    if kind != "memory":
        assert any("rank 1" in note for note in raised.value.__notes__)
    (model / REQUEST).unlink()
    train(settings(model, run, PPO, num_steps=3))
    assert_same(run, one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143), (signal.SIGHUP, True, 129)],
)
def test_a_signal_saves_the_newest_step_and_leaves_no_process(
    number: int, whole_group: bool, code: int, llama_folder: Path, tmp_path: Path
) -> None:
    """A terminal sends its signals to all processes."""
    run = tmp_path / "run"
    process = begun(settings(llama_folder, run, num_steps=500, save_every=0, loggers="console,jsonl"))
    (os.killpg if whole_group else os.kill)(process.pid, number)
    assert process.wait(120) == code
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert checkpoint.name == f"step_{max(steps(run))}"
    assert nobody_is_left(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_at_once_leaves_no_process(number: int, llama_folder: Path, tmp_path: Path) -> None:
    """A second SIGINT, and SIGKILL, while a rank stands still."""
    run = tmp_path / "run"
    process = begun(settings(llama_folder, run, num_steps=500, save_every=0, loggers="console,jsonl"))
    ranks = [number for number, command in of_session(process.pid).items() if "RayHost" in command]
    assert len(ranks) == 2
    os.kill(ranks[0], signal.SIGSTOP)
    process.send_signal(number)
    time.sleep(1.0)
    process.send_signal(number)
    assert process.wait(60) == (130 if number == signal.SIGINT else -number)
    assert nobody_is_left(process.pid)


def begun(arguments: list[str]) -> subprocess.Popen[bytes]:
    """`rlc train` on two processes in a session of its own, in its third step."""
    command = [sys.executable, "-m", "rl_compat", "train", *arguments, "plan.device=cpu", "plan.num_devices=2"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    assert process.stdout is not None
    while b"step:2" not in (line := process.stdout.readline()):
        assert line or process.poll() is None
    return process


def of_session(session: int) -> dict[int, str]:
    """The processes of a session with their command lines; those of Ray and its workers stay in it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return found


def nobody_is_left(session: int) -> bool:
    for _ in range(900):  # agents of Ray look now and then whether it still runs
        if not of_session(session):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_damaged_checkpoint_sends_all_processes_back_to_the_one_before(llama_folder: Path, tmp_path: Path) -> None:
    """CKPTD-04"""
    one, run = tmp_path / "one", tmp_path / "run"
    train(settings(llama_folder, one, PPO, STEADY, num_steps=3))
    train(settings(llama_folder, run, PPO, STEADY, num_steps=2), num_devices=2)
    flip_a_byte(run / "checkpoints" / "step_2" / "critic" / "weights.safetensors")
    train(settings(llama_folder, run, PPO, STEADY, num_steps=3), num_devices=2)
    assert_same(run, one)
