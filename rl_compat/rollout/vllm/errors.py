"""Errors for vLLM's failures to start and during generation, with both numbers and a hint."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from re import Match

from rl_compat.errors import DoesNotFitError, ModelError, RLCompatError
from rl_compat.planning.types import RolloutPlan

OTHERWISE = "`rollout.engine=native` generates without vLLM; `rlc doctor` shows whether vLLM works on this machine"
LESS = "lower `rollout.gpu_memory_utilization`, or set `rollout.engine=native`"
MORE = "raise `rollout.gpu_memory_utilization`, or shorten `data.max_prompt_length` or `data.max_response_length`"
GIB = r"([\d.]+) GiB"


def _share_taken(found: Match[str], plan: RolloutPlan) -> RLCompatError:
    free, total, share, wanted = (float(number) for number in found.groups())
    return DoesNotFitError(
        f"`rollout.gpu_memory_utilization={share:g}` is {wanted:g} GiB, and {free:g} GiB of {total:g} GiB are free",
        hint=f"set it to at most {int(100 * free / total) / 100:.2f}, or set `rollout.engine=native`",
    )


def _cache_too_small(found: Match[str], plan: RolloutPlan) -> RLCompatError:
    length, needed, available = found.groups()
    return DoesNotFitError(
        f"a sequence of {length} tokens needs a cache of {needed} GiB, and vLLM has {available} GiB for it", hint=MORE
    )


def _no_cache(found: Match[str], plan: RolloutPlan) -> RLCompatError:
    share = plan.gpu_memory_utilization
    held = "its fraction of the device" if share is None else f"`rollout.gpu_memory_utilization={share:g}`"
    return DoesNotFitError(
        f"{held} leaves vLLM no memory for a cache in addition to its weights and activations", hint=MORE
    )


def _cache_not_available(found: Match[str], plan: RolloutPlan) -> RLCompatError:
    free, total, wanted = found.groups()
    return DoesNotFitError(
        f"the cache of vLLM needs {wanted} GiB, and {free} GiB of {total} GiB of host memory are free",
        hint="lower `rollout.max_num_seqs`, or set `rollout.engine=native`",
    )


def _out_of_memory(found: Match[str], plan: RolloutPlan) -> RLCompatError:
    return DoesNotFitError(f"vLLM ran out of memory: {found[0]}", hint=LESS)


KNOWN: tuple[tuple[str, Callable[[Match[str], RolloutPlan], RLCompatError]], ...] = (
    (
        rf"\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired [GC]PU memory utilization \(([\d.]+), {GIB}\)",
        _share_taken,
    ),
    (
        rf"max seq len \((\d+)\), \({GIB} KV cache is needed, which is larger than the available KV cache "
        rf"memory \({GIB}\)",
        _cache_too_small,
    ),
    (r"No available memory for the cache blocks", _no_cache),
    (
        rf"\(([\d.]+)/([\d.]+) GiB\) on kv cache allocation is less than requested memory for kv \({GIB}",
        _cache_not_available,
    ),
    (r"(?:CUDA )?out of memory\.? [^\n]*|DefaultCPUAllocator: can't allocate memory[^\n]*", _out_of_memory),
)


def start_error(error: Exception, plan: RolloutPlan, *, version: str, log: Sequence[str]) -> RLCompatError:
    """Why vLLM did not start."""
    return _explained(error, plan) or RLCompatError(
        f"vLLM {version} did not start: {_cause(error, log)}", hint=OTHERWISE
    )


def refusal(error: Exception, *, version: str, log: Sequence[str]) -> RLCompatError:
    """Why vLLM did not accept the weights."""
    return ModelError(
        f"vLLM {version} does not accept the weights of this model: {_cause(error, log)}",
        hint="set `rollout.engine=native`",
    )


def death(error: Exception, plan: RolloutPlan, *, version: str, log: Sequence[str]) -> RLCompatError:
    """Why vLLM stopped during a call."""
    return _explained(error, plan) or RLCompatError(
        f"vLLM {version} stopped while generating: {_cause(error, log)}", hint=OTHERWISE
    )


def forget_locals(error: BaseException) -> None:
    """Clear the frames of the error and its causes, which would keep tensors as long as the error lives."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def _explained(error: Exception, plan: RolloutPlan) -> RLCompatError | None:
    for link in reversed(_chain(error)):
        for pattern, explain in KNOWN:
            found = re.search(pattern, str(link))
            if found is not None:
                return explain(found, plan)
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """The error and the chain of its causes and contexts."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def _cause(error: Exception, log: Sequence[str]) -> str:
    """The first error of the chain with a message, on one line; else the last line of the log."""
    for link in reversed(_chain(error)):
        lines = [line.strip() for line in str(link).splitlines() if line.strip()]
        if lines:
            return f"{type(link).__name__}: {lines[0]}"
    return f"{type(error).__name__}, after `{log[-1]}`" if log else type(error).__name__
