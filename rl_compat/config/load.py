"""Load a configuration from a TOML file, `key=value` arguments and another program's keys, with a verdict on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.arguments import Argument, split_arguments
from rl_compat.config.dialect import Dialect, ForeignArguments
from rl_compat.config.given import GivenValues, Source, embedded_runs
from rl_compat.config.options import checked_value
from rl_compat.config.report import KeyVerdict, Problem, refusal
from rl_compat.config.rules.conflicts import problems, validate
from rl_compat.config.rules.inert import inert_settings
from rl_compat.config.settings import build, settings, values_of
from rl_compat.config.suggest import means_ours, suggestion
from rl_compat.config.types import RunConfig
from rl_compat.config.values import NONE_WORDS, Mismatch, alternatives, parse_text, unquote
from rl_compat.errors import ConfigError

DEFAULT_RUN = "gsm8k"
"the built-in run that `rlc train` changes if no file is named"
ON_DEFAULT_RUN = {
    "data.train_files": (("gsm8k",), "gsm8k", "[gsm8k]"),
    **dict.fromkeys(("algorithm.name", "algorithm"), tuple(name for name in ALGORITHMS if not is_offline(name))),
}
"settings with whose other values nothing of that run is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A checked configuration, the verdict on each key, and the source of each value."""

    config: RunConfig
    report: tuple[KeyVerdict, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    "dotted native key to its source, for every key"
    notes: tuple[str, ...] = ()
    "notes on how a script or YAML file was read, and on values that follow others"


def load_config(
    path: Path | None = None,
    overrides: Sequence[str | Argument] | ForeignArguments = (),
    *,
    dialect: Dialect | None = None,
) -> LoadedConfig:
    """Load defaults, the file, keys of the dialect and native arguments; later ones override. Raises ConfigError.

    Values of a settings file that ships with the package give way to the others where both cannot hold.
    """
    loaded, given = _judge(path, overrides, dialect)
    error = refusal(loaded.report)
    if error is not None:
        raise error
    validate(loaded.config, given.origins)
    return loaded


def judge_config(
    path: Path | None = None,
    overrides: Sequence[str | Argument] | ForeignArguments = (),
    *,
    dialect: Dialect | None = None,
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
    given = GivenValues()
    if path is not None:
        given.read(path)
    for key, value in values.items():
        if key not in settings():
            raise ConfigError(f"there is no setting `{key}`", hint=suggestion(key))
        given.put(key, checked_value(key, value, key=key), "command line", "")
    config = given.complete()
    validate(config, given.origins)
    return _loaded(given, config, inert_settings(config, list(values)))


def default_run(given: Mapping[str, Any], dialect: Dialect | None = None) -> tuple[Path | None, str]:
    """The built-in run that values by dotted key change if no file is named; without one, the reason for it."""
    if dialect is not None and any(key not in settings() and dialect.is_key(key) for key in given):
        return None, ""
    own = [key for key, usual in ON_DEFAULT_RUN.items() if key in given and given[key] not in usual]
    if not own:
        return embedded_runs()[DEFAULT_RUN], ""
    return None, f"`{own[0]}` is not that of the built-in run `{DEFAULT_RUN}`: settings that are not given are defaults"


def _judge(
    path: Path | None, overrides: Sequence[str | Argument] | ForeignArguments, dialect: Dialect | None
) -> tuple[LoadedConfig, GivenValues]:
    given = GivenValues()
    whole: ForeignArguments | None = None
    if isinstance(overrides, ForeignArguments):
        whole = overrides
    elif path is not None and dialect is not None and dialect.is_file(path):
        whole = dialect.read_file(path, [str(text) for text in overrides])
    elif path is not None:
        given.read(path)
    if whole is not None:
        overrides = whole.arguments
        given.notes += whole.notes
    assert not isinstance(overrides, ForeignArguments)
    texts = split_arguments(overrides, default=(lambda key: None) if dialect is None else dialect.default_text)
    texts = texts if dialect is None else dialect.expand(texts)
    # `algorithm=dpo` is `algorithm.name=dpo`
    texts = [replace(item, key="algorithm.name") if item.key == "algorithm" else item for item in texts]
    last = {item.key: item for item in texts}
    arguments = [item for item in texts if last[item.key] is item]
    given.report += [_replaced(item, last[item.key]) for item in texts if last[item.key] is not item]
    _apply(given, arguments, dialect, is_whole=whole is not None)
    chosen = set(given.values)
    config = given.complete()
    verl = given.keys_of("verl")
    report = [*given.report, *inert_settings(config, given.keys_of("file", "command line"))]
    if dialect is not None and (verl or whole is not None):
        reasons = {line.native_key: line.reason for line in inert_settings(config, verl)}
        for number, line in enumerate(report):
            keys = (line.native_key or "").split(", ")
            if line.verdict in ("honoured", "translated") and all(key in reasons for key in keys):
                report[number] = replace(line, verdict="without effect", reason=reasons[keys[0]], warn=True)
        report += dialect.defaults_that_differ(config, chosen)
    position = {argument.key: number for number, argument in enumerate(arguments)}
    report = sorted(report, key=lambda line: position.get(line.key, len(position)))
    return _loaded(given, config, tuple(report)), given


def _loaded(given: GivenValues, config: RunConfig, report: tuple[KeyVerdict, ...]) -> LoadedConfig:
    sources = {key: given.sources.get(key, "default") for key in values_of(config)}
    return LoadedConfig(config=config, report=report, sources=sources, notes=tuple(given.notes))


def _apply(given: GivenValues, arguments: Sequence[Argument], dialect: Dialect | None, *, is_whole: bool) -> None:
    """Add native arguments, and those of the dialect: all that it knows in a whole command of its own."""
    foreign = [item for item in arguments if dialect is not None and _is_foreign(dialect, item, is_whole=is_whole)]
    for argument in arguments:
        if argument not in foreign:
            _apply_native(given, argument, dialect, with_verdict=bool(foreign) or is_whole)
    if foreign and dialect is not None:
        native = given.keys_of("command line")
        translation = dialect.translate(foreign, base=build(given.values), given_natively=native)
        for key, value in translation.values.items():
            given.put(key, value, "verl", f"`{translation.origins[key]}`")
        given.report += translation.verdicts


def _is_foreign(dialect: Dialect, argument: Argument, *, is_whole: bool) -> bool:
    """Whether the dialect has a key, alone unless `is_whole`. Of keys of both, `null` may be a value of the dialect."""
    setting = settings().get(argument.key)
    alone = setting is None or (argument.value in NONE_WORDS and NoneType not in alternatives(setting.hint))
    return (alone or is_whole) and dialect.is_key(argument.key)


def _apply_native(given: GivenValues, argument: Argument, dialect: Dialect | None, *, with_verdict: bool) -> None:
    """Add one native argument to the values, with a verdict if the other arguments have one."""
    key, entry = _setting_and_entry(argument.key)
    if argument.problem:
        given.report.append(_refused(argument, argument.problem, argument.hint))
        return
    if key is None:
        given.report.append(_unknown_key(dialect, argument))
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


def _unknown_key(dialect: Dialect | None, argument: Argument) -> KeyVerdict:
    key, close = argument.key, dialect.nearest_key(argument.key) if dialect else None
    if close is not None and means_ours(key):
        # it stays if it is similar to the key, and more similar than any setting
        nearly = get_close_matches(key, [close], cutoff=0.9)
        close = close if nearly and get_close_matches(key, [close, *settings()], n=1) == nearly else None
    return _refused(argument, f"there is no setting `{key}`", f"did you mean `{close}`" if close else suggestion(key))


def _refused(argument: Argument, reason: str, hint: str | None) -> KeyVerdict:
    fact = f"argument `{argument.text}`: {reason}"
    return KeyVerdict(
        key=argument.key, value=argument.value, verdict="refused", reason=reason, fact=fact, hint=hint, warn=True
    )


def _unusable(problem: Problem, given: GivenValues) -> KeyVerdict:
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
