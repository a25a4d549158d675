"""The summands of a reward: built-in functions in this process, custom ones in their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rl_compat.config.types import RewardConfig
from rl_compat.errors import ConfigError, nearest
from rl_compat.rewards.builtin import AUTO, BUILTIN_BY_SOURCE, BUILTINS, unknown_source
from rl_compat.rewards.custom import KEYWORDS, Call, split_spec
from rl_compat.rewards.timeouts import TimedFunction
from rl_compat.rewards.types import Outcome, ScoreRequest


class Part(Protocol):
    """One function of the sum."""

    name: str

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[Outcome]: ...

    def close(self) -> None: ...


def make_parts(config: RewardConfig) -> list[Part]:
    """One part for each of `reward.functions`. Raises ConfigError for a name, file or function that cannot be used."""
    parts: list[Part] = []
    try:
        for spec, name in zip(config.functions, _names(config.functions), strict=True):
            parts.append(_part(spec, name, config))
        _check_arguments(config, parts)
    except BaseException:
        for part in parts:
            part.close()
        raise
    return parts


class BuiltinPart:
    """A built-in reward, or with `auto` the one that belongs to each response's data source."""

    def __init__(self, name: str) -> None:
        self.name = name

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        return [self._outcome(request) for request in requests]

    def close(self) -> None:
        """Nothing is held."""

    def _outcome(self, request: ScoreRequest) -> Outcome:
        prompt = request.prompt
        name = self.name
        if name == AUTO:
            if prompt.data_source not in BUILTIN_BY_SOURCE:
                raise unknown_source([prompt.data_source], rows=[prompt.row])
            name = BUILTIN_BY_SOURCE[prompt.data_source]
        return BUILTINS[name](request.response_text, prompt.ground_truth)


class CustomPart:
    """A user's function."""

    def __init__(self, name: str, spec: str, config: RewardConfig) -> None:
        file, function = split_spec(spec)
        self.name = name
        self.function = TimedFunction(
            file, function, arguments=config.function_arguments, timeout_seconds=config.timeout_seconds
        )

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        return self.function.outcomes([_call(request) for request in requests])

    def close(self) -> None:
        self.function.close()


def _part(spec: str, name: str, config: RewardConfig) -> Part:
    if spec == AUTO or spec in BUILTINS:
        return BuiltinPart(name)
    if ".py" in spec:
        return CustomPart(name, spec, config)
    known = (AUTO, *BUILTINS)
    close = nearest(spec, known)
    raise ConfigError(
        f"there is no reward `{spec}`: known are {', '.join(f'`{name}`' for name in known)}",
        hint=f"did you mean `{close}`" if close else "a function of your own is named `file.py:function`",
    )


def _names(functions: Sequence[str]) -> list[str]:
    """A custom function's own name, or its whole `file.py:function` where two would share one."""
    twice = [spec for i, spec in enumerate(functions) if spec in functions[:i]]
    if twice:
        raise ConfigError(f"the reward `{twice[0]}` is named twice", hint="give it a larger weight instead")
    short = [spec if ".py" not in spec else split_spec(spec)[1] for spec in functions]
    return [spec if short.count(name) > 1 else name for spec, name in zip(functions, short, strict=True)]


def _check_arguments(config: RewardConfig, parts: Sequence[Part]) -> None:
    """Every extra argument reaches a function, and none replaces what the run gives."""
    accepted = {name for part in parts if isinstance(part, CustomPart) for name in part.function.arguments}
    for name in config.function_arguments:
        if name in KEYWORDS:
            raise ConfigError(f"`reward.function_arguments.{name}` would replace what the run gives", hint="rename it")
        if name not in accepted:
            raise ConfigError(
                f"no function in `reward.functions` takes `{name}`, given in `reward.function_arguments`",
                hint="a function takes it as a keyword of that name; built-in ones take none",
            )


def _call(request: ScoreRequest) -> Call:
    prompt = request.prompt
    return Call(
        row=prompt.row,
        data_source=prompt.data_source,
        solution_str=request.response_text,
        ground_truth=prompt.ground_truth,
        extra_info=dict(prompt.extra_info),
    )
