"""The rollout benchmark: rows of engines that run, the words of those that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_compat.bench.engines import engine_for
from rl_compat.bench.measure import Speeds, floor_seconds, measure, peak_bytes, reset_peak
from rl_compat.bench.options import BenchOptions
from rl_compat.bench.run import measured
from rl_compat.bench.worker import SHAPES, fixed_case, question_case, ragged_case, random_model
from rl_compat.resharding.source import SharedStorage

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_keeps_the_rows_of_engines_that_work_and_says_which_failed(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    command = [sys.executable, str(ROOT / "scripts" / "bench_rollout.py"), "--device", "cpu", "--shape", "small"]
    options = ["--batches", "2", "--prompt-length", "8", "--new-tokens", "4", "--ragged", "4", "--ragged-batch", "2"]
    engines = ["--engines", "native-fp32,nonsense", "--ragged-tokens", "8", "--repeats", "1"]
    command += [*options, *engines, "--json", str(target)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    rows = json.loads(target.read_text())
    assert [(row["engine"], row.get("case")) for row in rows] == [
        ("native-fp32", "8+4 x 2"),
        ("native-fp32", "ragged to 8 x 4"),
        ("nonsense", None),
    ]
    assert all(row["tokens_per_second"] > 0 for row in rows[:2])
    assert rows[0]["tokens"] == 8
    assert [row["batch"] for row in rows[:2]] == [2, 4], "the native engine has a slot for each of the four"
    assert all(row["peak_bytes"] > 2**26 and row["start_seconds"] > 0 for row in rows[:2])
    block = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 1024 + (256 + 2 * 64) + 2 * 256
    assert rows[0]["num_parameters"] == 8 * block + 256 + 8192 * 256
    assert "KeyError" in rows[2]["error"]
    assert "nonsense failed" in result.stdout


def test_responses_of_the_ragged_case_end_at_different_lengths_alike_in_both_engines() -> None:
    model = random_model("small", "cpu")
    case = ragged_case(SHAPES["small"]["vocab_size"], count=6, batch=2, prompt_length=8, new_tokens=24)
    counts = {}
    for name in ("native-fp32", "transformers-fp32"):
        groups = engine_for(name, model, batch=6, max_length=32).generate(case.prompts, case.params)
        counts[name] = [len(group[0].token_ids) for group in groups]
    assert counts["native-fp32"] == counts["transformers-fp32"]
    assert len(set(counts["native-fp32"])) > 2


def test_the_time_of_a_step_leaves_prefill_out() -> None:
    model = random_model("small", "cpu")
    case = fixed_case(SHAPES["small"]["vocab_size"], batch=2, prompt_length=8, new_tokens=4)
    engine = engine_for("native-fp32", model, batch=2, max_length=12)
    row = measure("native-fp32", engine, case, SharedStorage(model, version=0), device="cpu", repeats=1)
    assert (row.tokens, row.prompt_tokens, row.new_tokens) == (8, 8, 4)
    assert row.step_seconds is not None and row.step_seconds < row.seconds


def test_the_floor_is_the_larger_of_what_moves_and_what_is_computed() -> None:
    model = random_model("small", "cpu")
    case = fixed_case(SHAPES["small"]["vocab_size"], batch=2, prompt_length=8, new_tokens=4)
    matrices = 8 * (256 * 256 * 2 + 2 * 256 * 64 + 3 * 256 * 1024)
    head = 8192 * 256
    cache = 2 * 8 * 2 * 32 * 10 * 2
    moving = floor_seconds(model, case, Speeds(bytes_per_second=1.0, operations_per_second=1e30), "fp32")
    assert moving == 4 * (matrices + head + cache)
    computing = floor_seconds(model, case, Speeds(bytes_per_second=1e30, operations_per_second=1.0), "fp32")
    assert computing == 2 * 2 * (matrices + head)


def test_questions_are_put_in_the_models_template(llama_folder: Path) -> None:
    case = question_case(llama_folder, ["what is 1+1?", "and 2+2?"], batch=2, new_tokens=4)
    assert len(case.prompts) == 2 and all(len(prompt) > 8 for prompt in case.prompts)
    assert case.params.stop_token_ids == (1,)
    assert torch.tensor(case.prompts[0]).dtype == torch.int64


def test_an_engine_that_takes_too_long_is_stopped_and_the_next_has_its_share() -> None:
    options = BenchOptions(device="cpu", shape="small", batches=(2,), ragged=0, prompt_length=8, new_tokens=4)
    said: list[str] = []
    shown: list[int] = []

    rows = measured(
        ["native-fp32", "transformers-fp32"],
        options,
        [],
        total_seconds=1.0,
        say=said.append,
        show=lambda finished, doing: shown.append(finished),
    )

    assert [(row["engine"], row["dtype"]) for row in rows] == [("native-fp32", "fp32"), ("transformers-fp32", "fp32")]
    assert all(row["error"].splitlines()[-1].startswith("stopped after") for row in rows)
    assert sum(shown) == 2 * options.num_cases
    assert [text.splitlines()[0] for text in said] == ["native-fp32 failed:", "transformers-fp32 failed:"]


def test_the_peak_on_a_cpu_is_that_since_the_last_reset() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not reset the peak")
    size = 2**28
    torch.ones(size, dtype=torch.uint8)
    with_it = peak_bytes(on_gpu=False)
    reset_peak(on_gpu=False)
    without = peak_bytes(on_gpu=False)
    assert with_it - without > size // 2
    assert with_it > size
