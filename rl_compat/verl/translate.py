"""Translate a verl command line into settings, with a verdict on each key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.config.arguments import Argument
from rl_compat.config.dialect import Translation
from rl_compat.config.report import KeyVerdict
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import Mismatch, coerce, split_items, unquote
from rl_compat.errors import nearest
from rl_compat.verl.keys.policy import ESTIMATORS
from rl_compat.verl.keys.rules import Given, Inert, Outcome, Rule, no_effect, refused
from rl_compat.verl.keys.table import DEFAULTS_THAT_DIFFER, KEYS, releases

COMBINE: Mapping[str, Callable[..., Any]] = {
    "plan.micro_batch_size": min,
    "plan.max_tokens_per_micro_batch": min,
    "plan.offload_idle_models": max,
    "plan.offload_optimizer": max,
    "plan.gradient_checkpointing": max,
    "trainer.keep_checkpoints": max,
}
"combines values that verl has per role and we have once; other settings must agree"

CONSTANTS: Mapping[str, Any] = {"null": None, "none": None, "true": True, "false": False}

UNREADABLE: Any = object()
"a value that is not in Hydra's grammar"

GROUPS = ("actor_rollout_ref.model.override_config", "critic.model.override_config")
"known keys for which `key={a: b}` means `key.a=b`, as it does for every unknown key"


def is_key(key: str) -> bool:
    """Whether a key, or a pattern that matches it, is known."""
    return find_rule(key) is not None


def find_rule(key: str) -> Rule | None:
    """The rule of a key: its own, or that of the longest matching pattern."""
    if key in KEYS and "*" not in key:
        return KEYS[key]
    fitting = [pattern for pattern in KEYS if "*" in pattern and fnmatchcase(key, pattern)]
    return KEYS[max(fitting, key=len)] if fitting else None


def nearest_key(key: str) -> str | None:
    """The known key closest to a misspelled one: with the same last part, or similar as a whole."""
    known = [name for name in KEYS if "*" not in name]
    section, _, name = key.rpartition(".")
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    return nearest(key, known) or (nearest(section, same_name) or same_name[0] if same_name else None)


def translate(arguments: Sequence[Argument], *, base: RunConfig, given_natively: Collection[str] = ()) -> Translation:
    """Translate arguments with known keys, on top of a configuration. Given native keys have precedence."""
    literals = {argument.key: _literal(argument) for argument in arguments if not argument.deletes}
    given = Given(
        values={key: value for key, value in literals.items() if value is not UNREADABLE},
        base=base,
        texts={argument.key: argument.value for argument in arguments},
    )
    result = Translation()
    for argument in arguments:
        result.verdicts.append(_verdict(result, argument, given, given_natively))
    return result


def defaults_that_differ(config: RunConfig, given: Collection[str]) -> list[KeyVerdict]:
    """verl's defaults that differ from the configuration; `given` is the native keys that were set."""
    values = values_of(config)
    lines = []
    for key, (default, native_key) in DEFAULTS_THAT_DIFFER.items():
        value = values[native_key]
        shown = ",".join(value) if isinstance(value, tuple) else str(value)
        if native_key not in given and shown != default:
            reason = f"verl's default; `{shown}` here"
            lines.append(KeyVerdict(key=key, value=default, verdict="not given", native_key=native_key, reason=reason))
    return lines


def default_text(key: str) -> str | None:
    """The default of the newest release that has the key, as command-line text; None for an unknown key."""
    if not releases().having(key):
        return None
    return _text_of(releases().newest_default(key))


def expand(arguments: Sequence[Argument]) -> list[Argument]:
    """The arguments with `group={a: b}` as `group.a=b`."""
    expanded = []
    for argument in arguments:
        group = argument.key in GROUPS or (argument.key not in settings() and not is_key(argument.key))
        value = _literal(argument) if group else None
        if isinstance(value, dict) and value:
            entries = [
                replace(argument, key=f"{argument.key}.{name}", value=_text_of(item)) for name, item in value.items()
            ]
            expanded += expand(entries)
        else:
            expanded.append(argument)
    return expanded


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_literal(text: str) -> Any:
    """A value in Hydra's grammar: null, booleans, numbers, lists, dicts, quoted or bare text. Raises Mismatch.

    `a,b` without brackets, a sweep in Hydra, is a list.
    """
    text = text.strip()
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    if text[:1] + text[-1:] == "{}":
        pairs = [item.partition(":") for item in split_items(text[1:-1])]
        return {unquote(name.strip()): parse_literal(value) for name, _, value in pairs}
    items = [text] if "\\" in text else split_items(text)
    if text[:1] + text[-1:] == "[]" or len(items) > 1:
        return [parse_literal(item) for item in items]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return re.sub(r"\\([\\()\[\]{}:=, ])", r"\1", text) if unquote(text) == text else unquote(text)


def _literal(argument: Argument) -> Any:
    try:
        return parse_literal(argument.value)
    except Mismatch:
        return UNREADABLE


def _verdict(result: Translation, argument: Argument, given: Given, given_natively: Collection[str]) -> KeyVerdict:
    """Apply the rule of one key and add its native values to the result."""
    outcome = _outcome(argument, given)
    try:
        native = {key: coerce(value, settings()[key].hint) for key, value in outcome.native.items()}
    except Mismatch as error:
        outcome, native = refused(f"the value must be {error.expected}", hint=error.hint), {}
    outcome = _merge(result, argument, replace(outcome, native=native), given_natively)
    if outcome.verdict == "refused" and _is_nobodys_wish(argument, given):
        outcome = Outcome(verdict="without effect", reason=f"verl's default; here {outcome.reason}")
    return KeyVerdict(
        key=argument.key,
        value=argument.value,
        verdict=outcome.verdict,
        native_key=", ".join(outcome.native) or None,
        reason=outcome.reason,
        warn=outcome.warn,
        hint=outcome.hint,
    )


def _is_nobodys_wish(argument: Argument, given: Given) -> bool:
    """Whether an argument from a file that lists every key only repeats a default of verl."""
    values = (given.values.get(argument.key, UNREADABLE), argument.text.partition("=")[2])
    return argument.inherited and any(releases().is_default(argument.key, value) for value in values)


def _outcome(argument: Argument, given: Given) -> Outcome:
    rule = find_rule(argument.key)
    assert rule is not None, argument.key
    if isinstance(rule, Inert):
        return no_effect(rule.reason)
    if argument.problem:
        return refused(argument.problem, hint=argument.hint)
    if argument.deletes:
        return Outcome(verdict="without effect", reason="our default is kept")
    if argument.key not in given.values:
        return refused("the value needs matching brackets and quotes")
    if argument.key.startswith("critic.") and not _has_critic(given):
        return Outcome(verdict="without effect", reason="only `adv_estimator=gae` has a critic")
    try:
        return rule(argument.key, given.values[argument.key], given)
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        return refused("the value has the wrong type")


def _has_critic(given: Given) -> bool:
    estimator = given.get("algorithm.adv_estimator")
    name = ESTIMATORS.get(str(estimator), "") if estimator else given.base.algorithm.name
    return name not in ALGORITHMS or ALGORITHMS[name].needs_critic


def _merge(result: Translation, argument: Argument, outcome: Outcome, given_natively: Collection[str]) -> Outcome:
    """Add native values to the result; the outcome tells if another value overrides them."""
    for key, value in outcome.native.items():
        if key in given_natively:
            outcome = replace(outcome, verdict="without effect", reason=f"`{key}` is also given", warn=True)
        elif key not in result.values or result.values[key] == value:
            result.values[key] = value
            result.origins.setdefault(key, argument.text)
        elif key in COMBINE:
            result.values[key] = COMBINE[key](result.values[key], value)
        elif isinstance(value, dict):
            result.values[key] = {**result.values[key], **value}
        else:
            reason = f"`{result.origins[key]}` also sets `{key}`, which has one value"
            outcome = replace(outcome, verdict="refused", reason=reason)
    return outcome
