"""Worker methods are split, broadcast and merged as they declare."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.engines import random_batch

import rl_compat
from rl_compat.batch import Batch
from rl_compat.distributed.group import (
    ALARM,
    PendingCall,
    WorkerGroup,
    balanced_shares,
    dispatch,
    dispatch_of,
    distinct,
)
from rl_compat.distributed.local import LocalWorker, WorkerThread
from rl_compat.errors import WorkerError
from rl_compat.workers.critic import CriticWorker
from rl_compat.workers.learner import LearnerWorker
from rl_compat.workers.policy import PolicyWorker
from rl_compat.workers.trained import TrainedWorker


class Adder:
    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    @dispatch(split=("rows",))
    def add(self, *, rows: list[int], amount: int) -> list[int]:
        return [row + amount for row in rows]

    @dispatch(split=("rows",))
    def twice(self, rows: list[int]) -> list[int]:
        return [row for row in rows for _ in range(2)]

    @dispatch(split=("batch",))
    def tokens(self, *, batch: Batch) -> dict[str, torch.Tensor]:
        return {"ids": batch.response_ids, "worker": torch.full((len(batch), 1), float(self.rank))}

    @dispatch()
    def rank_of_first(self) -> int:
        return self.rank

    @dispatch(merge=distinct)
    def notes(self) -> list[str]:
        return ["same", f"of {self.rank}"]

    @dispatch()
    def fails(self) -> None:
        if self.rank:
            raise ValueError(f"from worker {self.rank}")

    def undeclared(self) -> int:
        return self.rank


def local(make_worker: Any) -> LocalWorker[Any]:
    return LocalWorker(make_worker, WorkerThread("test"))


@pytest.fixture
def group() -> WorkerGroup[Adder]:
    return WorkerGroup([local(lambda rank=rank: Adder(rank)) for rank in range(2)])


def test_split_rows_come_back_in_the_order_of_the_caller(group: WorkerGroup[Adder]) -> None:
    assert group.run(Adder.add, rows=[5, 4, 3, 2, 1], amount=10).result() == [15, 14, 13, 12, 11]
    assert group.run(Adder.twice, [3, 1, 2]).result() == [3, 3, 1, 1, 2, 2]


def test_fewer_rows_than_workers_are_allowed(group: WorkerGroup[Adder]) -> None:
    assert group.run(Adder.add, rows=[1], amount=1).result() == [2]
    assert group.run(Adder.add, rows=[], amount=1).result() == []
    batch = random_batch([(2, 3)])
    assert torch.equal(group.run(Adder.tokens, batch=batch).result()["ids"], batch.response_ids)


def test_tensors_of_different_width_are_padded_and_put_in_order(group: WorkerGroup[Adder]) -> None:
    batch = random_batch()
    found = group.run(Adder.tokens, batch=batch).result()
    assert torch.equal(found["ids"], batch.response_ids)
    assert set(found["worker"].flatten().tolist()) == {0.0, 1.0}


def test_groups_stay_together_and_shares_are_balanced_by_tokens() -> None:
    batch = random_batch([(1, n) for n in (9, 1, 1, 9, 4, 4, 8, 2)])
    batch = batch.with_(groups=torch.tensor([0, 1, 1, 0, 2, 2, 3, 3]))
    shares = balanced_shares(batch, 2)
    assert shares == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert balanced_shares(batch, 2) == shares
    assert balanced_shares(batch, 6)[4:] == [[], []]
    assert sorted(row for share in balanced_shares(batch, 3) for row in share) == list(range(8))


def test_results_of_all_workers_or_of_the_first(group: WorkerGroup[Adder]) -> None:
    assert group.run(Adder.rank_of_first).result() == 0
    assert group.run(Adder.notes).result() == ["same", "of 0", "of 1"]


def test_a_method_without_a_declaration_cannot_be_called(group: WorkerGroup[Adder]) -> None:
    with pytest.raises(AssertionError, match="undeclared"):
        group.run(Adder.undeclared)


def test_an_error_of_a_worker_comes_out_of_the_future(group: WorkerGroup[Adder]) -> None:
    with pytest.raises(ValueError, match="worker 1"):
        group.run(Adder.fails).result(timeout=10)


def test_a_failed_worker_does_not_wait_for_the_others() -> None:
    class Silent:
        is_alive = True

        def call(self, name: str, arguments: dict[str, Any], *, urgent: bool) -> PendingCall[Any]:
            return PendingCall(lambda: None)

    future = WorkerGroup([Silent(), local(lambda: Adder(1))]).run(Adder.fails)
    assert isinstance(future, Future)
    with pytest.raises(ValueError, match="worker 1"):
        future.result(timeout=10)


def test_the_alarm_reaches_a_caller_that_waits_for_something_else_and_only_once() -> None:
    told: list[str] = []
    call: PendingCall[int] = PendingCall(lambda: told.append("interrupted"))
    failure = WorkerError("a process has ended")
    threading.Timer(0.1, ALARM.ring, (failure,)).start()
    with pytest.raises(WorkerError) as raised:
        call.result(timeout=10)
    assert raised.value is failure
    assert told == ["interrupted"]
    call.set_result(3)
    assert call.result() == 3


def test_a_failure_that_its_own_call_tells_raises_no_alarm_later() -> None:
    failure = WorkerError("a process has ended")
    failed: PendingCall[int] = PendingCall(lambda: None)
    ALARM.ring(failure)
    failed.set_exception(failure)
    with pytest.raises(WorkerError):
        failed.result()
    with pytest.raises(TimeoutError):
        PendingCall(lambda: pytest.fail("a time limit interrupts nothing")).result(timeout=0.01)


SNIPPET = """
    from rl_compat.distributed.group import dispatch
    from rl_compat.distributed.group import WorkerGroup

    class Trainer:
        @dispatch()
        def update(self, *, rows: list[int], seed: int) -> dict[str, float]:
            return {"loss": float(len(rows) + seed)}

    class Other:
        @dispatch()
        def notes(self) -> list[str]:
            return []

    def calls(group: WorkerGroup[Trainer]) -> list[str]:
        group.run(Trainer.update, rows=[1], seed=1)
        group.run(Trainer.update, rows=[1], seed="one")
        group.run(Trainer.update, rows=[1])
        group.run(Trainer.update, rows=[1], seed=1, epochs=2)
        group.run(Other.notes)
        return group.run(Trainer.update, rows=[1], seed=1).result()
"""


def test_mypy_sees_a_wrong_argument_of_a_worker_method(tmp_path: Path) -> None:
    """Against a copy of what the snippet imports, so that nothing else of the package is checked."""
    package = Path(rl_compat.__file__).parent
    for name in ("distributed/group.py", "batch.py", "trajectory.py"):
        copied = tmp_path / "rl_compat" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        (copied.parent / "__init__.py").touch()
        copied.write_text((package / name).read_text())
    file, config = tmp_path / "snippet.py", tmp_path / "mypy.ini"
    file.write_text(textwrap.dedent(SNIPPET))
    config.write_text("[mypy]\nfollow_imports = silent\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), "--cache-dir", str(tmp_path)]
    checked = subprocess.run([*command, str(file)], capture_output=True, text=True, cwd=tmp_path, check=False)
    found = {
        (int(line.split(":")[1]), line.rsplit("[", 1)[1].rstrip("]"))
        for line in checked.stdout.splitlines()
        if ": error:" in line
    }
    assert found == {(17, "arg-type"), (18, "call-arg"), (19, "call-arg"), (20, "arg-type"), (21, "return-value")}, (
        checked.stdout
    )


@pytest.mark.parametrize("worker", [PolicyWorker, CriticWorker, LearnerWorker])
def test_an_overridden_worker_method_is_declared_as_the_one_it_overrides(worker: type[TrainedWorker]) -> None:
    declared = {name: method for name, method in vars(TrainedWorker).items() if hasattr(method, "__dispatch__")}
    assert {name: dispatch_of(getattr(worker, name)) for name in declared} == {
        name: dispatch_of(method) for name, method in declared.items()
    }
