"""The causes of a write that failed, and the name that was meant."""

from __future__ import annotations

import errno
import os

import pytest
from safetensors import SafetensorError

from rl_compat.errors import WRITE_FAILURES, error_number, nearest, write_failure


@pytest.mark.parametrize("number", WRITE_FAILURES)
def test_a_number_is_found_in_an_error_and_in_the_text_of_a_library(number: int) -> None:
    words = os.strerror(number)
    for error in (
        OSError(number, words),
        SafetensorError(f"Error while serializing: I/O error: {words} (os error {number})"),
        RuntimeError(f"[Errno {number}] {words}: 'model.pt'"),
        RuntimeError(f"PytorchStreamWriter failed writing file: {words}"),
    ):
        assert error_number(error) == number
        assert write_failure(error) == WRITE_FAILURES[number]


def test_a_full_disk_and_a_used_up_quota_are_two_causes() -> None:
    causes = {number: write_failure(OSError(number, ""))[0] for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO)}

    assert len(set(causes.values())) == 3
    assert "quota" in causes[errno.EDQUOT]


def test_another_number_is_named_by_the_operating_system_without_advice() -> None:
    assert write_failure(OSError(errno.EBUSY, "")) == (os.strerror(errno.EBUSY).lower(), None)


@pytest.mark.parametrize(
    ("error", "cause"), [(RuntimeError("unexpected pos 576\nat 0x7f"), "unexpected pos 576"), (OSError(), "OSError")]
)
def test_an_error_without_a_number_speaks_for_itself(error: Exception, cause: str) -> None:
    assert write_failure(error) == (cause, None)


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("GRPO", ["ppo", "grpo"], "grpo"),
        ("gpu", ["auto", "cpu", "cuda"], "cuda"),
        ("bfloat16", ["auto", "fp16", "bf16", "fp32"], "bf16"),
        ("gpu", ["auto", "cpu"], "cpu"),
        ("Sum", ["sums", "gsm8k"], "sums"),
        ("nothing like it", ["sums"], None),
    ],
)
def test_the_name_that_was_meant_is_found_in_any_case_and_by_its_synonym(
    given: str, known: list[str], meant: str | None
) -> None:
    assert nearest(given, known) == meant
