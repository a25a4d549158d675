"""Load a configuration from a TOML file, `key=value` arguments and another program's keys, with a verdict on each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from rl_compat.config.arguments import Argument, last_of_each, split_arguments
from rl_compat.config.dialect import Dialect
from rl_compat.config.report import KeyVerdict, Problem, refusal
from rl_compat.config.rules.inert import inert_settings
from rl_compat.config.rules.validate import problems, validate
from rl_compat.config.settings import build, settings, settings_by_algorithm, values_of
from rl_compat.config.suggest import means_ours, suggestion
from rl_compat.config.toml_file import read_toml
from rl_compat.config.types import RunConfig
from rl_compat.config.values import NONE_WORDS, Mismatch, alternatives, coerce, parse_text, unquote
from rl_compat.errors import ConfigError

Source = Literal["default", "file", "command line", "verl", "algorithm"]
"`algorithm` is a value that `algorithm.name` sets"

PATHS = (
    "model.path",
    "model.critic_path",
    "model.tokenizer",
    "model.chat_template",
    "data.train_files",
    "data.val_files",
    "reward.functions",
    "trainer.output_dir",
    "trainer.resume",
)
"paths in which a leading `~` is the home folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A checked configuration, the verdict on each key, and the source of each value."""

    config: RunConfig
    report: tuple[KeyVerdict, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    "dotted native key to its source, for every key"
    notes: tuple[str, ...] = ()
    "notes on how a script or YAML file was read"


@dataclass(slots=True)
class _Given:
    """Values collected so far, each with its source and place, and the verdict on each argument."""

    dialect: Dialect | None = None
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    report: list[KeyVerdict] = field(default_factory=list)

    def put(self, key: str, value: Any, source: Source, origin: str) -> None:
        self.values[key] = _expand_home(key, value)
        self.sources[key] = source
        self.origins[key] = origin

    def drop(self, key: str) -> None:
        for table in (self.values, self.sources, self.origins):
            table.pop(key, None)


def load_config(
    path: Path | None = None, overrides: Sequence[str | Argument] = (), *, dialect: Dialect | None = None
) -> LoadedConfig:
    """Load defaults, the file, keys of the dialect and native arguments; later ones override. Raises ConfigError."""
    loaded, given = _judge(path, overrides, dialect)
    error = refusal(loaded.report)
    if error is not None:
        raise error
    validate(loaded.config, given.origins)
    return loaded


def judge_config(
    path: Path | None = None, overrides: Sequence[str | Argument] = (), *, dialect: Dialect | None = None
) -> LoadedConfig:
    """Like `load_config`, but a key that cannot be honoured is a verdict, and the other keys make the configuration.

    Raises ConfigError for an unreadable file and for an argument that is not `key=value`.
    """
    loaded, given = _judge(path, overrides, dialect)
    if refusal(loaded.report) is None:
        wrong = tuple(_unusable(problem, given) for problem in problems(loaded.config))
        keys = {line.key for line in wrong}
        loaded = replace(loaded, report=(*wrong, *(line for line in loaded.report if line.key not in keys)))
    return loaded


def load_values(path: Path | None, values: Mapping[str, Any]) -> LoadedConfig:
    """Load defaults, the file and Python values by dotted key; later ones override. Raises ConfigError."""
    given = _Given()
    if path is not None:
        for key, read in read_toml(path).items():
            given.put(key, read.value, "file", read.origin)
    for key, value in values.items():
        if key not in settings():
            raise ConfigError(f"there is no setting `{key}`", hint=suggestion(key))
        try:
            given.put(key, coerce(value, settings()[key].hint), "command line", f"`{key}`")
        except Mismatch as error:
            raise ConfigError(f"`{key}` takes {error.expected}, not `{value!r}`", hint=error.hint) from error
    config = _complete(given)
    validate(config, given.origins)
    sources = {key: given.sources.get(key, "default") for key in settings()}
    return LoadedConfig(config=config, report=inert_settings(config, list(values)), sources=sources)


def config_of(values: Mapping[str, Any]) -> RunConfig:
    """The configuration of a file with these values by dotted key, including derived values.

    The values are not checked, so the standard library suffices.
    """
    given = _Given()
    for key, value in values.items():
        given.put(key, value, "file", "")
    return _complete(given)


def _judge(
    path: Path | None, overrides: Sequence[str | Argument], dialect: Dialect | None
) -> tuple[LoadedConfig, _Given]:
    given = _Given(dialect=dialect)
    notes: tuple[str, ...] = ()
    if path is not None and dialect is not None and dialect.is_file(path):
        reading = dialect.read_file(path, [str(text) for text in overrides])
        overrides, notes = reading.arguments, tuple(reading.notes)
    elif path is not None:
        for key, read in read_toml(path).items():
            given.put(key, read.value, "file", read.origin)
    default = (lambda key: None) if dialect is None else dialect.default_text
    texts = split_arguments(overrides, default=default)
    arguments, replaced = last_of_each(_in_full(texts if dialect is None else dialect.expand(texts)))
    given.report += [_replaced(earlier, later) for earlier, later in replaced]
    _apply(given, arguments)
    chosen = set(given.values)
    config = _complete(given)
    position = {argument.key: number for number, argument in enumerate(arguments)}
    report = sorted(_finished(given, config, chosen), key=lambda line: position.get(line.key, len(position)))
    sources = {key: given.sources.get(key, "default") for key in settings()}
    return LoadedConfig(config=config, report=tuple(report), sources=sources, notes=notes), given


def _finished(given: _Given, config: RunConfig, chosen: Collection[str]) -> list[KeyVerdict]:
    """The report, with settings that have no effect and, if the dialect's keys were used, its differing defaults."""
    verl = [key for key, source in given.sources.items() if source == "verl"]
    own = [key for key, source in given.sources.items() if source in ("file", "command line")]
    reasons = {line.native_key: line.reason for line in inert_settings(config, verl)}
    report = [*(_idle(line, reasons) for line in given.report), *inert_settings(config, own)]
    return [*report, *given.dialect.defaults_that_differ(config, chosen)] if verl and given.dialect else report


def _idle(line: KeyVerdict, reasons: Mapping[str | None, str]) -> KeyVerdict:
    keys = (line.native_key or "").split(", ")
    if line.verdict not in ("honoured", "translated") or any(key not in reasons for key in keys):
        return line
    return replace(line, verdict="without effect", reason=reasons[keys[0]], warn=True)


def _in_full(arguments: Sequence[Argument]) -> list[Argument]:
    """`algorithm=dpo` is `algorithm.name=dpo`."""
    return [
        replace(argument, key="algorithm.name") if argument.key == "algorithm" else argument for argument in arguments
    ]


def _apply(given: _Given, arguments: Sequence[Argument]) -> None:
    """Split arguments into native ones and those of the dialect."""
    foreign = [argument for argument in arguments if given.dialect and _is_foreign(given.dialect, argument)]
    for argument in arguments:
        if argument not in foreign:
            _apply_native(given, argument, with_verdict=bool(foreign))
    if foreign and given.dialect:
        _apply_foreign(given, given.dialect, foreign)


def _complete(given: _Given) -> RunConfig:
    """The configuration, with the values that follow from the algorithm's name and the batch size."""
    _follow_algorithm(given)
    _follow_batch_size(given)
    return build(given.values)


def _is_foreign(dialect: Dialect, argument: Argument) -> bool:
    """Whether only the dialect has a key. Keys of both mean the same, but `null` may be a value of the dialect."""
    if argument.key not in settings():
        return dialect.is_key(argument.key)
    nothing = argument.value in NONE_WORDS and NoneType not in alternatives(settings()[argument.key].hint)
    return nothing and dialect.is_key(argument.key)


def _apply_native(given: _Given, argument: Argument, *, with_verdict: bool) -> None:
    """Add one native argument to the values, with a verdict if the other arguments have one."""
    key, entry = _setting_and_entry(argument.key)
    if argument.problem:
        given.report.append(_refused(argument, argument.problem, argument.hint))
        return
    if key is None:
        given.report.append(_unknown_key(given.dialect, argument))
        return
    if argument.deletes:
        given.drop(key)
        return
    try:
        value = {entry: unquote(argument.value)} if entry else parse_text(argument.value, settings()[key].hint)
    except Mismatch as error:
        given.report.append(_refused(argument, f"`{key}` takes {error.expected}, not `{argument.value}`", error.hint))
        return
    value = {**given.values.get(key, {}), **value} if entry else value
    given.put(key, value, "command line", f"argument `{argument.text}`")
    if with_verdict:
        given.report.append(
            KeyVerdict(key=argument.key, value=argument.value, verdict="honoured", native_key=argument.key)
        )


def _setting_and_entry(key: str) -> tuple[str | None, str]:
    """The setting of a key, and the entry of its dict, such as `reward.sources` and `my/data`."""
    if key in settings():
        return key, ""
    dicts = [name for name, setting in settings().items() if isinstance(setting.default, dict)]
    name = next((name for name in dicts if key.startswith(f"{name}.")), None)
    return name, key.removeprefix(f"{name}.")


def _apply_foreign(given: _Given, dialect: Dialect, arguments: Sequence[Argument]) -> None:
    native = [key for key, source in given.sources.items() if source == "command line"]
    translation = dialect.translate(arguments, base=build(given.values), given_natively=native)
    for key, value in translation.values.items():
        given.put(key, value, "verl", f"from `{translation.origins[key]}`")
    given.report += translation.verdicts


def _unknown_key(dialect: Dialect | None, argument: Argument) -> KeyVerdict:
    close = dialect.nearest_key(argument.key) if dialect else None
    if close is not None and means_ours(argument.key) and not _is_closer(argument.key, close, settings()):
        close = None
    hint = f"did you mean `{close}`" if close else suggestion(argument.key)
    return _refused(argument, f"there is no setting `{argument.key}`", hint)


def _is_closer(key: str, close: str, others: Iterable[str]) -> bool:
    """Whether `close` is similar to the key, and more similar than any other."""
    nearly = get_close_matches(key, [close], cutoff=0.9)
    return bool(nearly) and get_close_matches(key, [close, *others], n=1) == nearly


def _refused(argument: Argument, reason: str, hint: str | None) -> KeyVerdict:
    fact = f"argument `{argument.text}`: {reason}"
    return KeyVerdict(
        key=argument.key, value=argument.value, verdict="refused", reason=reason, fact=fact, hint=hint, warn=True
    )


def _unusable(problem: Problem, given: _Given) -> KeyVerdict:
    """A value that validation rejects, under the key that set it."""
    origin = given.origins.get(problem.key, "")
    line = next((line for line in given.report if f"{line.key}={line.value}`" in origin), None)
    return KeyVerdict(
        key=line.key if line else problem.key,
        value=line.value if line else str(values_of(build(given.values))[problem.key]),
        verdict="refused",
        native_key=problem.key,
        reason=problem.message,
        hint=problem.hint,
    )


def _replaced(earlier: Argument, later: Argument) -> KeyVerdict:
    reason = f"overridden later by `{later.text}`"
    return KeyVerdict(
        key=earlier.key, value=earlier.value, verdict="without effect", reason=reason, warn=earlier.value != later.value
    )


def _follow_algorithm(given: _Given) -> None:
    """Set the defaults of the algorithm, where nothing else sets a value."""
    for key, value in settings_by_algorithm(given.values).items():
        given.put(key, value, "algorithm", f"from `algorithm.name={given.values['algorithm.name']}`")


def _follow_batch_size(given: _Given) -> None:
    """Set one optimizer step per batch, unless a mini-batch size is given."""
    batch, mini = "trainer.batch_size", "trainer.mini_batch_size"
    if batch in given.values and mini not in given.values:
        given.put(mini, given.values[batch], "default", given.origins[batch])


def _expand_home(key: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_expand_home(key, item) for item in value)
    starts = key in PATHS and isinstance(value, str) and value.startswith("~")
    return str(Path(value).expanduser()) if starts else value
