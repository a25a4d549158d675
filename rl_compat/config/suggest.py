"""The nearest valid setting for a key that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from rl_compat.config.settings import POOLS, pool_settings, sections, settings
from rl_compat.errors import nearest

OTHER_NAMES = {
    "actor.lr": ("optimizer.actor_lr",),
    "critic.lr": ("optimizer.critic_lr",),
    "attn_implementation": ("plan.attention",),
    "bf16": ("plan.compute_dtype",),
    "cliprange": ("algorithm.clip_low", "algorithm.clip_high"),
    "clip_range": ("algorithm.clip_low", "algorithm.clip_high"),
    "cliprange_value": ("algorithm.clip_value",),
    "dtype": ("plan.compute_dtype", "plan.rollout_dtype"),
    "epochs": ("trainer.num_epochs",),
    "fp16": ("plan.compute_dtype",),
    "lam": ("algorithm.gae_lambda",),
    "learning_rate": ("optimizer.actor_lr", "optimizer.critic_lr"),
    "logger": ("trainer.loggers",),
    "lr": ("optimizer.actor_lr", "optimizer.critic_lr"),
    "max_grad": ("optimizer.max_grad_norm",),
    "max_new_tokens": ("data.max_response_length",),
    "max_steps": ("trainer.num_steps",),
    "model_name_or_path": ("model.path",),
    "num_generations": ("algorithm.group_size",),
    "num_train_epochs": ("trainer.num_epochs",),
    "output": ("trainer.output_dir",),
    "precision": ("plan.compute_dtype",),
    "report_to": ("trainer.loggers",),
    "save_steps": ("trainer.save_every",),
    "steps": ("trainer.num_steps",),
    "total_steps": ("trainer.num_steps",),
    "train_batch_size": ("trainer.batch_size",),
}
"names used by other programs, to the native keys"


def suggestion(key: str) -> str:
    """A sentence that names the nearest valid key and its section, or the sections."""
    if normalize(key) in sections():
        return _names_in(normalize(key))
    section, _, name = normalize(key).rpartition(".")
    section = _spelled(section)
    if not section and name in sections():
        return _names_in(name)
    return (
        _did_you_mean(OTHER_NAMES.get(f"{section}.{name}", OTHER_NAMES.get(name, ())))
        or _same_name_elsewhere(section, name)
        or _other_name(f"{section}.{name}")
        or _near_in_section(section, name)
        or _other_name(name)
        or _near_anywhere(name)
        or _section_hint(section)
        or f"the sections are {', '.join(f'[{name}]' for name in sections())}"
    )


def means_ours(key: str) -> bool:
    """Whether an unknown key is more similar to a native setting than to a key of a dialect."""
    section, _, name = normalize(key).rpartition(".")
    ours = {setting.name for setting in settings().values()}
    section = _spelled(section)
    if section in ("", *sections()):
        return name in ours or name in OTHER_NAMES or not section or nearest(name, ours) is not None
    return f"{section}.{name}" in OTHER_NAMES


def _spelled(section: str) -> str:
    """A misspelled section with its correct spelling; any other unchanged."""
    return next(iter(get_close_matches(section, list(sections()), n=1, cutoff=0.8)), section)


def normalize(key: str) -> str:
    """A key in lower case with underscores."""
    return key.strip().lower().replace("-", "_")


def keys_named(name: str) -> tuple[str, ...]:
    """Every key whose last part is this name."""
    return tuple(key for key, setting in settings().items() if setting.name == name)


def _same_name_elsewhere(section: str, name: str) -> str | None:
    keys = keys_named(name)
    same_group = tuple(key for key in keys if settings()[key].section.endswith(section.rpartition(".")[2]))
    if not keys or (section and same_group):
        return _did_you_mean(same_group)
    homes = " or ".join(f"[{settings()[key].section}]" for key in keys)
    return f"`{name}` belongs in {homes}: {_quoted(keys)}"


def _other_name(key: str) -> str | None:
    if key in OTHER_NAMES:
        return _did_you_mean(OTHER_NAMES[key])
    ours = [setting.name for setting in settings().values()]
    close = nearest(key, [*OTHER_NAMES, *ours])
    return _did_you_mean(OTHER_NAMES[close]) if close in OTHER_NAMES else None


def _near_in_section(section: str, name: str) -> str | None:
    section = section if section in sections() else nearest(section, sections()) or ""
    of_pool = pool_settings(section.partition(".")[2]) if section.startswith(f"{POOLS}.") else ()
    keys = [setting.key for setting in of_pool] or [key for key in settings() if key.startswith(section)]
    names = {key.removeprefix(f"{section}.").replace(".", "_"): key for key in keys}
    close = nearest(name, names) if section else None
    return _did_you_mean((names[close],)) if close else None


def _near_anywhere(name: str) -> str | None:
    close = nearest(name, [setting.name for setting in settings().values()])
    return _did_you_mean(keys_named(close)) if close else None


def _section_hint(section: str) -> str | None:
    close = section if section in sections() else nearest(section, sections())
    return _names_in(close) if close else None


def _names_in(section: str) -> str:
    names = ", ".join(setting.name for setting in settings().values() if setting.section == section)
    return f"[{section}] has {names}"


def _did_you_mean(keys: Sequence[str]) -> str | None:
    if not keys:
        return None
    homes = " and ".join(dict.fromkeys(f"[{settings()[key].section}]" for key in keys))
    return f"did you mean {_quoted(keys)}, in section {homes}"


def _quoted(keys: Sequence[str]) -> str:
    return " or ".join(f"`{key}`" for key in keys)
