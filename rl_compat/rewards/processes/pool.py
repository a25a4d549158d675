"""Several processes of one function, which share the responses of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_compat.rewards.processes.custom import Call
from rl_compat.rewards.processes.timeouts import TimedFunction
from rl_compat.rewards.types import RewardOutcome


class FunctionProcesses:
    """A function in `num_processes` processes that can be killed. A batched function runs in a single process."""

    def __init__(
        self,
        file: Path | None,
        name: str,
        *,
        arguments: Mapping[str, str],
        timeout_seconds: float,
        num_processes: int = 1,
    ) -> None:
        """Start the processes. `file` is None for a built-in reward. Raises ConfigError for an unusable function."""
        self._functions: list[TimedFunction] = []
        try:
            while len(self._functions) < num_processes:
                function = TimedFunction(file, name, arguments=arguments, timeout_seconds=timeout_seconds)
                self._functions.append(function)
                if function.batched:
                    break
        except BaseException:
            self.close()
            raise

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the user's arguments that the function accepts."""
        return self._functions[0].arguments

    def outcomes(self, calls: Sequence[Call]) -> list[RewardOutcome]:
        """One outcome per call, in order."""
        number = min(len(self._functions), len(calls))
        if number <= 1:
            return self._functions[0].outcomes(calls)
        shares = [calls[i::number] for i in range(number)]
        threads = ThreadPoolExecutor(number)
        try:
            answers = list(threads.map(TimedFunction.outcomes, self._functions[:number], shares))
        except BaseException:
            for function in self._functions:
                function.abandon()
            raise
        finally:
            threads.shutdown()
        return [answers[i % number][i // number] for i in range(len(calls))]

    def close(self) -> None:
        """End the processes and their child processes."""
        for function in self._functions:
            function.close()
