"""The simulated run against the data flow of a run, whose engine and learner sleep as long as real ones work."""

from __future__ import annotations

import random
import threading
import time

import pytest

from rl_compat.planning.simulation.flow import Flow, simulate
from rl_compat.trainer.flow import DataFlow, Stage

TOKEN, ROWS, SLOTS, STEPS = 0.015, 8, 16, 24
DRAW = random.Random(0)
LENGTHS = [min(60, max(1, round(DRAW.lognormvariate(2, 1)))) for _ in range(ROWS * STEPS)]


class SleepingEngine:
    """Generates rows in the order of their steps, in as many threads as it has slots."""

    def __init__(self) -> None:
        self._slots = threading.Semaphore(SLOTS)
        self._next_step = 0
        self._turn = threading.Condition()

    def generate(self, step: int) -> int:
        with self._turn:
            self._turn.wait_for(lambda: self._next_step == step)
        threads = []
        for length in LENGTHS[step * ROWS : (step + 1) * ROWS]:
            self._slots.acquire()
            threads.append(threading.Thread(target=self._row, args=(length,)))
            threads[-1].start()
        with self._turn:
            self._next_step += 1
            self._turn.notify_all()
        for thread in threads:
            thread.join()
        return step

    def _row(self, length: int) -> None:
        time.sleep(length * TOKEN)
        self._slots.release()


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_a_simulated_run_takes_as_long_as_the_data_flow_within_ten_percent(max_staleness: int) -> None:
    flow = Flow(
        on_update="continue",
        batch_rows=ROWS,
        num_slots=SLOTS,
        decode_seconds=TOKEN,
        row_seconds=6 * TOKEN / ROWS,
        max_staleness=max_staleness,
    )
    per_token = flow.row_seconds / (sum(LENGTHS) / len(LENGTHS))
    rollout: Stage[int, int] = Stage(SleepingEngine().generate, name="rollout", calls=max_staleness + 1)
    learner: Stage[int, None] = Stage(
        lambda step: time.sleep(per_token * sum(LENGTHS[step * ROWS : (step + 1) * ROWS]))
    )
    start = time.monotonic()
    DataFlow().connect(rollout >> learner, staleness=max_staleness).run(range(STEPS))
    seconds = time.monotonic() - start
    assert simulate(flow, LENGTHS, num_steps=STEPS).seconds == pytest.approx(seconds, rel=0.1)
