"""Calls of workers in this process: order, overlap, interruption."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import CancelledError

import pytest
import torch

from rl_compat.distributed.group import WorkerGroup, dispatch
from rl_compat.distributed.local import CallAborted, LocalWorker, WorkerThread, abort_running_calls, device_thread
from rl_compat.distributed.pool import ResourcePool, start_without_device
from rl_compat.distributed.ranks import WorkerPlacement
from rl_compat.trainer.interrupt import Interrupted, StopSignals


class Slow:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.started = threading.Event()
        self.released = threading.Event()

    @dispatch()
    def wait(self, name: str) -> str:
        """Until released; in short steps, as Python code around tensor operations runs."""
        self.started.set()
        try:
            while not self.released.is_set():
                time.sleep(0.01)
            self.seen.append(name)
        except CallAborted:
            self.seen.append(f"{name} aborted")
            raise
        return name

    @dispatch()
    def thread(self) -> str:
        return threading.current_thread().name

    @dispatch(urgent=True)
    def release(self) -> str:
        self.released.set()
        return threading.current_thread().name


@pytest.fixture
def slow() -> Slow:
    return Slow()


def group_of(worker: Slow) -> WorkerGroup[Slow]:
    return WorkerGroup([LocalWorker(lambda: worker, WorkerThread("test"))])


def test_a_future_is_pending_when_it_is_returned_and_calls_run_in_order(slow: Slow) -> None:
    group = group_of(slow)
    one, two = group.run(Slow.wait, "one"), group.run(Slow.wait, "two")
    assert not one.done()
    assert not two.done()
    assert group.run(Slow.release).result() == threading.current_thread().name
    assert (one.result(), two.result()) == ("one", "two")
    assert slow.seen == ["one", "two"]


def test_workers_of_one_device_share_its_thread_and_others_have_their_own() -> None:
    pool = ResourcePool(gpus=[])
    starts = pool.start, ResourcePool(gpus=[]).start, start_without_device
    one, two, host_only = (start(lambda place: Slow()) for start in starts)
    assert one.run(Slow.thread).result() == two.run(Slow.thread).result() == "device-cpu"
    pending = one.run(Slow.wait, "device")
    assert host_only.run(Slow.thread).result(timeout=10) == "host"
    assert not pending.done()
    one.run(Slow.release)
    assert pending.result() == "device"


def test_an_error_while_a_worker_is_made_is_raised_at_once() -> None:
    def broken(place: WorkerPlacement) -> Slow:
        raise ValueError("no worker")

    with pytest.raises(ValueError, match="worker"):
        ResourcePool(gpus=[]).start(broken)


def test_a_signal_aborts_the_running_call_before_it_continues(slow: Slow) -> None:
    """The worker is idle again when the exception of the signal arrives, and works on."""
    group = group_of(slow)
    running, waiting = group.run(Slow.wait, "one"), group.run(Slow.wait, "two")
    slow.started.wait(10)
    with pytest.raises(Interrupted), StopSignals(lambda text: None).installed():
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        running.result(timeout=30)
    with pytest.raises(CallAborted):
        running.result(timeout=10)
    assert isinstance(waiting.exception(timeout=10) if not waiting.cancelled() else CancelledError(), CancelledError)
    assert slow.seen == ["one aborted"]
    group.run(Slow.release)
    assert group.run(Slow.wait, "three").result(timeout=10) == "three"


def test_a_device_is_idle_after_an_abort() -> None:
    worker = Slow()
    group = ResourcePool(gpus=[]).start(lambda place: worker)
    pending = group.run(Slow.wait, "one")
    worker.started.wait(10)
    abort_running_calls()
    assert pending.done()
    assert worker.seen == ["one aborted"]


def test_a_call_that_has_ended_is_not_aborted(slow: Slow) -> None:
    group = group_of(slow)
    group.run(Slow.release)
    assert group.run(Slow.wait, "one").result() == "one"
    for _ in range(50):
        abort_running_calls()
        assert group.run(Slow.wait, "more").result() == "more"


def test_a_time_limit_of_the_caller_aborts_nothing(slow: Slow) -> None:
    group = group_of(slow)
    pending = group.run(Slow.wait, "one")
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.05)
    group.run(Slow.release)
    assert pending.result(timeout=10) == "one"


def test_a_thread_and_its_workers_end_with_their_group() -> None:
    made: list[weakref.ref[Slow]] = []

    def make(place: WorkerPlacement) -> Slow:
        worker = Slow()
        made.append(weakref.ref(worker))
        return worker

    group = start_without_device(make)
    group.run(Slow.thread).result()
    threads = [thread for thread in threading.enumerate() if thread.name == "host"]
    del group
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert made[0]() is None
    assert not any(thread.is_alive() for thread in threads)


def test_calls_have_the_number_of_torch_threads_of_the_caller() -> None:
    thread = device_thread("cpu")
    before = torch.get_num_threads()
    assert thread.submit(torch.get_num_threads).result() == before
    try:
        torch.set_num_threads(before + 1)
        assert thread.submit(torch.get_num_threads).result() == before + 1
    finally:
        torch.set_num_threads(before)
    assert thread.submit(torch.get_num_threads).result() == before
