"""Errors for vLLM's failures to start and during generation, with both numbers and a hint."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

from rl_compat.errors import DoesNotFitError, ModelError, RLCompatError
from rl_compat.planning.types import RolloutPlan

OTHERWISE = "`rollout.engine=native` generates without vLLM; `rlc doctor` shows whether vLLM works on this machine"
MORE = "raise `rollout.gpu_memory_utilization`, or shorten `data.max_prompt_length` or `data.max_response_length`"
GIB = r"(?P<gib>[\d.]+) GiB"


KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        rf"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired [GC]PU memory utilization "
        rf"\((?P<share>[\d.]+), {GIB}\)",
        "`rollout.gpu_memory_utilization={share}` is {gib} GiB, and {free} GiB of {total} GiB are free",
        "set it to at most {at_most:.2f}, or set `rollout.engine=native`",
    ),
    (
        r"max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the "
        rf"available KV cache memory \({GIB}\)",
        "a sequence of {length} tokens needs a cache of {needed} GiB, and vLLM has {gib} GiB for it",
        MORE,
    ),
    (
        r"No available memory for the cache blocks",
        "{held} leaves vLLM no memory for a cache in addition to its weights and activations",
        MORE,
    ),
    (
        rf"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is less than requested memory for kv "
        rf"\({GIB}",
        "the cache of vLLM needs {gib} GiB, and {free} GiB of {total} GiB of host memory are free",
        "lower `rollout.max_num_seqs`, or set `rollout.engine=native`",
    ),
    (
        r"(?P<text>(?:CUDA )?out of memory\.? [^\n]*|DefaultCPUAllocator: can't allocate memory[^\n]*)",
        "vLLM ran out of memory: {text}",
        "lower `rollout.gpu_memory_utilization`, or set `rollout.engine=native`",
    ),
)
"text of vLLM's failures, what to say in its place with the numbers in it, and what to do"


def failure(error: Exception, plan: RolloutPlan, *, version: str, event: str, log: Sequence[str]) -> RLCompatError:
    """Why vLLM failed: `event` says what happened, such as `did not start`."""
    return _explained(error, plan) or RLCompatError(f"vLLM {version} {event}: {_cause(error, log)}", hint=OTHERWISE)


def refusal(error: Exception, *, version: str, log: Sequence[str]) -> RLCompatError:
    """Why vLLM did not accept the weights."""
    return ModelError(
        f"vLLM {version} does not accept the weights of this model: {_cause(error, log)}",
        hint="set `rollout.engine=native`",
    )


def forget_locals(error: BaseException) -> None:
    """Clear the frames of the error and its causes, which would keep tensors as long as the error lives."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def _explained(error: Exception, plan: RolloutPlan) -> RLCompatError | None:
    share = plan.gpu_memory_utilization
    held = "its fraction of the device" if share is None else f"`rollout.gpu_memory_utilization={share:g}`"
    for link in reversed(_chain(error)):
        for pattern, message, hint in KNOWN:
            found = re.search(pattern, str(link))
            if found is not None:
                facts = found.groupdict()
                if "share" in facts:
                    facts["at_most"] = int(100 * float(facts["free"]) / float(facts["total"])) / 100
                return DoesNotFitError(message.format(held=held, **facts), hint=hint.format(**facts))
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
