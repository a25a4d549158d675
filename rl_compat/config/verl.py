"""verl's command line understood: each key honoured, translated, without effect for a reason, or refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from rl_compat.config.arguments import Argument, split_arguments
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import NONE_WORDS, Mismatch, coerce, split_items, unquote
from rl_compat.config.verl_keys import DEFAULTS_THAT_DIFFER, KEYS
from rl_compat.config.verl_rules import Given, Outcome, Rule
from rl_compat.errors import ConfigError, nearest

COMBINE: Mapping[str, Callable[..., Any]] = {
    "plan.micro_batch_size": min,
    "plan.max_tokens_per_micro_batch": min,
    "plan.offload_idle_models": max,
    "plan.offload_optimizer": max,
    "plan.gradient_checkpointing": max,
    "trainer.keep_checkpoints": max,
}
"what becomes of different values that verl has for each role and we have once; other settings must agree"

GROUPS = ("actor_rollout_ref.model.override_config", "critic.model.override_config")
"known keys of which `key={a: b}` is the same as `key.a=b`; so it is for every key that is not known itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """Native values by dotted key, the argument that each came from, and a verdict on every key."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    verdicts: tuple[KeyVerdict, ...]


@dataclass(slots=True)
class _Result:
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    verdicts: list[KeyVerdict] = field(default_factory=list)


def translate_verl(texts: Sequence[str]) -> tuple[dict[str, Any], tuple[KeyVerdict, ...]]:
    """Native values by dotted key for arguments with verl's keys, and a verdict on each. Raises ConfigError."""
    translation = translate(expand(split_arguments(texts)), base=RunConfig())
    return dict(translation.values), translation.verdicts


def is_verl_key(key: str) -> bool:
    """Whether a key, or a pattern that it fits, is known."""
    return find_rule(key) is not None


def find_rule(key: str) -> Rule | None:
    """The rule of a key: its own, or that of the longest pattern it fits."""
    if key in KEYS and "*" not in key:
        return KEYS[key]
    fitting = [pattern for pattern in KEYS if "*" in pattern and fnmatchcase(key, pattern)]
    return KEYS[max(fitting, key=len)] if fitting else None


def nearest_verl_key(key: str) -> str | None:
    """The known key closest to a misspelled one: the same last part elsewhere, or a similar whole."""
    known = [name for name in KEYS if "*" not in name]
    section, _, name = key.rpartition(".")
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    return nearest(key, known) or (nearest(section, same_name) or same_name[0] if same_name else None)


def translate(arguments: Sequence[Argument], *, base: RunConfig, given_natively: Collection[str] = ()) -> Translation:
    """Arguments with known keys, over a configuration. Native keys that are given themselves win."""
    literals = {argument.key: _literal(argument) for argument in arguments if not argument.deletes}
    given = Given(values=literals, base=base)
    result = _Result()
    for argument in arguments:
        outcome = _outcome(argument, given)
        result.verdicts.append(_record(result, argument, outcome, given_natively))
    _raise_if_refused(result.verdicts)
    defaults = _defaults_that_differ(given, {*result.values, *given_natively}, base)
    return Translation(values=result.values, origins=result.origins, verdicts=(*result.verdicts, *defaults))


def expand(arguments: Sequence[Argument]) -> list[Argument]:
    """Arguments with `group={a: b}` written as `group.a=b`."""
    expanded = []
    for argument in arguments:
        group = argument.key in GROUPS or (argument.key not in settings() and not is_verl_key(argument.key))
        value = _literal(argument) if group else None
        if isinstance(value, dict) and value:
            entries = [replace(argument, key=f"{argument.key}.{name}", value=str(item)) for name, item in value.items()]
            expanded += expand(entries)
        else:
            expanded.append(argument)
    return expanded


def parse_literal(text: str) -> Any:
    """A value as Hydra reads it: null, booleans, numbers, lists, dicts, quoted or bare text. Raises Mismatch."""
    text = text.strip()
    if text in NONE_WORDS:
        return None
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    if text[:1] + text[-1:] == "[]":
        return [parse_literal(item) for item in split_items(text)]
    if text[:1] + text[-1:] == "{}":
        pairs = [item.partition(":") for item in split_items(text[1:-1])]
        return {unquote(name.strip()): parse_literal(value) for name, _, value in pairs}
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return unquote(text)


def _literal(argument: Argument) -> Any:
    try:
        return parse_literal(argument.value)
    except Mismatch as error:
        raise ConfigError(f"argument `{argument.text}`: the value needs {error.expected}") from error


def _outcome(argument: Argument, given: Given) -> Outcome:
    rule = find_rule(argument.key)
    assert rule is not None, argument.key
    if argument.deletes:
        return Outcome(verdict="without effect", reason="our default stays")
    estimator = given.get("algorithm.adv_estimator")
    if argument.key.startswith("critic.") and "gae" not in (estimator or _ESTIMATORS[given.base.algorithm.name]):
        return Outcome(verdict="without effect", reason="only `adv_estimator=gae` has a critic")
    try:
        return rule(argument.key, given.values[argument.key], given)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"argument `{argument.text}`: the value is of the wrong kind") from error


_ESTIMATORS = {"ppo": "gae", "grpo": "grpo"}


def _record(result: _Result, argument: Argument, outcome: Outcome, given_natively: Collection[str]) -> KeyVerdict:
    """Put the native values of one key into the result; the verdict says if another value took their place."""
    verdict, reason, warn = outcome.verdict, outcome.reason, outcome.warn
    for key, raw in outcome.native.items():
        value = _typed(argument, key, raw)
        if key in given_natively:
            verdict, reason, warn = "without effect", f"`{key}` is given too", True
        elif key not in result.values or result.values[key] == value:
            result.values[key] = value
            result.origins.setdefault(key, argument.text)
        elif key in COMBINE:
            result.values[key] = COMBINE[key](result.values[key], value)
        elif isinstance(value, dict):
            result.values[key] = {**result.values[key], **value}
        else:
            verdict, reason = "refused", f"`{result.origins[key]}` sets `{key}` too, and it has one value"
    return KeyVerdict(
        key=argument.key,
        value=argument.value,
        verdict=verdict,
        native_key=", ".join(outcome.native) or None,
        reason=reason,
        warn=warn,
    )


def _typed(argument: Argument, key: str, value: Any) -> Any:
    try:
        return coerce(value, settings()[key].hint)
    except Mismatch as error:
        fact = f"argument `{argument.text}`: `{key}` takes {error.expected}, not `{argument.value}`"
        raise ConfigError(fact, hint=error.hint) from error


def _raise_if_refused(verdicts: Sequence[KeyVerdict]) -> None:
    refused = [line for line in verdicts if line.verdict == "refused"]
    if refused:
        facts = [f"`{line.key}={line.value}` cannot be honoured: {line.reason}" for line in refused]
        raise ConfigError("\n       ".join(facts), hint="leave the key out, or give a value that works here")


def _defaults_that_differ(given: Given, set_keys: Collection[str], base: RunConfig) -> Iterator[KeyVerdict]:
    ours = values_of(base)
    for key, (default, native_key) in DEFAULTS_THAT_DIFFER.items():
        if key not in given.values and native_key not in set_keys:
            value = ours[native_key]
            shown = ",".join(value) if isinstance(value, tuple) else value
            reason = f"verl's default; `{shown}` here"
            yield KeyVerdict(key=key, value=default, verdict="not given", native_key=native_key, reason=reason)
