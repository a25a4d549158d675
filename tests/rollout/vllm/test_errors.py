"""What vLLM says when it fails, told with both numbers. The messages are those of 0.19 to 0.33."""

from __future__ import annotations

import pytest

from rl_compat.errors import DoesNotFitError, ModelError, RLCompatError
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.vllm.errors import failure, refusal

PLAN = RolloutPlan(
    engine="vllm", compute_dtype="bf16", max_num_seqs=8, max_prefill_tokens=64, gpu_memory_utilization=0.9
)
FREE = (
    "Free memory on device cuda:0 (12.5/24.0 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 21.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
SHORT = (
    "To serve at least one request with the models's max seq len (32768), (3.5 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (1.25 GiB). Based on the available memory, the estimated maximum "
    "model length is 11696. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing "
    "the engine."
)
CPU = (
    "Available memory on node 0 (5.0/8.0 GiB) on startup is less than desired CPU memory utilization (0.9, 7.2 GiB). "
    "On the CPU backend, the `--gpu-memory-utilization` flag controls the fraction of CPU memory reserved."
)
CPU_CACHE = (
    "Available memory on node 0 (22.1/23.54 GiB) on kv cache allocation is less than requested memory for kv "
    "(40.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory."
)


SHARE, RAISED = "`rollout.gpu_memory_utilization", "raise `rollout.gpu_memory_utilization`"
NATIVE = "`rollout.engine=native`"


@pytest.mark.parametrize(
    ("message", "facts", "hints"),
    [
        (FREE, (f"{SHARE}=0.9`", "21.6 GiB", "12.5 GiB", "24.0 GiB"), ("0.52", NATIVE)),
        (CPU, (f"{SHARE}=0.9`", "7.2 GiB", "5.0 GiB", "8.0 GiB"), ("0.62", NATIVE)),
        (SHORT, ("32768", "3.5 GiB", "1.25 GiB"), (RAISED, "`data.max_response_length`")),
        (CPU_CACHE, ("40.0 GiB", "22.1 GiB", "23.54 GiB"), ("`rollout.max_num_seqs`", NATIVE)),
        (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing.",
            (f"{SHARE}=0.9`",),
            (RAISED,),
        ),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.5 GiB of which 1.1 GiB "
            "is free.",
            ("2.00 GiB", "23.5 GiB", "1.1 GiB"),
            ("lower `rollout.gpu_memory_utilization`", NATIVE),
        ),
    ],
)
def test_too_little_memory_is_told_with_both_numbers(
    message: str, facts: tuple[str, ...], hints: tuple[str, ...]
) -> None:
    told = failure(ValueError(message), PLAN, event="did not start", version="0.24.0", log=[])
    assert isinstance(told, DoesNotFitError)
    assert [fact for fact in facts if fact not in told.message] == []
    assert [hint for hint in hints if hint not in str(told.hint)] == []


def test_a_cause_is_found_behind_what_it_led_to() -> None:
    try:
        try:
            raise ValueError(FREE)
        except ValueError as error:
            raise RuntimeError("Engine core initialization failed. See root cause above.") from error
    except RuntimeError as error:
        told = failure(error, PLAN, event="did not start", version="0.24.0", log=[])
    assert isinstance(told, DoesNotFitError)


def test_any_other_failure_names_its_first_cause_and_a_way_out() -> None:
    try:
        try:
            raise AssertionError("head size 8 is not supported\nmore")
        except AssertionError:
            raise RuntimeError("worker died")  # noqa: B904
    except RuntimeError as error:
        told = failure(error, PLAN, event="stopped", version="0.32.0", log=["a warning"])
    assert type(told) is RLCompatError
    assert "0.32.0" in told.message and told.message.endswith("AssertionError: head size 8 is not supported")
    assert NATIVE in str(told.hint)


def test_an_error_without_a_word_is_told_with_the_last_line_of_the_log() -> None:
    told = failure(
        AssertionError(), PLAN, event="did not start", version="0.32.0", log=["first", "no module named triton"]
    )
    assert "AssertionError" in told.message and "`no module named triton`" in told.message


def test_weights_that_are_not_taken_are_a_matter_of_the_model() -> None:
    told = refusal(KeyError("model.layers.0.strange.weight"), version="0.32.0", log=[])
    assert isinstance(told, ModelError)
    assert "KeyError: 'model.layers.0.strange.weight'" in told.message
