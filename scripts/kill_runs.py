"""Kill training runs at random moments of every stage, resume them, and compare them with undisturbed ones.

    python scripts/kill_runs.py --kills 100
    python scripts/kill_runs.py --kills 10 --only "asynchronous, two processes"

Every run is killed and resumed until it is finished. Runs start as forks of one process that has imported everything.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1"}

from safetensors.torch import load_file

import rl_compat.trainer.run as run_module
from rl_compat.cli.app import main as rlc
from rl_compat.data.order.batches import epoch_order
from rl_compat.hardware.probe import probe
from rl_compat.hardware.recording import save_recording
from rl_compat.replay.record import RecordWriter, drawn_groups, read_steps
from rl_compat.tracking.jsonl import JsonlTracker
from rl_compat.trainer.checkpoints import find_newest
from rl_compat.trainer.online.reinforcement import Reinforcement
from rl_compat.trainer.run_folder import RunFolder
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.reward import RewardModel

STAGES: dict[str, tuple[Any, str]] = {
    "start": (RunFolder, "begin"),
    "load": (Reinforcement, "load"),
    "generation": (ActorModel, "generate"),
    "reward": (RewardModel, "compute_rewards"),
    "log-probabilities": (ActorModel, "compute_logprobs"),
    "update": (ActorModel, "update"),
    "record": (RecordWriter, "write"),
    "samples": (RunFolder, "write_samples"),
    "metrics": (JsonlTracker, "log"),
    "save": (run_module, "write_checkpoint"),
    "removal": (run_module, "prune"),
    "validation": (Reinforcement, "validate"),
}
"what a stage begins with; it ends where the next one begins"
MODULES = "modules"
NUM_ROWS = 24
BASE = {
    "model.path": "tiny",
    "data.train_files": "arithmetic",
    "data.val_files": "arithmetic",
    "data.max_train_samples": NUM_ROWS,
    "data.max_val_samples": 8,
    "data.max_prompt_length": 16,
    "data.max_response_length": 4,
    "optimizer.actor_lr": 1e-3,
    "optimizer.critic_lr": 1e-3,
    "trainer.batch_size": 8,
    "trainer.mini_batch_size": 4,
    "trainer.num_steps": 6,
    "trainer.save_every": 1,
    "trainer.validate_every": 2,
    "trainer.loggers": "jsonl",
    "samples.keep": True,
}
GROUPS = {"algorithm.name": "grpo", "algorithm.group_size": 2}
REUSE = {"samples.reuse": 3, "samples.replay.draws": 0.5, "samples.replay.priority": "advantage"}
DYNAMIC = {"algorithm.dynamic_sampling": True, "algorithm.max_sampling_rounds": 2}
POOLS = {"plan.device": "cpu", "pools.gen.roles": "rollout", "pools.gen.device": "cpu"}


def asynchronous(staleness: int) -> dict[str, Any]:
    return {"trainer.flow": "async", "trainer.max_staleness": staleness}


@dataclass(frozen=True, kw_only=True)
class KilledKind:
    """A kind of run, and how it is killed."""

    settings: dict[str, Any]
    exact: bool = True
    "resumed runs give the numbers of undisturbed ones"
    weight: int = 1
    "share of the kills"
    by_default: bool = True
    processes: bool = False
    "devices have processes of their own, of which one is killed every second time"


FORMS = {
    "ppo": KilledKind(settings={"algorithm.kl_in_reward": "k1", "algorithm.kl_coef": 0.05}, weight=2),
    "grpo, reuse": KilledKind(settings={**GROUPS, **REUSE}, weight=2),
    "grpo, dynamic sampling": KilledKind(settings={**GROUPS, **REUSE, **DYNAMIC}, weight=2),
    "ppo, a checkpoint every 3 steps": KilledKind(settings={"trainer.save_every": 3, "samples.keep": False}),
    "asynchronous, staleness 0": KilledKind(settings={**GROUPS, **REUSE, **asynchronous(0)}),
    "asynchronous, staleness 2": KilledKind(settings={**GROUPS, **REUSE, **asynchronous(2)}, exact=False, weight=2),
    "two processes, staleness 0": KilledKind(settings={**GROUPS, **asynchronous(0), **POOLS}, processes=True, weight=0),
    "two processes, staleness 1": KilledKind(
        settings={**GROUPS, **asynchronous(1), **POOLS}, exact=False, processes=True, weight=0
    ),
}


@dataclass(kw_only=True)
class ForkedRun:
    """A run in a process of its own, which tells the stages that it begins."""

    process: int
    stages: int
    "the descriptor from which their numbers are read, one byte each"
    heard: list[tuple[float, str]] = field(default_factory=list)

    def listen(self, seconds: float | None) -> bool:
        """Wait for further stages; False at the end of the process."""
        if not select.select([self.stages], [], [], seconds)[0]:
            return True
        told, now = os.read(self.stages, 64), time.perf_counter()
        self.heard += [(now, list(STAGES)[number]) for number in told]
        return bool(told)

    def ended(self) -> int:
        """The exit code of the process, or minus the signal that ended it."""
        while self.listen(None):
            pass
        os.close(self.stages)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def kill(self) -> None:
        """End all processes of the run at once."""
        for process in {self.process, *_of_session(self.process)}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def kill_a_worker(self, moments: random.Random) -> None:
        """End the process of one device; all, where none has started."""
        workers = sorted(process for process, command in _of_session(self.process).items() if "RayHost" in command)
        with suppress(ProcessLookupError):
            os.kill(moments.choice(workers or [self.process]), signal.SIGKILL)


def _of_session(session: int) -> dict[int, str]:
    """The processes of a session with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return found


def start(arguments: Sequence[str], output: Path) -> ForkedRun:
    """`rlc train` in a fork of this process. Next to its output it leaves the names of all modules that it imported."""
    reads, writes = os.pipe()
    process = os.fork()
    if process:
        os.close(writes)
        return ForkedRun(process=process, stages=reads)
    code = 70
    try:
        os.setsid()
        os.close(reads)
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for number, (owner, name) in enumerate(STAGES.values()):
            setattr(owner, name, _telling(getattr(owner, name), bytes([number]), writes))
        code = rlc(["train", *arguments])
        output.with_name(MODULES).write_text("\n".join(sys.modules))
    finally:
        os._exit(code)


def import_all(names: Iterable[str]) -> None:
    """Import modules that runs import late, so that the next forks have them."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # some are made by other modules
                importlib.import_module(name)


def _telling(function: Callable[..., Any], told: bytes, descriptor: int) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        os.write(descriptor, told)
        return function(*arguments, **named)

    return call


def durations(heard: Sequence[tuple[float, str]]) -> dict[str, float]:
    """The mean time from the begin of each stage to that of the next."""
    found: dict[str, list[float]] = {}
    for (begin, stage), (end, _) in pairwise(heard):
        found.setdefault(stage, []).append(end - begin)
    return {stage: fmean(values) for stage, values in found.items()}


def kill_in(run: ForkedRun, stage: str, *, call: int, seconds: float, kill: Callable[[], None]) -> bool:
    """Kill a run some seconds after the given call of a stage; False if it ends before."""
    count = 0
    while count < call:
        before = len(run.heard)
        if not run.listen(None):
            return False
        count += sum(heard == stage for _, heard in run.heard[before:])
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        if not run.listen(left):
            return False
    kill()
    return True


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The metrics of each step and validation, without those that measure time and memory."""
    apart = ("timing_s/", "perf/", "memory_gb/", "handover/seconds")
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if not name.startswith(apart)} for line in lines]


def record_of(run: Path) -> dict[int, tuple[list[dict[str, Any]], list[int]]]:
    """The responses of each step, and the groups that it drew from earlier ones."""
    return {step: (table.to_pylist(), drawn_groups(table)) for step, table in read_steps(run / "replay")}


def check_what_is_left(run: Path, settings: dict[str, Any]) -> None:
    """Of a run that was killed: every step up to its newest checkpoint is there."""
    saved = find_newest(run / "checkpoints").step
    if saved == 0:
        return
    known = [line["step"] for line in metrics_lines(run) if "training/global_step" in line]
    assert known[:saved] == list(range(1, saved + 1)), f"checkpoint {saved}, metrics {known}"
    if settings["samples.keep"]:
        assert list(record_of(run))[:saved] == list(range(1, saved + 1)), f"checkpoint {saved}, {list(record_of(run))}"


def metrics_lines(run: Path) -> Iterator[dict[str, Any]]:
    for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def check_sums(run: Path, settings: dict[str, Any]) -> None:
    """Of a finished run: each step and validation once, each prompt trained, filtered or pending, and none twice."""
    steps, lines = int(settings["trainer.num_steps"]), metrics_of(run)
    assert [line["step"] for line in lines if "training/global_step" in line] == list(range(1, steps + 1))
    every = settings["trainer.validate_every"]
    validated = [line["step"] for line in lines if "training/global_step" not in line]
    assert validated == list(range(0, steps + 1, every)), validated
    assert [path.name for path in run.rglob(".*") if path.name not in (".lock",)] == []
    assert find_newest(run / "checkpoints").step == steps
    state = json.loads((run / "checkpoints" / f"step_{steps}" / "trainer.json").read_text())
    order = state["order"]
    taken = [
        row
        for epoch in range(order["epoch"] + 1)
        for row in list(epoch_order(NUM_ROWS, shuffle=order["shuffle"], seed=order["seed"], epoch=epoch))[
            : order["offset"] if epoch == order["epoch"] else NUM_ROWS
        ]
    ]
    if not settings["samples.keep"]:
        return
    record, seen, uses, rows = record_of(run), Counter[int](), Counter[int](), []
    assert list(record) == list(range(1, steps + 1))
    for responses, drawn in record.values():
        groups = {response["group"]: response for response in responses}
        seen.update(groups.keys())
        uses.update([*(group for group, response in groups.items() if response["trained"]), *drawn])
        rows += [response["row"] for response in groups.values()]
        assert Counter(response["group"] for response in responses).most_common()[-1][1] == settings.get(
            "algorithm.group_size", 1
        )
    assert max(seen.values()) == 1 and uses.keys() <= seen.keys()
    assert max(uses.values()) <= settings.get("samples.reuse", 1)
    assert Counter(rows) + Counter(state["pending"]) == Counter(taken)


def check_same(run: Path, whole: Path, settings: dict[str, Any]) -> None:
    """Two finished runs have the same numbers, to the last digit."""
    assert metrics_of(run) == metrics_of(whole)
    if settings["samples.keep"]:
        assert record_of(run) == record_of(whole)
    else:
        assert (run / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()
    newest = find_newest(whole / "checkpoints").path
    assert newest is not None
    files = sorted(path.relative_to(whole) for path in newest.rglob("*.safetensors"))
    assert files
    for name in files:
        mine, others = load_file(run / name), load_file(whole / name)
        assert mine.keys() == others.keys() and all(mine[key].equal(others[key]) for key in others), name


class Killer:
    """Runs of one form in a folder, and what became of them."""

    def __init__(self, form: KilledKind, folder: Path, *, hardware: Path, seed: int) -> None:
        self.settings = {**BASE, **form.settings}
        self.form, self.folder = form, folder
        self.kills: Counter[str] = Counter()
        "by stage"
        self.steps: Counter[int] = Counter()
        "kills by the step of the newest checkpoint"
        self.runs = 0
        self._hardware = hardware
        self._moments = random.Random(seed)
        folder.mkdir(parents=True)
        self.whole = folder / "whole"
        run = self._start(self.whole)
        self._expect(0, run.ended())
        self._durations = durations(run.heard)
        import_all((folder / MODULES).read_text().split())
        check_sums(self.whole, self.settings)

    def kill(self, count: int) -> None:
        """Kill runs so many times; each is resumed until it is finished."""
        stages = [stage for stage in STAGES if stage in self._durations]
        wanted = [stages[number * len(stages) // count] for number in range(count)]
        self._moments.shuffle(wanted)
        while wanted:
            self._one_run(wanted)

    def _one_run(self, wanted: list[str]) -> None:
        folder = self.folder / f"run_{self.runs}"
        self.runs += 1
        while True:
            run = self._start(folder)
            stage = wanted[-1] if wanted else "none"
            seconds = self._moments.random() * self._durations.get(stage, 0.0)
            call = self._moments.choice((1, 1, 2, 3))
            worker_alone = self.form.processes and self._moments.random() < 0.5
            kill = (lambda: run.kill_a_worker(self._moments)) if worker_alone else run.kill  # noqa: B023
            killed = kill_in(run, stage, call=call, seconds=seconds, kill=kill) if wanted else False
            code = run.ended()
            run.kill()
            if not killed:
                self._expect(0, code)
                break
            wanted.pop()
            self.kills[stage] += 1
            if not worker_alone:
                self._expect(-signal.SIGKILL, code)
            check_what_is_left(folder, self.settings)
            self.steps[find_newest(folder / "checkpoints").step] += 1
        check_sums(folder, self.settings)
        if self.form.exact:
            check_same(folder, self.whole, self.settings)

    def _start(self, folder: Path) -> ForkedRun:
        settings = {**self.settings, "trainer.output_dir": folder}
        arguments = [f"{name}={value}" for name, value in settings.items()]
        return start(["--hardware", str(self._hardware), *arguments], self._output)

    @property
    def _output(self) -> Path:
        return self.folder / "output"

    def _expect(self, expected: int, code: int) -> None:
        shown = self._output.read_text()[-4000:] if code != expected else ""
        assert code == expected, f"exit code {code}, expected {expected}:\n{shown}"


def shares(count: int, forms: Iterable[str], *, given: bool) -> dict[str, int]:
    """How many kills each form gets."""
    weights = {name: 1 if given else FORMS[name].weight for name in forms}
    total, found, left = sum(weights.values()), {}, count
    for name, weight in weights.items():
        found[name] = left * weight // total if total else 0
        left, total = left - found[name], total - weight
    return {name: number for name, number in found.items() if number}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=FORMS, help="some of the kinds of runs")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="an empty folder for the runs (default: a temporary one)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = probe()
        hardware = folder / "hardware.json"
        save_recording(replace(found, host=replace(found.host, num_cores=1)), hardware)
        print(
            "| run | kills | runs | by stage | by step of the newest checkpoint | seconds |\n|---|---|---|---|---|---|"
        )
        total = 0
        for name, count in shares(given.kills, given.only or FORMS, given=bool(given.only)).items():
            begin = time.perf_counter()
            killer = Killer(FORMS[name], folder / name.replace(" ", "_"), hardware=hardware, seed=given.seed)
            killer.kill(count)
            stages = ", ".join(f"{stage} {killer.kills[stage]}" for stage in STAGES if killer.kills[stage])
            steps = ", ".join(f"{step}: {number}" for step, number in sorted(killer.steps.items()))
            seconds = time.perf_counter() - begin
            print(f"| {name} | {count} | {killer.runs} | {stages} | {steps} | {seconds:.0f} |", flush=True)
            total += count
    print(f"{total} kills: nothing is lost, nothing is counted twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
