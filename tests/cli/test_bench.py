"""`rlc bench rollout`: which engines it measures, on what, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.runs import cpu

from rl_compat.cli.app import main
from rl_compat.cli.bench import engines_here, options_for
from rl_compat.errors import AskedWrongly
from rl_compat.hardware.catalogue import emulated_hardware


def test_a_cpu_has_generate_and_native_in_fp32() -> None:
    assert engines_here(cpu(), "") == ["generate-fp32", "native-fp32"]


def test_a_p40_has_no_bf16_and_no_vllm() -> None:
    machine = replace(emulated_hardware("Tesla P40", cpu()), emulated=None)
    assert engines_here(machine, "") == ["generate-fp32", "native-fp32", "native-fp16"]
    options = options_for(machine, folder=None, batches="", new_tokens=None)
    assert (options.device, options.architecture, options.batches) == ("cuda", "sm_61", (8, 64, 256))


def test_engines_are_asked_for_by_name() -> None:
    assert engines_here(cpu(), "native-bf16,generate-fp32") == ["native-bf16", "generate-fp32"]
    with pytest.raises(AskedWrongly, match="there is no engine `nativ-fp32`") as error:
        engines_here(cpu(), "nativ-fp32")
    assert error.value.hint == "did you mean `native-fp32`?"


@pytest.mark.parametrize("batches", ["a", "8,", "0", "4,-1"])
def test_batches_are_numbers(batches: str) -> None:
    with pytest.raises(AskedWrongly, match="are not numbers above 0"):
        options_for(cpu(), folder=None, batches=batches, new_tokens=None)


def test_a_model_is_measured_on_questions_only() -> None:
    options = options_for(cpu(), folder="somewhere", batches="4,8", new_tokens=7)
    assert (options.shape, options.model, options.questions, options.question_tokens) == (None, "somewhere", (4, 8), 7)


def test_rows_of_a_model_as_json(
    llama_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    asked = ["bench", "rollout", str(llama_folder), "--engines", "native-fp32", "--batches", "2", "--new-tokens", "4"]
    assert main([*asked, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["engine"], row["batch"], row["dtype"]) == ("native-fp32", 2, "fp32")
    assert row["tokens_per_second"] > 0 and row["peak_bytes"] is None


def test_an_engine_that_fails_alone_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rollout", "--engines", "vllm-fp32", "--batches", "1"]) == 1
    assert "vllm-fp32 failed" in capsys.readouterr().err
