"""The benchmark of quantized bases measures what it says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"
PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_quantized_base")


def test_int8_is_off_a_little_and_its_rollout_is_not(bench: ModuleType, llama_folder: Path) -> None:
    plain, kept = (bench.FORMS[form](llama_folder, "cpu") for form in ("fp32", "int8"))
    with torch.no_grad():
        exact = bench.logprobs(plain, PROMPTS)
    assert [len(row) for row in exact] == [4, 2]
    base, row = (bench.measure(model, PROMPTS, exact=exact, new_tokens=6) for model in (plain, kept))
    assert base["off_max"] == 0 and 0 < row["off_mean"] < 0.05
    assert row["weights_bytes"] < 0.8 * base["weights_bytes"]
    assert row["engine"] == "NativeEngine" and row["gap_max"] < 1e-4
