"""A run's configuration from a TOML file, `key=value` arguments and verl's keys, with a word on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from rl_compat.config.arguments import Argument, last_of_each, split_arguments
from rl_compat.config.inert import inert_settings
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import build, settings, settings_by_algorithm
from rl_compat.config.suggest import means_ours, suggestion
from rl_compat.config.toml_file import read_toml
from rl_compat.config.types import RunConfig
from rl_compat.config.validate import validate
from rl_compat.config.values import NONE_WORDS, Mismatch, alternatives, parse_text, unquote
from rl_compat.config.verl import expand, is_verl_key, nearest_verl_key, translate
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
"in these a leading `~` is the home folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A checked configuration, what became of each key, and where each value came from."""

    config: RunConfig
    report: tuple[KeyVerdict, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    "dotted native key to its source; every key is there"


@dataclass(slots=True)
class _Given:
    """Values collected so far, each with its source and its place."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, key: str, value: Any, source: Source, origin: str) -> None:
        self.values[key] = _expand_home(key, value)
        self.sources[key] = source
        self.origins[key] = origin

    def drop(self, key: str) -> None:
        for table in (self.values, self.sources, self.origins):
            table.pop(key, None)


def load_config(toml_path: Path | None = None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Defaults, then the file, then verl's keys, then native arguments: the later wins. Raises ConfigError."""
    arguments, replaced = last_of_each(expand(split_arguments(overrides)))
    given = _Given()
    for key, read in (read_toml(toml_path) if toml_path is not None else {}).items():
        given.put(key, read.value, "file", read.origin)
    verl = [argument for argument in arguments if _is_verl(argument)]
    native = [argument for argument in arguments if argument not in verl]
    for argument in native:
        _apply_native(given, argument)
    report = [_replaced(earlier, later) for earlier, later in replaced]
    if verl:
        report += [*_apply_verl(given, verl), *_shared(native)]
    _follow_algorithm(given)
    _follow_batch_size(given)
    config = build(given.values)
    validate(config, given.origins)
    report += inert_settings(
        config, [key for key, source in given.sources.items() if source not in ("verl", "algorithm")]
    )
    position = {argument.key: number for number, argument in enumerate(arguments)}
    report.sort(key=lambda line: position.get(line.key, len(position)))
    sources = {key: given.sources.get(key, "default") for key in settings()}
    return LoadedConfig(config=config, report=tuple(report), sources=sources)


def _is_verl(argument: Argument) -> bool:
    """Whether a key is only verl's. One that both have means the same in both, but verl also takes null for it."""
    if argument.key not in settings():
        return is_verl_key(argument.key)
    nothing = argument.value in NONE_WORDS and NoneType not in alternatives(settings()[argument.key].hint)
    return nothing and is_verl_key(argument.key)


def _apply_native(given: _Given, argument: Argument) -> None:
    section, _, rest = argument.key.partition(".")
    name, _, entry = rest.partition(".")
    key, origin = f"{section}.{name}", f"argument `{argument.text}`"
    if key not in settings() or (entry and not isinstance(settings()[key].default, dict)):
        raise _unknown_key(argument, origin)
    if argument.deletes:
        given.drop(key)
        return
    try:
        value = {entry: unquote(argument.value)} if entry else parse_text(argument.value, settings()[key].hint)
    except Mismatch as error:
        fact = f"{origin}: `{key}` takes {error.expected}, not `{argument.value}`"
        raise ConfigError(fact, hint=error.hint) from error
    given.put(key, {**given.values.get(key, {}), **value} if entry else value, "command line", origin)


def _apply_verl(given: _Given, verl: Sequence[Argument]) -> tuple[KeyVerdict, ...]:
    native = [key for key, source in given.sources.items() if source == "command line"]
    translation = translate(verl, base=build(given.values), given_natively=native)
    for key, value in translation.values.items():
        given.put(key, value, "verl", f"from `{translation.origins[key]}`")
    return translation.verdicts


def _shared(native: Sequence[Argument]) -> list[KeyVerdict]:
    """The native keys of a command that also has keys of verl's, so that its report is complete."""
    return [
        KeyVerdict(key=argument.key, value=argument.value, verdict="honoured", native_key=argument.key)
        for argument in native
    ]


def _replaced(earlier: Argument, later: Argument) -> KeyVerdict:
    reason = f"given again later as `{later.text}`"
    return KeyVerdict(
        key=earlier.key, value=earlier.value, verdict="without effect", reason=reason, warn=earlier.value != later.value
    )


def _unknown_key(argument: Argument, origin: str) -> ConfigError:
    close = None if means_ours(argument.key) else nearest_verl_key(argument.key)
    hint = f"did you mean `{close}`" if close else suggestion(argument.key)
    return ConfigError(f"{origin}: there is no setting `{argument.key}`", hint=hint)


def _follow_algorithm(given: _Given) -> None:
    """What the algorithm's name sets, where nothing else does."""
    for key, value in settings_by_algorithm(given.values).items():
        given.put(key, value, "algorithm", f"from `algorithm.name={given.values['algorithm.name']}`")


def _follow_batch_size(given: _Given) -> None:
    """One optimizer step a batch, unless a mini-batch size is given."""
    batch, mini = "trainer.batch_size", "trainer.mini_batch_size"
    if batch in given.values and mini not in given.values:
        given.put(mini, given.values[batch], given.sources[batch], given.origins[batch])


def _expand_home(key: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_expand_home(key, item) for item in value)
    starts = key in PATHS and isinstance(value, str) and value.startswith("~")
    return str(Path(value).expanduser()) if starts else value
