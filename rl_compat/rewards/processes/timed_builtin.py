"""Load a built-in reward in a process with a time limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_compat.errors import ConfigError
from rl_compat.rewards.builtin.table import find_builtin
from rl_compat.rewards.processes.custom import CustomFunction
from rl_compat.rewards.types import Failure, RewardOutcome


def load_builtin(name: str, arguments: Mapping[str, str]) -> CustomFunction:
    """The built-in reward with its arguments bound. It is called once, so that its imports count against no limit.

    Raises ConfigError if the arguments cannot be used.
    """
    builtin = find_builtin(name)
    bound = builtin.bind(name, arguments)

    def score(solution_str: str, ground_truth: Any) -> RewardOutcome:
        try:
            return builtin.function(solution_str, ground_truth, **bound)
        except (MemoryError, RecursionError) as error:
            failure = Failure(kind="error", message=f"`{name}` failed on a response: {type(error).__name__}")
            return RewardOutcome(reward=builtin.wrong, correct=False, failure=failure)

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
