"""Phases are timed, and an unusually long one is spoken of."""

from __future__ import annotations

import threading
import time

from rl_compat.trainer.reporter import Timer


class Listener:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.phases: list[tuple[str, int, int]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        self.phases.append((name, done, total))


def test_a_long_phase_says_what_is_awaited_and_how_much_is_done() -> None:
    """A-UX-04"""
    listener = Listener()
    timer = Timer(listener, patience_seconds=0.05)
    with timer("reward", items=8) as on_progress:
        on_progress(3)
        time.sleep(0.2)
    assert "still in `reward`" in listener.lines[0]
    assert "3 of 8 done" in listener.lines[0]


def test_a_quick_phase_says_nothing_and_is_added_up() -> None:
    listener = Listener()
    timer = Timer(listener, patience_seconds=5)
    for _ in range(2):
        with timer("gen", items=2) as on_progress:
            on_progress(2)
    seconds = timer.take()
    assert set(seconds) == {"gen"}
    assert listener.lines == []
    assert timer.take() == {}
    assert ("gen", 2, 2) in listener.phases


def test_phases_of_several_threads_are_added_up_and_recorded_with_their_threads() -> None:
    timer = Timer(Listener())
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            with timer("gen", items=3, step=7):
                time.sleep(0.0005)

    threads = [threading.Thread(target=work, name=f"stage {number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = timer.take_spans()
    assert {span.thread for span in spans} == {thread.name for thread in threads}
    assert len(spans) == 400
    assert {(span.name, span.rows, span.step) for span in spans} == {("gen", 3, 7)}
    assert timer.take()["gen"] > 0.99 * sum(span.seconds for span in spans)
    assert timer.take_spans() == []
