"""What a simulation needs to know: how fast the devices are, and how long the responses."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from rl_compat.config.load import load_config
from rl_compat.errors import UsageError, quoted
from rl_compat.planning.memory.budget import shards_of
from rl_compat.planning.serialize import load_plan
from rl_compat.planning.simulation.flow import Flow, simulate
from rl_compat.planning.speed.rates import LinkRate, link_within, slower
from rl_compat.planning.speed.step import Solved, decode_rate, handover_bytes, phase_seconds, transfers
from rl_compat.units import counted

ESTIMATES = "estimates of the plan"
NUM_LENGTHS = 16_384
"that are drawn"
FEWEST_LENGTHS = 20
TAIL = 0.99
"quantile that is given with the mean"
USUAL_MEAN = 1 / 3
"of the longest response, if lengths are not given"
NOT_LEARNING = ("gen", "gen_max", "reward", "handover", "step", "testing", "wait")
"timed phases"
GUESSED_STEPS = 4


def planned_flow(solved: Mapping[str, Solved], network: LinkRate, *, batch_rows: int, mean_length: float) -> Flow:
    """One device by the estimates of a plan, for responses of a mean length. Raises UsageError where it has none."""
    generates = next(pool for pool in solved.values() if pool[0].workload.generates)
    decided, found = generates
    cards = sorted({device.name for pool, _ in solved.values() for device in pool.hardware.devices})
    if len(cards) > 1:
        raise UsageError(
            f"a simulation divides equal cards, and the pools have {quoted(cards)}", hint="simulate pools of one card"
        )
    rate = decode_rate(generates)
    if rate is None:
        raise UsageError(
            f"the speed of `{cards[0] if cards else decided.hardware.host.cpu_name}` is not known",
            hint="simulate with the times of a run on it: `--measured RUN`",
        )
    link = link_within(decided.hardware) if len(decided.hardware.devices) > 1 else network
    across = any(pool.requests.plan.num_nodes > 1 for pool, _ in solved.values())
    moved = [item for name in solved for item in transfers(solved, name, network)]
    return Flow(
        on_update="continue",
        batch_rows=batch_rows,
        source=ESTIMATES,
        num_slots=found.sizes.max_num_seqs,
        decode_seconds=rate.decode_seconds,
        sequence_seconds=rate.sequence_seconds,
        prefill_seconds=rate.prefill_seconds,
        row_seconds=sum(_row_seconds(pool, mean_length) for pool in solved.values()),
        step_seconds=sum(item.seconds or 0.0 for item in moved if item.name != "handover" or len(solved) == 1),
        handover_seconds=(slower(link, network) if across else link).seconds(handover_bytes(generates)) or 0.0,
        num_shards=max(shards_of(pool.workload, levers.levers, "actor") for pool, levers in solved.values()),
    )


def _row_seconds(pool: Solved, mean_length: float) -> float:
    """Of all that a pool does with a response after it is generated."""
    workload = pool[0].workload
    generated = {phase.name for phase in workload.phases if phase.does == "generate"}
    seconds = sum(seconds for name, seconds in phase_seconds(pool).items() if name not in generated)
    tokens = workload.batch_size * workload.sequences_per_row * workload.length
    return seconds / tokens * (workload.max_prompt_length + mean_length)


def measured_flow(folder: Path, lengths: Sequence[int], *, like: Flow) -> Flow:
    """One device by the mean times of a run's steps after the first.

    `like` says how decoding depends on the number of sequences, and has the rows of a step. Raises UsageError for a
    folder without two steps that generate.
    """
    config, plan = load_config(folder / "run.toml", []).config, load_plan(folder / "plan.json")
    steps = [line for line in _lines(folder / "metrics.jsonl") if line.get("timing_s/step")][1:]
    mean = {name: fmean(step.get(name) or 0.0 for step in steps) for name in {name for step in steps for name in step}}
    if not mean.get("timing_s/gen") or plan.rollout is None:
        raise UsageError(f"`{folder}` has no two steps that generate", hint="let the run make more steps")
    phases = {name.removeprefix("timing_s/"): seconds for name, seconds in mean.items() if name.startswith("timing_s/")}
    learned = sum(seconds for name, seconds in phases.items() if name not in NOT_LEARNING)
    waited = sum(phases.get(name, 0.0) for name in NOT_LEARNING[:4])
    loaded, rows = mean.get("handover/seconds", 0.0), config.trainer.batch_size * config.algorithm.group_size
    engines = plan.pools[plan.rollout.pool].num_ranks
    guess = replace(like, generating=engines, num_slots=plan.rollout.max_num_seqs, batch_rows=rows)
    guess = replace(guess, reward_seconds=0.0, row_seconds=0.0, step_seconds=0.0, handover_seconds=0.0)
    factor = (
        max(0.0, phases["gen"] - loaded) * GUESSED_STEPS / simulate(guess, lengths, num_steps=GUESSED_STEPS).seconds
    )
    return replace(
        like,
        source=f"mean of {counted(len(steps), 'step')} of `{folder}`",
        num_slots=guess.num_slots,
        decode_seconds=factor * like.decode_seconds,
        sequence_seconds=factor * like.sequence_seconds,
        prefill_seconds=factor * like.prefill_seconds,
        reward_seconds=phases.get("reward", 0.0),
        row_seconds=learned * plan.pool_of("actor").num_ranks / rows,
        step_seconds=max(0.0, phases["step"] - learned - waited),
        handover_seconds=max(loaded, phases.get("handover", 0.0)),
    )


def recorded_lengths(folder: Path, *, longest: int) -> list[int]:
    """Lengths drawn from the samples of a run. Raises UsageError if it has too few."""
    known = [line["num_tokens"] for line in _lines(folder / "samples.jsonl") if isinstance(line.get("num_tokens"), int)]
    if len(known) < FEWEST_LENGTHS:
        raise UsageError(
            f"`{folder}` has the lengths of {len(known)} responses, and {FEWEST_LENGTHS} are needed",
            hint="let it make more steps, or set `trainer.num_sample_generations`",
        )
    return [min(longest, max(1, number)) for number in random.Random(0).choices(known, k=NUM_LENGTHS)]


def lognormal_lengths(mean: float, tail: float, *, longest: int) -> list[int]:
    """Lengths with a mean and a 99th percentile, none above the longest. Raises UsageError if no lognormal has them."""
    z, ratio = NormalDist().inv_cdf(TAIL), tail / max(mean, 1e-9)
    if not 1.0 < ratio < exp(z * z / 2):
        raise UsageError(
            f"no lognormal distribution has the mean {mean:g} and the 99th percentile {tail:g}",
            hint=f"the percentile is 1 to {exp(z * z / 2):.1f} times the mean",
        )
    sigma = z - sqrt(z * z - 2 * log(ratio))
    mu = log(mean) - sigma * sigma / 2
    draw = random.Random(0)
    return [min(longest, max(1, round(draw.lognormvariate(mu, sigma)))) for _ in range(NUM_LENGTHS)]


def given_lengths(text: str | None, *, longest: int) -> list[int]:
    """Of a run's folder, of `MEAN,P99`, or a third of the longest response with the longest as its 99th percentile.

    Raises UsageError.
    """
    if text is None:
        return lognormal_lengths(longest * USUAL_MEAN, longest, longest=longest)
    numbers = re.fullmatch(r"(\d+),(\d+)", text)
    if numbers is not None:
        return lognormal_lengths(*map(int, numbers.groups()), longest=longest)
    return recorded_lengths(Path(text), longest=longest)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a record of a run. Raises UsageError if there is none."""
    if not path.is_file():
        raise UsageError(f"there is no `{path}`", hint="name the folder of a run")
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found
