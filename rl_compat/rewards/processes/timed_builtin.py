"""A built-in reward as the process with a time limit calls it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.table import find_builtin
from rl_compat.rewards.processes.custom import CustomFunction
from rl_compat.rewards.types import Failure, Outcome


def load_builtin(name: str, arguments: Mapping[str, str]) -> CustomFunction:
    """The built-in with its arguments, called once so that what it imports is there before any limit counts.

    Raises ConfigError for arguments that it cannot use.
    """
    builtin = find_builtin(name)
    bound = builtin.bind(name, arguments)

    def score(solution_str: str, ground_truth: Any) -> Outcome:
        try:
            return builtin.function(solution_str, ground_truth, **bound)
        except (MemoryError, RecursionError) as error:
            failure = Failure(kind="error", message=f"`{name}` gave up on a response: {type(error).__name__}")
            return Outcome(reward=builtin.wrong, correct=False, failure=failure)

    try:
        score("1", "2")
    except ValueError as error:
        raise ConfigError(f"the reward `{name}` cannot be used: {error}") from error
    return CustomFunction(
        name=name,
        file=Path(__file__),
        function=score,
        arguments={},
        accepted=("solution_str", "ground_truth"),
        batched=False,
        concurrent=False,
    )
