"""`rl_compat.train`: a whole run from Python, on the path of `rlc train`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_compat.config.given import embedded_runs
from rl_compat.config.load import default_run, load_values
from rl_compat.config.report import warnings_of
from rl_compat.config.settings import POOLS, sections
from rl_compat.config.toml_file import flat
from rl_compat.config.types import RunConfig
from rl_compat.distributed.pool import ResourcePool
from rl_compat.errors import ConfigError, nearest
from rl_compat.rewards.assemble import PREFIX, RewardFunction, named_functions
from rl_compat.trainer.callbacks import Callback, StepCallback, StepFunction
from rl_compat.trainer.offline.training import Offline
from rl_compat.trainer.online.reinforcement import Reinforcement
from rl_compat.trainer.run import RunOutcome
from rl_compat.trainer.setup.objects import PythonObjects
from rl_compat.trainer.tools.export import export_run
from rl_compat.trainer.training import Training
from rl_compat.workers.actor import ActorModel
from rl_compat.workers.learner import LearnerModel

logger = logging.getLogger("rl_compat")


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run: its metrics, its model in memory, and its folder."""

    folder: Path
    "settings, plan, metrics, samples and checkpoints, as `rlc train` writes them"
    config: RunConfig
    metrics: tuple[Mapping[str, float], ...]
    "of each step of this process, in order; `training/global_step` is the step"
    validations: Mapping[int, Mapping[str, float]]
    "metrics of each validation by step; 0 is the one before training"
    actor: ActorModel | LearnerModel
    "the trained model: an `ActorModel`, or a `LearnerModel` after training on offline data"
    outcome: RunOutcome

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run early; calling `train` again with the same arguments resumes it."""
        return self.outcome.interrupted is not None

    def save_pretrained(self, path: str | Path) -> Path:
        """Write the trained model, adapters merged, as a Hugging Face folder; returns the folder.

        Raises ModelError if the folder is not empty.
        """
        return export_run(str(self.folder), Path(path))[0]


def train(
    model: str | Mapping[str, Any] | None = None,
    *,
    algorithm: str | Mapping[str, Any] | None = None,
    reward: str | RewardFunction | Sequence[str | RewardFunction] | Mapping[str, Any] | None = None,
    data: Any = None,
    validation_data: Any = None,
    callbacks: Sequence[Callback | StepFunction] = (),
    settings: str | Path | None = None,
    pool: ResourcePool | None = None,
    **values: Any,
) -> TrainedRun:
    """Train a model and return the finished run, or resume it if its folder holds checkpoints.

    `model` is a name from `rlc models`, a folder, a GGUF file or a hub id, and `algorithm` one of docs/algorithms; both
    stand for `model.path` and `algorithm.name`. `reward` is a built-in name, a `file.py:function`, a Python function,
    or several of them; Python functions run in this process without a time limit. `data` and `validation_data` are
    names of `data.train_files`, a `datasets.Dataset` or `IterableDataset`, a list of rows, a function that returns an
    iterator over rows, or a list of these; with `data` and without `validation_data` there is no validation.
    `callbacks` are `Callback` objects or functions of step and metrics. `settings` is a settings file or the name
    of a built-in one, by default `gsm8k` unless other data or an algorithm for offline data is given, and `values`
    are sections of the settings: `trainer={"num_steps": 100}`. The four sections that have a parameter of their own
    are given by it as a dict, such as `algorithm={"name": "grpo", "group_size": 4}` or `data={"train_files":
    [dataset], "max_prompt_length": 64}`. `pool` has the devices, by default the first GPU, or the CPU without one.

    Warnings and progress go to the logger `rl_compat`. Raises ConfigError, DataError, ModelError, RewardError,
    HardwareError, DoesNotFitError or CheckpointError; an error after the first step leaves the newest finished step in
    a checkpoint.
    """
    given = _flat(values)
    for key, value in (("model.path", model), ("algorithm.name", algorithm), ("reward.functions", reward)):
        given |= _section(key, value)
    given |= _section("data.train_files", data) | _section("data.val_files", validation_data)
    if data is not None:
        given.setdefault("data.val_files", ())
    pool = ResourcePool.given(pool)
    given = _with_devices(given, pool)
    functions: dict[str, RewardFunction] = {}
    datasets: dict[str, Any] = {}
    if "reward.functions" in given:
        given["reward.functions"] = named_functions(given["reward.functions"], functions)
    for key in ("data.train_files", "data.val_files"):
        if key in given:
            given[key] = _named_data(given[key], key.partition(".")[2], datasets)
    file, why = default_run(given) if settings is None else (_settings_file(settings), "")
    loaded = load_values(file, given)
    for note in (why, *loaded.notes) if why else loaded.notes:
        logger.info(note)
    for sentence in warnings_of(loaded.report):
        logger.warning(sentence)
    training = Training(loaded.config, pool.hardware, objects=PythonObjects(functions=functions, datasets=datasets))
    history = _History()
    with closing(training):
        for note in training.notes:
            logger.info(note)
        logger.info(training.recipe.summary())
        wrapped = [item if isinstance(item, Callback) else StepCallback(item) for item in callbacks]
        outcome = training.run(_LogReporter(), [history, *wrapped])
    recipe = training.recipe
    assert isinstance(recipe, Reinforcement | Offline)
    return TrainedRun(
        folder=training.folder.path,
        config=loaded.config,
        metrics=tuple(history.steps),
        validations=history.validations,
        actor=recipe.roles.actor if isinstance(recipe, Reinforcement) else recipe.learner,
        outcome=outcome,
    )


class _History(Callback):
    """Keeps the metrics of a run."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []
        self.validations: dict[int, Mapping[str, float]] = {}

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(dict(metrics))

    def on_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.validations[step] = dict(metrics)


class _LogReporter:
    """Passes on what a run says to the logger."""

    def say(self, text: str) -> None:
        warning = text.removeprefix("warning: ")
        logger.log(logging.INFO if warning == text else logging.WARNING, warning)

    def phase(self, name: str, *, done: int = 0, total: int = 0) -> None:
        logger.debug("%s %d of %d", name, done, total)


def _with_devices(given: dict[str, Any], pool: ResourcePool) -> dict[str, Any]:
    """The values with the settings that a pool stands for. Raises ConfigError if they contradict it."""
    found = dict(given)
    for key, value, default in (
        ("plan.num_devices", pool.devices_per_node, 1),
        ("plan.num_nodes", pool.num_nodes, 1),
        ("plan.address", pool.address, None),
    ):
        if found.get(key, value) != value:
            raise ConfigError(f"`{key}` is {found[key]!r} and `pool` has {value!r}", hint=f"remove `{key}`")
        if value != default:
            found[key] = value
    if pool.gpus == () and pool.emulate is None:
        found.setdefault("plan.device", "cpu")
    return found


def _settings_file(settings: str | Path) -> Path:
    return Path(settings) if Path(settings).exists() else embedded_runs().get(str(settings), Path(settings))


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with their values as dotted keys. Raises ConfigError for a section that does not exist."""
    known = [*(name for name in sections() if "." not in name), POOLS]
    found: dict[str, Any] = {}
    for section, table in values.items():
        if section not in known or not isinstance(table, Mapping):
            close = nearest(section, [*known, "model", "algorithm", "reward", "data", "callbacks", "settings", "pool"])
            fact = f"`{section}` is not an option of `train`"
            if section in known:
                fact = f"`{section}` is a section of the settings and takes a dict, not `{table!r}`"
            raise ConfigError(fact, hint=f"did you mean `{close}`" if close else f"sections are {', '.join(known)}")
        found |= dict(flat(section, table))
    return found


def _section(key: str, value: Any) -> dict[str, Any]:
    """A parameter as the setting that it stands for, or as the section of that setting where it is a plain dict."""
    if value is None:
        return {}
    return dict(flat(key.partition(".")[0], value)) if type(value) is dict else {key: value}


def _named_data(data: Any, option: str, datasets: dict[str, Any]) -> tuple[str, ...]:
    """The names that stand for data in the settings; objects are added to `datasets` under theirs."""
    rows = isinstance(data, list | tuple) and bool(data) and all(isinstance(item, Mapping) for item in data)
    sources = data if isinstance(data, list | tuple) and not rows else (data,)
    names = []
    for number, source in enumerate(sources):
        name = source if isinstance(source, str) else f"{PREFIX}{option}" + (f"_{number}" if number else "")
        if not isinstance(source, str):
            datasets[name] = source
        names.append(name)
    return tuple(names)
