"""`rlc settings`: what each setting is."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_table
from rl_compat.config.explain import Explanation, explain, keys_in, page, search, summary_of
from rl_compat.config.settings import own_pool_settings, sections
from rl_compat.config.settings import settings as all_settings
from rl_compat.config.suggest import suggestion
from rl_compat.errors import UsageError
from rl_compat.verl.keys.table import verl_keys

app = new_app()

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY|WORD]...", help="A setting, a section or group, or words to search for."),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the reference page docs/settings.md.")]

MAX_VERL_KEYS = 4


@app.command()
def settings(words: Words = None, as_json: AsJson = False, markdown: Markdown = False) -> None:
    """Explain settings: type, default, limits, the algorithms that read them and the corresponding verl keys.

    Example: rlc settings algorithm.clip_low
    """
    if markdown:
        print(page(), end="")
        return
    if not words and not as_json:
        _print_sections()
        return
    keys = _keys_of(words or []) or search(words or [])
    if not keys:
        asked = " ".join(words or [])
        raise UsageError(f"there is no setting `{asked}`", hint=suggestion(asked))
    found = [explain(key) for key in keys]
    if as_json:
        print_json([item.as_json() | {"verl": list(verl_keys().get(item.setting.key, ()))} for item in found])
    elif words and words[0] in all_settings():
        _print_one(found[0])
    else:
        rows = [(item.setting.key, item.default, item.setting.sentence) for item in found]
        print_table("", ("setting", "default", "meaning"), rows)


def _keys_of(words: list[str]) -> list[str]:
    """The setting, or those of the section or group, that the only word names."""
    if len(words) != 1:
        return []
    (word,) = words
    return [word] if word in all_settings() else keys_in(word) if word in sections() else []


def _print_sections() -> None:
    sizes = Counter(setting.section for setting in (*all_settings().values(), *own_pool_settings()))
    rows = [(section, size, summary_of(section)) for section, size in sizes.items()]
    print_table("", ("section or group", "settings", "contents"), rows)
    print_lines(
        ["", "run `rlc settings SECTION` for its settings, `rlc settings KEY` for one, `rlc settings WORD` to search"]
    )


def _print_one(found: Explanation) -> None:
    keys = verl_keys().get(found.setting.key, ())
    more = f" and {len(keys) - MAX_VERL_KEYS} more" if len(keys) > MAX_VERL_KEYS else ""
    lines = [
        f"{found.setting.key} = {found.default}",
        f"  {found.setting.sentence}",
        f"  values   {found.values}",
        f"  read by  {found.read_by}",
    ]
    print_lines([*lines, *([f"  verl     {', '.join(keys[:MAX_VERL_KEYS])}{more}"] if keys else [])])
