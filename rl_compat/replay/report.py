"""What a run's record holds, in numbers and as one file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow

from rl_compat.errors import ConfigError, write_failure
from rl_compat.models.files.atomic import file_written_whole
from rl_compat.replay.record import (
    FOLDER,
    drawn_groups,
    file_versions,
    read_steps,
    record_files,
    schema_of,
    steps_of,
    write_steps,
)

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
FORMATS = (".parquet", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSummary:
    """The responses of a run in numbers."""

    num_rows: int
    num_groups: int
    first_step: int
    last_step: int
    num_files: int
    num_bytes: int
    "on disk"
    policy_versions: tuple[int, int] | None
    "the oldest and the newest that drew a token; None where unknown"
    reward_mean: float | None
    "None without a reward"
    reward_std: float | None
    reward_quantiles: dict[str, float]
    "by fraction of the rows"
    num_unscored: int
    finish_reasons: dict[str, int]
    groups_by_uses: dict[int, int]
    "number of groups by the number of steps that trained on them; 0 for those that dynamic sampling replaced"
    reuse_age: tuple[float, int] | None
    "mean and largest number of steps between a group's own step and those that drew it; None without draws"


def record_folder(run: Path) -> Path:
    """The record of a run. Raises ConfigError if there is none."""
    if not run.is_dir():
        raise ConfigError(f"there is no folder `{run}`", hint="give the folder of a run, its `trainer.output_dir`")
    if not record_files(run / FOLDER):
        raise ConfigError(f"`{run}` has no record of responses", hint="train with `samples.keep=true` to write one")
    return run / FOLDER


def summarize(folder: Path) -> RecordSummary:
    """The numbers of a record, read one step at a time. Raises RLCompatError for a file that cannot be read."""
    rewards, finish_reasons = [], Counter[str]()
    step_of: dict[int, int] = {}
    "by group"
    uses: Counter[int] = Counter()
    ages, versions = [], []
    for step, table in read_steps(folder, ["group", "trained", "reward", "finish_reason"]):
        rewards.append(table["reward"].to_numpy())
        finish_reasons.update(table["finish_reason"].to_pylist())
        step_of |= dict.fromkeys(table["group"].to_pylist(), step)
        drawn = drawn_groups(table)
        uses.update({*table.filter(table["trained"])["group"].to_pylist(), *drawn})
        ages += [step - step_of[group] for group in drawn if group in step_of]
    files = record_files(folder)
    for file in files:
        versions += file_versions(file)
    every = np.concatenate(rewards).astype(float)
    known = every[~np.isnan(every)]
    quantiles = np.quantile(known, QUANTILES).tolist() if len(known) else []
    return RecordSummary(
        num_rows=len(every),
        num_groups=len(step_of),
        first_step=min(step_of.values()),
        last_step=max(step_of.values()),
        num_files=len(files),
        num_bytes=sum(file.path.stat().st_size for file in files),
        policy_versions=(min(versions), max(versions)) if versions else None,
        reward_mean=float(known.mean()) if len(known) else None,
        reward_std=float(known.std()) if len(known) else None,
        reward_quantiles={f"{fraction:g}": value for fraction, value in zip(QUANTILES, quantiles, strict=False)},
        num_unscored=len(every) - len(known),
        finish_reasons=dict(finish_reasons.most_common()),
        groups_by_uses=dict(sorted(Counter(uses[group] for group in step_of).items())),
        reuse_age=(math.fsum(ages) / len(ages), max(ages)) if ages else None,
    )


def export_rows(folder: Path, output: Path, *, steps: tuple[int, int] | None = None) -> int:
    """Write the rows of a record, or of the steps from the first to the last given, as one file; returns their number.

    The ending of `output` decides between parquet and JSON lines. Raises ConfigError for another ending and for steps
    that are not there.
    """
    if output.suffix not in FORMATS:
        raise ConfigError(
            f"`{output}` ends with neither `.parquet` nor `.jsonl`", hint="name the file with one of them"
        )
    files = record_files(folder)
    held = [step for file in files for step in steps_of(file)]
    first, last = steps or (held[0], held[-1])
    if not any(first <= step <= last for step in held):
        raise ConfigError(
            f"the record has no step from {first} to {last}, it has {held[0]} to {held[-1]}",
            hint="give steps of the record",
        )
    tables = read_steps(folder, steps=(first, last))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".parquet":
            return write_steps(output, tables, schema_of(files))
        with file_written_whole(output) as aside:
            return _write_lines(aside, tables)
    except OSError as error:
        cause = write_failure(error)[0]
        raise ConfigError(f"`{output}` could not be written: {cause}", hint="name a file in another folder") from error


def _write_lines(path: Path, tables: Iterator[tuple[int, pyarrow.Table]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for _, table in tables:
            for row in table.to_pylist():
                row["ground_truth"] = json.loads(row["ground_truth"])
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += len(table)
    return count
