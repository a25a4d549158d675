"""Descriptions of settings, for `rlc settings` and docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rl_compat.algorithms.table import ALGORITHMS, is_offline
from rl_compat.config.rules.inert import losses_reading, readers
from rl_compat.config.settings import POOLS, Setting, own_pool_settings, pool_settings, sections, settings
from rl_compat.config.toml_file import format_value
from rl_compat.config.values import choices_of, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The description of a setting."""

    setting: Setting
    algorithms: tuple[str, ...]
    "names of the algorithms that read it"
    policy_losses: tuple[str, ...]
    "names of the policy losses that read it; empty if it does not depend on the policy loss"

    @property
    def default(self) -> str:
        """The default in TOML syntax, `none` for no value."""
        return "none" if self.setting.default is None else format_value(self.setting.default)

    @property
    def values(self) -> str:
        """Type and limits, such as `a number, above 0 or none`."""
        limits = f", {self.setting.limits}" if self.setting.limits else ""
        return f"{describe(self.setting.hint)}{limits}"

    @property
    def read_by(self) -> str:
        """A short description of its readers."""
        losses = f"policy loss {', '.join(self.policy_losses)}" if self.policy_losses else ""
        online = [name for name in ALGORITHMS if not is_offline(name)]
        names = f"algorithm {', '.join(self.algorithms)}"
        if len(self.algorithms) == len(ALGORITHMS):
            names = "every algorithm"
        elif list(self.algorithms) == online:
            names = "every algorithm that generates responses"
        return f"{losses}; {names}" if losses else names

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.setting.key,
            "values": describe(self.setting.hint),
            "limits": self.setting.limits or None,
            "choices": list(choices_of(self.setting.hint)),
            "default": self.setting.default,
            "sentence": self.setting.sentence,
            "algorithms": list(self.algorithms),
            "policy_losses": list(self.policy_losses),
        }


def explain(key: str) -> Explanation:
    """One setting by its dotted key."""
    return Explanation(setting=settings()[key], algorithms=readers(key), policy_losses=losses_reading(key))


def summary_of(section: str) -> str:
    """The description of a section or group."""
    return " ".join((sections()[section].__doc__ or "").split())


def keys_in(section: str) -> list[str]:
    """The settings of a section and of its groups."""
    group, _, pool = section.partition(".")
    if group == POOLS:
        return [setting.key for setting in pool_settings(pool or "NAME")]
    return [key for key in settings() if key.startswith(f"{section}.")]


def search(words: Iterable[str]) -> list[str]:
    """The settings with all these words in their key or description."""
    wanted = [word.lower() for word in words]
    found = {**settings(), **{setting.key: setting for setting in own_pool_settings()}}
    return [key for key, s in found.items() if all(word in f"{key} {s.sentence}".lower() for word in wanted)]


def page() -> str:
    """docs/settings.md."""
    return "\n".join(_page_lines()) + "\n"


def _page_lines() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Settings come from a TOML file and from `key=value` arguments: `rlc train run.toml trainer.num_steps=100`."
    yield "A group is a sub-table, `[algorithm.clip_cov]`. `rlc settings KEY` also names its readers and verl keys."
    yield ""
    yield "This page is written by `rlc settings --markdown > docs/settings.md`."
    for section in sections():
        yield from _section_lines(section, [item for item in settings().values() if item.section == section])
    yield from _section_lines(f"{POOLS}.NAME", own_pool_settings())


def _section_lines(section: str, shown: Iterable[Setting]) -> Iterator[str]:
    yield ""
    yield f"{'##' if '.' not in section else '###'} {section}"
    yield ""
    yield summary_of(section)
    yield ""
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    for setting in shown:
        found = explain(setting.key)
        cells = (f"`{setting.name}`", f"`{found.default}`", found.values, setting.sentence)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
