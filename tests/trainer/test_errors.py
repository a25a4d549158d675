"""An error in any phase of a run: the newest finished step is in a checkpoint, and the run goes on from it exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.runs import PPO, settings, steps, train
from safetensors.torch import load_file

from rl_compat.distributed.group import dispatch
from rl_compat.errors import NotFiniteError
from rl_compat.tracking.build import Trackers
from rl_compat.trainer import loop
from rl_compat.trainer import run as run_module
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.offline.training import Offline
from rl_compat.trainer.online import reinforcement
from rl_compat.trainer.online.reinforcement import Reinforcement
from rl_compat.trainer.recipe import PreparedRun
from rl_compat.trainer.reporter import SilentReporter
from rl_compat.trainer.run import Run
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.training.engine import PolicyEngine, ValueEngine
from rl_compat.training.state import StateCopy
from rl_compat.training.step import OptimizerStep
from rl_compat.workers.critic import CriticWorker
from rl_compat.workers.learner import LearnerWorker
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.reference import ReferenceWorker
from rl_compat.workers.reward import RewardModel
from rl_compat.workers.rollout import RolloutWorker
from rl_compat.workers.trained import TrainedWorker

DPO = {"algorithm.name": "dpo", "optimizer.schedule": "cosine", "optimizer.warmup_steps": 2}
UNVALIDATED = {"trainer.validate_before": "false", "trainer.validate_after": "false"}
AT_STEP = 3


class InjectedError(Exception):
    pass


class Steps(SilentReporter):
    """Knows the newest step that the run began, and keeps what the run says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.lines: list[str] = []
        original = Run._begin_step

        def begin(run: Run) -> bool:
            begins = original(run)
            self.now += begins
            return begins

        patch.setattr(Run, "_begin_step", begin)

    def say(self, text: str) -> None:
        self.lines.append(text)


def inject(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    reporter: Steps,
    *,
    call: int = 1,
    after: bool = False,
    always: bool = False,
    at_step: bool = True,
) -> None:
    """Make the `call`th call in step AT_STEP raise, once, before it does anything or after all of it.

    Without `at_step`, calls of all steps count, as for what may begin before its step does.
    """
    original = getattr(owner, name)
    calls = 0

    def fails(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        counts = not at_step or reporter.now == AT_STEP
        calls += counts
        hit = counts and (calls >= call if always else calls == call)
        if hit and not after:
            raise InjectedError(name)
        result = original(*arguments, **named)
        if hit:
            raise InjectedError(name)
        return result

    if hasattr(original, "__dispatch__"):
        fails.__dispatch__ = original.__dispatch__  # type: ignore[attr-defined]
    fails.__name__ = name
    patch.setattr(owner, name, fails)


AHEAD = {"call": AT_STEP, "at_step": False}
PHASES: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "order of the data": (Reinforcement, "_prompts", 2, AHEAD),
    "generation": (RolloutWorker, "generate", 2, AHEAD),
    "reward": (RewardModel, "compute_rewards", 2, {}),
    "log-probabilities": (PolicyWorker, "logprobs", 2, {}),
    "reference": (ReferenceWorker, "logprobs", 2, {}),
    "values": (CriticWorker, "values", 2, {}),
    "advantages": (loop, "make_experience", 2, {}),
    "before the update of the critic": (CriticWorker, "update", 2, {}),
    "in the update of the critic": (ValueEngine, "update", 2, {"call": 3}),
    "after the update of the critic": (CriticWorker, "update", 2, {"after": True}),
    "in the update of the actor": (PolicyEngine, "update", 2, {"call": 2}),
    "after the update of the actor": (PolicyWorker, "update", 2, {"after": True}),
    "state of the recipe": (Reinforcement, "state_dict", 2, {}),
    "metrics": (Reinforcement, "describe", 3, {}),
    "samples": (RunFolder, "write_samples", 3, {}),
    "logging": (Trackers, "log", 3, {}),
    "after logging": (Trackers, "log", 3, {"after": True}),
    "notes": (Reinforcement, "take_notes", 3, {}),
    "validation": (reinforcement, "validate", 3, {}),
    "logging of the validation": (Trackers, "log", 3, {"call": 2}),
}
"phase, to what raises in it, the newest finished step then, and when it raises"
ALSO_COVERED = (
    *("log-probabilities", "reference", "values", "advantages"),
    *("after logging", "notes", "logging of the validation"),
)
"by a phase next to it: nothing changes on the way"

SAVING: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "before the save": (run_module, "write_checkpoint", 3, {}),
    "in the save": (TrainedWorker, "save_state", 3, {"call": 2}),
    "in the save of the state": (run_module, "save_run_state", 3, {"after": True}),
    "after the save": (run_module, "write_checkpoint", 3, {"after": True}),
    "pruning": (run_module, "prune", 3, {}),
    "after pruning": (run_module, "prune", 3, {"after": True}),
}

OFFLINE: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "collecting": (Offline, "sample", 2, AHEAD),
    "in the update": (PolicyEngine, "update", 2, {"call": 2}),
    "after the update": (LearnerWorker, "update", 2, {"after": True}),
    "metrics": (Offline, "describe", 3, {}),
    "samples": (Offline, "samples", 3, {}),
    "logging": (Trackers, "log", 3, {}),
    "validation": (LearnerWorker, "values", 3, {}),
}


@pytest.fixture
def injected() -> Iterator[Callable[..., Steps]]:
    """Injects an error for the rest of the test or until `undo`."""
    with pytest.MonkeyPatch.context() as patch:

        def begin(phase: tuple[Any, str, int, dict[str, Any]], **changes: Any) -> Steps:
            reporter = Steps(patch)
            owner, name, _, when = phase
            inject(patch, owner, name, reporter, **(when | changes))
            return reporter

        begin.undo = patch.undo  # type: ignore[attr-defined]
        yield begin


UNRECORDED = ("metrics", "samples", "logging")
"phases of a finished step in which its metrics are not yet written"


def assert_continues_exactly(run: Path, whole: Path, phase: str, *, roles: tuple[str, ...], last: int) -> None:
    unrecorded = {AT_STEP} if phase in UNRECORDED else set()
    assert steps(run) == {step: metrics for step, metrics in steps(whole).items() if step not in unrecorded}
    for role in roles:
        mine, others = (
            load_file(f / "checkpoints" / f"step_{last}" / role / "weights.safetensors") for f in (run, whole)
        )
        assert all(mine[name].equal(others[name]) for name in mine)


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[pytest.mark.slow] if phase in ALSO_COVERED else []) for phase in PHASES]
)
def test_an_error_in_a_phase_loses_no_finished_step(
    phase: str, injected: Any, whole_ppo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", PPO, UNVALIDATED, num_steps=6, save_every=0)
    with pytest.raises(InjectedError):
        train([*arguments, "trainer.validate_every=3"], reporter=injected(PHASES[phase]))
    assert find_newest(tmp_path / "run" / "checkpoints").step == PHASES[phase][2]

    injected.undo()
    train(arguments)
    assert_continues_exactly(tmp_path / "run", whole_ppo_run, phase, roles=("actor", "critic"), last=6)


@pytest.mark.parametrize("phase", SAVING)
def test_an_error_at_a_save_loses_no_finished_step(
    phase: str, injected: Any, llama_folder: Path, tmp_path: Path
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", PPO, UNVALIDATED, num_steps=4, save_every=3)
    with pytest.raises(InjectedError):
        train(arguments, reporter=injected(SAVING[phase]))
    assert find_newest(tmp_path / "run" / "checkpoints").step == SAVING[phase][2]


@pytest.mark.parametrize("phase", OFFLINE)
def test_an_error_in_a_phase_of_training_on_offline_data_loses_no_finished_step(
    phase: str, injected: Any, whole_dpo_run: Path, llama_folder: Path, tmp_path: Path
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", DPO, num_steps=4, save_every=0, validate_every=3)
    with pytest.raises(InjectedError):
        train(arguments, reporter=injected(OFFLINE[phase]))
    begins_early = phase == "collecting"  # while the step before it learns, or before that
    finished = max(steps(tmp_path / "run")) if begins_early else OFFLINE[phase][2]
    assert find_newest(tmp_path / "run" / "checkpoints").step == finished >= 1

    injected.undo()
    train(arguments)
    assert_continues_exactly(tmp_path / "run", whole_dpo_run, phase, roles=("actor",), last=4)


@pytest.fixture(scope="module")
def whole_dpo_run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dpo") / "run"
    train(settings(llama_folder, folder, DPO, num_steps=4, save_every=0))
    return folder


def test_the_last_validation_comes_after_the_last_save(injected: Any, llama_folder: Path, tmp_path: Path) -> None:
    arguments = settings(llama_folder, tmp_path / "run", num_steps=3, save_every=0, validate_before="false")
    with pytest.raises(InjectedError):
        train(arguments, reporter=injected((reinforcement, "validate", 3, {})))
    assert find_newest(tmp_path / "run" / "checkpoints").step == 3


def test_an_error_before_the_first_finished_step_leaves_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, llama_folder: Path, tmp_path: Path
) -> None:
    @dispatch()
    def update(self: object, **arguments: object) -> None:
        raise InjectedError

    monkeypatch.setattr(PolicyWorker, "update", update)
    with pytest.raises(InjectedError):
        train(settings(llama_folder, tmp_path / "run", PPO, num_steps=2, save_every=0))
    assert find_newest(tmp_path / "run" / "checkpoints").path is None


def test_a_save_that_fails_too_is_noted_on_the_original_error(
    injected: Any, llama_folder: Path, tmp_path: Path
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", PPO, num_steps=4, save_every=0, validate_before="false")
    reporter = injected((TrainedWorker, "save_state", 0, {"always": True, "at_step": False}))
    with pytest.raises(InjectedError) as stop, pytest.MonkeyPatch.context() as patch:
        inject(patch, RolloutWorker, "generate", reporter, call=AT_STEP, at_step=False)
        train(arguments, reporter=reporter)
    assert stop.value.args == ("generate",)
    assert "step 2" in stop.value.__notes__[0]
    assert "step 2" in reporter.lines[-1]
    assert find_newest(tmp_path / "run" / "checkpoints").path is None


@pytest.mark.parametrize(
    ("phase", "saved"),
    [("generation", 2), ("before the update of the critic", 2), ("in the update of the actor", 0)],
)
def test_without_room_for_a_copy_only_an_error_after_changed_weights_loses_steps_and_that_is_said_at_the_start(
    phase: str, saved: int, injected: Any, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", PPO, num_steps=4, save_every=0, validate_before="false")
    reporter = injected(PHASES[phase])
    monkeypatch.setattr(PreparedRun, "place_of_copies", None)
    with pytest.raises(InjectedError) as stop:
        train(arguments, reporter=reporter)
    assert any("`trainer.save_every=1`" in line for line in reporter.lines)
    assert find_newest(tmp_path / "run" / "checkpoints").step == saved
    assert bool(getattr(stop.value, "__notes__", [])) is (saved == 0)


@pytest.mark.parametrize(("mini_batch_size", "num_copies"), [(8, 0), (4, 3)])
def test_an_update_of_one_optimizer_step_needs_no_copy_and_still_loses_no_finished_step(
    mini_batch_size: int,
    num_copies: int,
    injected: Any,
    llama_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = settings(llama_folder, tmp_path / "run", DPO, num_steps=4, save_every=0, validate_before="false")
    arguments.append(f"trainer.mini_batch_size={mini_batch_size}")
    copies: list[int] = []
    start = StateCopy.start
    monkeypatch.setattr(StateCopy, "start", lambda *given, place: (copies.append(1), start(*given, place=place)))
    train(arguments)
    assert len(copies) == num_copies, "the first step starts from the model that is on disk"

    whole, again = tmp_path / "run", tmp_path / "again"
    arguments.append(f"trainer.output_dir={again}")
    with pytest.raises(InjectedError):
        train(arguments, reporter=injected((OptimizerStep, "step", 2, {})))
    assert find_newest(again / "checkpoints").step == 2
    injected.undo()
    train(arguments)
    assert_continues_exactly(again, whole, "", roles=("actor",), last=4)


def test_a_model_whose_numbers_are_not_finite_stops_the_run_with_step_row_and_dtype(
    llama_folder: Path, tmp_path: Path
) -> None:
    """The weights break after the checkpoint of step 2, so that one stays the newest."""
    config = settings(llama_folder, tmp_path / "run", num_steps=4, save_every=2)
    original = PolicyWorker.update

    def breaks(worker: PolicyWorker, **arguments: Any) -> Any:
        found = original(worker, **arguments)
        if reporter.now == AT_STEP:
            with torch.no_grad():
                next(iter(worker.engine.parameters.values())).fill_(torch.nan)
        return found

    breaks.__dispatch__ = original.__dispatch__  # type: ignore[attr-defined]
    breaks.__name__ = "update"
    with pytest.MonkeyPatch.context() as patch:
        reporter = Steps(patch)
        patch.setattr(PolicyWorker, "update", breaks)
        with pytest.raises(NotFiniteError) as error:
            train(config, reporter=reporter)
    for literal in ("after step 3", "`fp32`", "token 1 ", "row "):
        assert literal in error.value.message
    newest = find_newest(tmp_path / "run" / "checkpoints")
    assert newest.step == 2 and f"`{newest.path}`" in str(error.value.hint)
