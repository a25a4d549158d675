"""`rlc data`: check datasets before a run, and write datasets as parquet files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rl_compat.cli.common import show_report
from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_warning, progress
from rl_compat.errors import ConfigError, did_you_mean, quoted
from rl_compat.units import counted

if TYPE_CHECKING:
    from rl_compat.config.load import LoadedConfig
    from rl_compat.data.builtin.build import Written
    from rl_compat.data.check.file_check import FileCheck
    from rl_compat.data.check.findings import DataProblem, FileReport

app = new_app()


@app.callback()
def data() -> None:
    """Check datasets, and write them as parquet files."""


@app.command()
def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [RUN.TOML] [KEY=VALUE]...",
            help="Data files, patterns, folders, hub ids or `gsm8k`: the first is training data, the others are held "
            "out. Without any, the data of the settings.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Use the tokenizer and the chat template of this model.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Validate every row the way a run does: lengths, chat template, copies, data sources and answers.

    `algorithm.name` selects the kind of data: responses for `sft`, pairs for `dpo` and `reward_model`, labels for
    `kto`, otherwise prompts. The exit code is 1 when a run would fail on rows, drop them or misread them.

    Example: rlc data check train.parquet test.parquet --model Qwen/Qwen2.5-0.5B-Instruct data.max_prompt_length=1024
    """
    from rl_compat.algorithms.table import ALGORITHMS
    from rl_compat.data.read.reading import open_files
    from rl_compat.trainer.setup.objects import data_columns

    loaded, names = _read_arguments(arguments or [], model)
    config, announce = loaded.config, lambda note: print_note(f"note: {note}")
    task = ALGORITHMS[config.algorithm.name].learns_from
    files = open_files(names, task=task, columns=data_columns(config.data), announce=announce)
    from rl_compat.data.check.file_check import overlap  # imports torch
    from rl_compat.trainer.tools.check_data import open_checks

    checks = open_checks(config, files, announce=announce)
    with progress(sum(item.num_rows for item in checks), "checking rows") as bar:
        reports = [item.run(bar.advance) for item in checks]
    shared = [problem for first, second in _pairs(checks) if (problem := overlap(first, second)) is not None]
    if as_json:
        print_json({"files": [asdict(report) for report in reports], "shared": [asdict(item) for item in shared]})
    else:
        _show(reports, shared)
    problems = [problem for report in reports for problem in report.problems] + shared
    return int(any(problem.spoils for problem in problems))


def _read_arguments(
    arguments: list[str], model: str | None
) -> tuple[LoadedConfig, list[tuple[str, Literal["train", "test"]]]]:
    """The settings, and the data files with their split. Raises ConfigError."""
    from rl_compat import verl
    from rl_compat.config.given import embedded_runs
    from rl_compat.config.load import load_config
    from rl_compat.data.read.reading import BUILTIN_DATASETS

    settings = [text for text in arguments if "=" in text and not Path(text).exists()]
    built_in = {
        name: path for name, path in embedded_runs().items() if name not in BUILTIN_DATASETS and not Path(name).exists()
    }
    runs = [text for text in arguments if text not in settings and (text.endswith(".toml") or text in built_in)]
    files = [text for text in arguments if text not in settings and text not in runs]
    if len(runs) > 1:
        raise ConfigError(
            f"`{runs[0]}` and `{runs[1]}` are both settings files", hint="give one of them, followed by `key=value`"
        )
    named = [] if model is None else [f"model.path={model}"]
    loaded = load_config(built_in.get(runs[0], Path(runs[0])) if runs else None, [*settings, *named], dialect=verl)
    show_report(loaded)
    if files:
        return loaded, [(name, "test" if index else "train") for index, name in enumerate(files)]
    data = loaded.config.data
    return loaded, [*((name, "train") for name in data.train_files), *((name, "test") for name in data.val_files)]


def _pairs(checks: list[FileCheck]) -> list[tuple[FileCheck, FileCheck]]:
    """Every pair of training data and held-out data."""
    pairs = [(first, second) for index, second in enumerate(checks) for first in checks[:index]]
    return [(first, second) for first, second in pairs if first.split != second.split]


def _show(reports: list[FileReport], shared: list[DataProblem]) -> None:
    for report in reports:
        print_lines([*_summary(report), *(line for problem in report.problems for line in _lines(problem)), ""])
    print_lines(line for problem in shared for line in _lines(problem))
    spoilt = sum(problem.spoils for report in reports for problem in report.problems) + len(shared)
    print_lines([f"{counted(spoilt, 'problem')} found" if spoilt else "no problems found"])


def _summary(report: FileReport) -> list[str]:
    split = "training rows" if report.split == "train" else "held-out rows"
    lines = [report.form, f"  {report.num_rows} {split}, {report.num_usable} usable"]
    for name, found in report.lengths.items():
        shape = f"minimum {found.minimum}, median {found.median}, p95 {found.p95}, maximum {found.maximum}"
        lines.append(f"  {name} tokens: {shape}")
    lines.append(f"  {report.tokens_per_epoch:,} tokens per epoch")
    lines.append(f"  a response ends at {quoted(report.end_tokens) or 'no token'}")
    if report.ground_truths:
        lines.append(f"  ground truth of the first rows: {quoted(text[:60] for text in report.ground_truths)}")
    if any(report.sources):
        counts = ", ".join(f"`{name}` {count}" for name, count in report.sources.items())
        lines.append(f"  rows by data source: {counts}")
    return lines


def _lines(problem: DataProblem) -> list[str]:
    kind = "problem" if problem.spoils else "note"
    others = [f" (row {other})" for other in problem.others] or [""] * len(problem.rows)
    named = ", ".join(f"{row}{other}" for row, other in zip(problem.rows, others, strict=True))
    left = problem.num_rows - len(problem.rows)
    rows = f"{'row' if problem.num_rows == 1 else 'rows'} {named}{f' and {left} more' if left else ''}"
    lines = [f"  {kind}: {problem.what}: {counted(problem.num_rows, 'row')} ({rows})"]
    return [*lines, f"    hint: {problem.hint}"] if problem.hint else lines


Output = Annotated[Path, typer.Option(metavar="DIR", help="Folder for `train.parquet` and `test.parquet`.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@app.command()
def gsm8k(output: Output = Path("~/data/gsm8k"), force: Force = False, as_json: AsJson = False) -> None:
    """Write the shipped GSM8K in verl's schema. Nothing is downloaded."""
    from rl_compat.data.builtin.gsm8k import write

    _check_new(*_both(output), force=force)
    written = write(output.expanduser())
    if as_json:
        print_json({split: {"path": str(path), "num_rows": num_rows} for split, (path, num_rows) in written.items()})
    else:
        print_lines(f"{path}: {num_rows} rows" for path, num_rows in written.values())


@app.command()
def math(
    source: Annotated[
        str, typer.Argument(metavar="[FILE|DIR|HUB-ID]", help="MATH, MATH-500 or data with `problem` and `solution`.")
    ] = "DigitalLearningGmbH/MATH-lighteval",
    output: Output = Path("~/data/math"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write MATH in verl's schema. The ground truth is the content of the last \\boxed of the solution.

    Example: rlc data math downloads/MATH-500/test.jsonl --output data/math
    """
    from rl_compat.data.builtin.build import build_math

    _check_new(*_both(output), force=force)
    _show_written(build_math(source, output.expanduser()), as_json=as_json)


@app.command()
def build(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A data file, such as .jsonl, .csv or .parquet.")],
    question: Annotated[str, typer.Option(metavar="NAME", help="Column with the question.")],
    answer: Annotated[str, typer.Option(metavar="NAME", help="Column with the answer.")],
    output: Annotated[Path, typer.Option(metavar="FILE.parquet", help="The file to write.")],
    instruction: Annotated[str, typer.Option(metavar="TEXT", help="Appended to each question.")] = "",
    answer_in: Annotated[
        str,
        typer.Option(
            metavar="column|hash|boxed",
            help="The ground truth: the whole column, the number after `####`, or the content of the last \\boxed.",
        ),
    ] = "column",
    data_source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Selects the reward. Default: the name of the file.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="train|test", help="Written to `extra_info.split`.")] = "train",
    drop: Annotated[bool, typer.Option("--drop", help="Drop rows without a question or an answer.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write questions and answers in verl's schema.

    Example: rlc data build qa.jsonl --question q --answer a --instruction "Answer with a number." --output qa.parquet
    """
    from rl_compat.data.builtin.build import build_file

    _one_of("--answer-in", answer_in, ("column", "hash", "boxed"))
    _one_of("--split", split, ("train", "test"))
    _check_new(output, force=force)
    written = build_file(
        source.expanduser(),
        output.expanduser(),
        question=question,
        answer=answer,
        instruction=instruction,
        data_source=data_source,
        answer_in=answer_in,  # type: ignore[arg-type]
        split=split,  # type: ignore[arg-type]
        drop=drop,
    )
    _show_written([written], as_json=as_json)
    if data_source is None:
        print_note("note: this data source has no default reward: set one, such as `reward.functions=exact_match`")


def _both(folder: Path) -> list[Path]:
    return [folder / "train.parquet", folder / "test.parquet"]


def _check_new(*paths: Path, force: bool) -> None:
    """Raise ConfigError if a file exists that would be replaced."""
    found = [str(path) for path in paths if path.expanduser().exists()]
    if found and not force:
        raise ConfigError(f"{quoted(found)} exists", hint="name another with `--output`, or replace it with `--force`")


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        names = " or ".join(f"`{name}`" for name in allowed)
        raise ConfigError(f"`{option}` must be {names}, not `{value}`", hint=did_you_mean(value, allowed))


def _show_written(written: list[Written], *, as_json: bool) -> None:
    for item in written:
        if item.num_left_out:
            print_warning(f"{item.num_left_out} rows without a question or an answer are not in `{item.path}`")
    if as_json:
        print_json([asdict(item) | {"path": str(item.path)} for item in written])
    else:
        print_lines(f"{item.path}: {item.num_rows} rows" for item in written)
