"""Build the terms of a reward from the settings: named functions, `auto` and the overlong penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.table import AUTO, BUILTINS, Builtin
from rl_compat.rewards.builtin.texts import overlong
from rl_compat.rewards.checks import builtin_of, unknown_source
from rl_compat.rewards.parts import BuiltinPart, Part, function_part
from rl_compat.rewards.processes.custom import BATCHED_KEYWORDS, KEYWORDS, split_spec
from rl_compat.rewards.types import RewardOutcome, ScoreRequest


def make_parts(
    config: RewardConfig,
    *,
    data_sources: Iterable[str] = (),
    max_response_length: int | None = None,
    callables: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> list[Part]:
    """One term for each of `reward.functions`, and one for the overlong penalty.

    Raises ConfigError if a name, file or function cannot be used, and DataError if `auto` does not know a data source.
    """
    parts: list[Part] = []
    try:
        for spec, name in zip(config.functions, _names(config.functions), strict=True):
            if spec == AUTO:
                parts.append(AutoPart(config, data_sources=data_sources, max_response_length=max_response_length))
            else:
                part = function_part(spec, name, config, max_response_length=max_response_length, callables=callables)
                parts.append(part)
        _check_arguments(config, parts)
        if config.overlong_buffer:
            parts.append(_overlong(config, max_response_length))
    except BaseException:
        for part in parts:
            part.close()
        raise
    return parts


class AutoPart(Part):
    """Scores each response with the reward for its data source."""

    name = AUTO

    def __init__(
        self, config: RewardConfig, *, data_sources: Iterable[str] = (), max_response_length: int | None = None
    ) -> None:
        self._config = config
        self._max_response_length = max_response_length
        self._parts: dict[str, Part] = {}
        try:
            for source in data_sources:
                self._part_of(source)
        except BaseException:
            self.close()
            raise

    @property
    def judges_alone(self) -> bool:  # type: ignore[override]
        return all(part.judges_alone for part in self._parts.values())

    @property
    def parts(self) -> tuple[Part, ...]:
        """The rewards in use."""
        return tuple(self._parts.values())

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[RewardOutcome]:
        rows: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            rows.setdefault(request.prompt.data_source, []).append(i)
        done: dict[int, RewardOutcome] = {}
        for source, indices in rows.items():
            part = self._part_of(source, rows=[requests[i].prompt.row for i in indices])
            outcomes = part.outcomes([requests[i] for i in indices])
            for outcome in outcomes:
                if outcome.stops(self._config.on_error):
                    return [outcome] * len(requests)
            done |= zip(indices, outcomes, strict=True)
        return [done[i] for i in range(len(requests))]

    def close(self) -> None:
        for part in self._parts.values():
            part.close()

    def _part_of(self, source: str, *, rows: Sequence[int] = ()) -> Part:
        spec = builtin_of(source, self._config.sources)
        if spec is None:
            raise unknown_source([source], rows=rows, sources=self._config.sources)
        if spec not in self._parts:
            name = split_spec(spec)[1] if ".py" in spec else spec
            part = function_part(spec, name, self._config, max_response_length=self._max_response_length)
            self._parts[spec] = part
            self.arguments += part.arguments
        return self._parts[spec]


def _overlong(config: RewardConfig, max_response_length: int | None) -> BuiltinPart:
    if max_response_length is None or config.overlong_buffer > max_response_length:
        raise ConfigError(
            f"`reward.overlong_buffer` is {config.overlong_buffer} tokens and the maximum response length is "
            f"{max_response_length or 'unknown'}",
            hint="the buffer is the last part of `data.max_response_length`, where the penalty grows",
        )
    builtin = Builtin(function=overlong(config.overlong_buffer), truth="none", reads_thoughts=True)
    return BuiltinPart("overlong", builtin, config, max_response_length=max_response_length)


def _names(functions: Sequence[str]) -> list[str]:
    """The name of each function, or the full `file.py:function` if two functions have the same name."""
    twice = [spec for i, spec in enumerate(functions) if spec in functions[:i]]
    if twice:
        raise ConfigError(f"the reward `{twice[0]}` is listed twice", hint="give it a larger weight instead")
    short = [spec if ".py" not in spec else split_spec(spec)[1] for spec in functions]
    return [spec if short.count(name) > 1 else name for spec, name in zip(functions, short, strict=True)]


def _check_arguments(config: RewardConfig, parts: Sequence[Part]) -> None:
    """Check that a function accepts each argument and that none replaces an argument of the run."""
    accepted = {name for part in parts for name in part.arguments}
    for name in config.function_arguments:
        if name in (*KEYWORDS, *BATCHED_KEYWORDS):
            raise ConfigError(
                f"`reward.function_arguments.{name}` would replace an argument that the run passes", hint="rename it"
            )
        if name not in accepted:
            raise ConfigError(
                f"no function in `reward.functions` accepts `{name}`, which is set in `reward.function_arguments`",
                hint="add a keyword of that name to the function; `docs/rewards.md` lists those of the built-in ones",
            )


PREFIX = "python:"
"prefix of the name of an object in the settings"

RewardFunction = Callable[..., Any]
"a reward function: called with the keywords of docs/rewards.md that it accepts; returns a number or a dict"


def named_functions(reward: Any, functions: dict[str, RewardFunction]) -> tuple[str, ...]:
    """The names that stand for reward functions in the settings; Python functions are added to `functions`."""
    names: list[str] = []
    for item in reward if isinstance(reward, list | tuple) else (reward,):
        if isinstance(item, str):
            names.append(item)
            continue
        if not callable(item):
            raise ConfigError(f"`reward` is a {type(item).__name__}, not a function or the name of one")
        name = f"{PREFIX}{getattr(item, '__name__', type(item).__name__)}"
        if name in functions:
            name = f"{name}_{len(functions)}"
        functions[name] = item
        names.append(name)
    return tuple(names)


def names_function(name: str) -> bool:
    """Whether a text is a built-in name or `file.py:function`, and not a model."""
    return name == AUTO or name in BUILTINS or ".py:" in name
