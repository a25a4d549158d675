"""Rules for keys of verl: functions of a key, its value and the other keys that return an outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from types import NoneType
from typing import Any

from rl_compat.config.report import Verdict
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.config.values import alternatives
from rl_compat.errors import quoted

DTYPES = {
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    "auto": "auto",
}
KL_NAMES = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """All verl keys of a command by name, and the configuration that they change."""

    values: Mapping[str, Any]
    base: RunConfig
    texts: Mapping[str, str] = field(default_factory=dict)
    "the values as written"

    def get(self, key: str, native_key: str | None = None) -> Any:
        """The value of a verl key or, if it is not given, of a native key."""
        value = self.values.get(key)
        return value if value is not None or native_key is None else values_of(self.base)[native_key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verdict on one key and the native values it sets."""

    verdict: Verdict
    native: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    warn: bool = False
    hint: str | None = None


Rule = Callable[[str, Any, Given], Outcome]


def honoured(native_key: str, value: Any, reason: str = "") -> Outcome:
    return Outcome(verdict="honoured", native={native_key: value}, reason=reason)


def translated(native: Mapping[str, Any], reason: str, *, warn: bool = False) -> Outcome:
    return Outcome(verdict="translated", native=native, reason=reason, warn=warn)


def no_effect(reason: str, *, warn: bool = False) -> Outcome:
    return Outcome(verdict="without effect", reason=reason, warn=warn)


def refused(reason: str, *, hint: str | None = None) -> Outcome:
    return Outcome(verdict="refused", reason=reason, hint=hint)


def kl_term(native_key: str, kind: str) -> Outcome:
    """The native name of a KL estimator of verl, with its `+`, or `none`."""
    if kind == "none":
        return translated({native_key: "none"}, "no KL term")
    name, plus = kind.removesuffix("+"), "+" if kind.endswith("+") else ""
    if name not in KL_NAMES:
        return refused(f"`{kind}` is not among the estimators {', '.join(KL_NAMES)}")
    native = KL_NAMES[name] + plus
    if native == kind:
        return translated({native_key: native}, "the estimator")
    return translated({native_key: native}, f"`{kind}` is the estimator `{native}`")


def same(native_key: str, *, reason: str = "") -> Rule:
    """The same setting under another name."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value is None and NoneType not in alternatives(settings()[native_key].hint):
            return no_effect("null leaves our default")
        return honoured(native_key, value, reason)

    return rule


def same_names(section: str, *names: str) -> dict[str, Rule]:
    """Settings of a section that have the same name in verl."""
    return {name: same(f"{section}.{name}") for name in names}


def renamed(native_key: str, names: Mapping[Any, Any], *, reason: str) -> Rule:
    """The same setting with other names for its values; other values are refused."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value not in names:
            words = quoted(name for name in names if isinstance(name, str))
            return refused(f"only {words} exist here")
        native = names[value]
        return honoured(native_key, native) if native == value else translated({native_key: native}, reason)

    return rule


def unless_negative(native_key: str, instead: int | None, reason: str) -> Rule:
    """The same setting; null or a negative number, with which verl means everything or nothing, is `instead`."""

    def rule(key: str, value: Any, given: Given) -> Outcome:
        if value is None or value < 0:
            return translated({native_key: instead}, reason)
        return honoured(native_key, value)

    return rule


def where(switch: str, rule: Rule, *, otherwise: str, warn: bool = False) -> Rule:
    """A rule for a key that has an effect only while the key `switch` is true; `otherwise` says so."""
    return lambda key, value, given: rule(key, value, given) if given.get(switch) else no_effect(otherwise, warn=warn)


@dataclass(frozen=True, slots=True)
class Inert:
    """A rule for a key that has no effect here, whatever its value."""

    reason: str

    def __call__(self, key: str, value: Any, given: Given) -> Outcome:
        return no_effect(self.reason)


def inert(table: str) -> dict[str, Rule]:
    """Keys that have no effect here, of one table of `without_effect.json`."""
    return {key: Inert(reason) for key, reason in _reasons("without_effect", table)}


def off(table: str) -> dict[str, Rule]:
    """Keys of what is not supported, of one table of `unsupported.json`: refused unless they switch it off."""
    return {key: only((False, None, {}, []), "off", otherwise=why) for key, why in _reasons("unsupported", table)}


def _reasons(file: str, table: str) -> list[tuple[str, str]]:
    """The keys of a table with their reasons."""
    return [(key, reason) for reason, keys in _read(file)[table].items() for key in keys]


@cache
def _read(file: str) -> dict[str, dict[str, list[str]]]:
    """Reason to keys, by table of rules."""
    text = files("rl_compat.verl.keys").joinpath(f"{file}.json").read_text(encoding="utf-8")
    tables: dict[str, dict[str, list[str]]] = json.loads(text)
    return tables


def only(allowed: tuple[Any, ...], reason: str, *, otherwise: str = "") -> Rule:
    """A rule for a key whose given values describe what always happens; other values are refused.

    `otherwise` is the reason of the refusal, by default the same.
    """

    def rule(key: str, value: Any, given: Given) -> Outcome:
        return no_effect(reason) if any(_equal(value, item) for item in allowed) else refused(otherwise or reason)

    return rule


def other_than(usual: Collection[Any], reason: str) -> Rule:
    """A rule for a key without effect here; a value other than the usual ones is a warning."""
    return lambda key, value, given: no_effect(reason, warn=not any(_equal(value, item) for item in usual))


def under(prefix: str, *tables: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rules of these tables, whose names follow `prefix.`."""
    return {f"{prefix}.{name}": rule for table in tables for name, rule in table.items()}


def _equal(value: Any, item: Any) -> bool:
    return bool(value == item) and isinstance(value, bool) == isinstance(item, bool)
