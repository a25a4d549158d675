"""What the settings name outside of them: the columns of the data, and objects of Python code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_compat.config.types import DataConfig
from rl_compat.data.form.columns import Columns
from rl_compat.data.read.records import Records, as_source
from rl_compat.errors import ConfigError
from rl_compat.rewards.assemble import PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonObjects:
    """Reward functions and datasets by their names in the settings, such as `python:my_reward`."""

    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    datasets: Mapping[str, Any] = field(default_factory=dict)

    def sources(self, names: Sequence[str], *, key: str) -> list[str | Records]:
        """The names that the setting `key` lists, with the rows of objects in place of their names.

        Raises ConfigError for the name of a missing object and DataError for an object without rows.
        """
        self.check(names, key=key)
        return [as_source(self.datasets[name], name=name) if name in self.datasets else name for name in names]

    def check(self, names: Sequence[str], *, key: str) -> None:
        """Raise ConfigError if a setting names a missing object."""
        for name in names:
            if name.startswith(PREFIX) and name not in self.functions and name not in self.datasets:
                raise ConfigError(
                    f"`{key}` names `{name}`, an object of a Python program",
                    hint="continue this run with `rl_compat.train` and the same objects, or name a file",
                )


def data_columns(data: DataConfig) -> Columns:
    """The columns that the settings name."""
    return Columns(
        prompt=data.prompt_key,
        response=data.response_key,
        chosen=data.chosen_key,
        rejected=data.rejected_key,
        label=data.label_key,
        answer=data.answer_key,
    )
