"""Check a row against the rewards of a run before training: its data source, ground truth and reference solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_compat.rewards.builtin.math_answer import find_answer, plain_form
from rl_compat.rewards.builtin.table import AUTO, BUILTINS, truth_problem
from rl_compat.rewards.sources import builtin_of
from rl_compat.rewards.types import RewardOutcome

Complaints = list[tuple[bool, str, str | None]]
"whether the row cannot be used for training, the problem, and the hint"
NO_REWARD = "set a reward, for example `reward.functions=exact_match`, or one for this source in `reward.sources`"
NO_TRUTH = "add it as `reward_model.ground_truth`, or set `data.answer_key` to its column"


def reference_judge(
    functions: Sequence[str], *, sources: Mapping[str, str] | None = None, arguments: Mapping[str, str] | None = None
) -> Callable[[str, Any, str | None], Complaints]:
    """A function that checks a row's data source, ground truth and reference solution (or None).

    Custom functions are not called.
    """
    bound = {name: BUILTINS[name].bind(name, arguments or {}) for name in functions if name in BUILTINS}

    def judge(data_source: str, ground_truth: Any, reference: str | None) -> Complaints:
        found: Complaints = []
        for function in functions:
            name = builtin_of(data_source, sources) if function == AUTO else function
            if name is None:
                found.append((True, f"no reward belongs to the data source `{data_source}`", NO_REWARD))
            elif name in BUILTINS:
                found += _of_builtin(name, ground_truth, reference, bound.get(name, {}))
        return found

    return judge


def _of_builtin(name: str, truth: Any, reference: str | None, arguments: Mapping[str, Any]) -> Complaints:
    if truth_problem(name, truth) is not None:
        kind = {"number": "a number", "letter": "a letter"}.get(BUILTINS[name].truth, "a ground truth")
        missing = truth is None or str(truth) == "" or truth == []
        problem = "no ground truth" if missing else f"a ground truth that is not {kind}"
        return [(True, f"{problem}, which the reward `{name}` needs", NO_TRUTH if missing else None)]
    if reference is None or BUILTINS[name].truth == "none" or BUILTINS[name].needed:
        return []
    if name in ("math", "math_dapo"):
        return _of_math(name, truth, reference)
    if BUILTINS[name].timed:
        return []
    return _of_outcome(name, BUILTINS[name].function(reference, truth, **arguments))


def _of_outcome(name: str, outcome: RewardOutcome) -> Complaints:
    if outcome.answer_found is False:
        return [(True, f"the reward `{name}` finds no answer in the reference solution", None)]
    if outcome.correct is False:
        return [(True, f"the reward `{name}` does not accept the reference solution", None)]
    return []


def _of_math(name: str, truth: Any, reference: str) -> Complaints:
    """Compares text only. Whether two expressions are equal is left to the reward, which has a time limit."""
    answer = find_answer(reference)
    if answer is None:
        return [(True, f"the reward `{name}` finds no answer in the reference solution", None)]
    truths = truth if isinstance(truth, (list, tuple)) else [truth]
    if plain_form(answer.text) in {plain_form(str(item)) for item in truths}:
        return []
    return [(False, f"the answer in the reference solution is not written like the ground truth of `{name}`", None)]
