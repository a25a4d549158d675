"""What vLLM is started with, and that starting it leaves no mark on the process."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import random
from pathlib import Path

import numpy
import pytest
import torch
from rollout.conftest import build, gemma3
from torch import nn

from rl_compat.errors import HardwareError
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.vllm.start import LastLines, config_folder, contained, engine_arguments, keep_log

WITHOUT_VLLM = importlib.util.find_spec("vllm") is None


def plan(**settings: object) -> RolloutPlan:
    values = {"engine": "vllm", "compute_dtype": "bf16", "max_num_seqs": 16, "max_prefill_tokens": 2048} | settings
    return RolloutPlan(**values)


@pytest.mark.skipif(not WITHOUT_VLLM, reason="vLLM is installed")
def test_without_the_package_the_error_names_it(llama: nn.Module) -> None:
    with pytest.raises(HardwareError, match="`vllm`"):
        build("vllm", llama)


def test_the_folder_that_vllm_reads_holds_the_configuration_alone(llama: nn.Module) -> None:
    """A-GEN-01: no generation_config to take settings from."""
    with config_folder(llama) as name:
        assert [path.name for path in Path(name).iterdir()] == ["config.json"]
        values = json.loads(Path(name, "config.json").read_text(encoding="utf-8"))
    assert values["architectures"] == ["LlamaForCausalLM"]
    assert (values["model_type"], values["hidden_size"], values["num_hidden_layers"]) == ("llama", 64, 2)


def test_the_plan_becomes_vllms_arguments(llama: nn.Module) -> None:
    settings = plan(cuda_graphs=True, max_model_len=300, attention_backend="TRITON_ATTN", kv_cache_bytes=12345)
    arguments = engine_arguments(llama, settings, folder="somewhere")
    expected = {
        "model": "somewhere",
        "load_format": "dummy",
        "generation_config": "vllm",
        "dtype": "bfloat16",
        "max_model_len": 300,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "enforce_eager": False,
        "attention_backend": "TRITON_ATTN",
        "kv_cache_memory_bytes": 12345,
    }
    assert {name: arguments[name] for name in expected} == expected


def test_without_bytes_a_cpu_caches_every_sequence_and_vllm_chooses_its_attention(llama: nn.Module) -> None:
    arguments = engine_arguments(llama, plan(max_model_len=300), folder="")
    assert arguments["kv_cache_memory_bytes"] == 2 * 2 * 32 * 2 * 128 * (3 * 16 + 1)
    assert "attention_backend" not in arguments
    assert engine_arguments(gemma3(), plan(), folder="")["max_model_len"] == 256


def test_one_of_several_devices_caches_its_part_of_the_heads(llama: nn.Module) -> None:
    """The model has one head of keys and values, which both devices keep."""
    arguments = engine_arguments(llama, plan(max_model_len=300, tensor_parallel=2), folder="")
    assert (arguments["tensor_parallel_size"], arguments["disable_custom_all_reduce"]) == (2, True)
    assert arguments["kv_cache_memory_bytes"] == 2 * 2 * 32 * 2 * 128 * (3 * 16 + 1)
    wide = engine_arguments(gemma3(), plan(tensor_parallel=2), folder="")
    assert wide["kv_cache_memory_bytes"] * 2 == engine_arguments(gemma3(), plan(), folder="")["kv_cache_memory_bytes"]


def test_a_step_holds_at_least_a_token_of_every_sequence(llama: nn.Module) -> None:
    arguments = engine_arguments(llama, plan(max_num_seqs=64, max_prefill_tokens=16), folder="")
    assert arguments["max_num_batched_tokens"] == 64


def test_nothing_that_happens_inside_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    set_threads, precision = torch.set_num_threads, torch.get_float32_matmul_precision()
    with contained():
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        torch.set_num_threads = print
        torch.set_float32_matmul_precision("medium")
        os.environ |= {"LD_PRELOAD": "libiomp5.so", "TORCHINDUCTOR_COMPILE_THREADS": "1", "VLLM_OF_ITS_OWN": "1"}
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == states[1:]
    assert torch.set_num_threads is set_threads
    assert torch.get_float32_matmul_precision() == precision
    assert "LD_PRELOAD" not in os.environ and os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "7"
    assert os.environ.pop("VLLM_OF_ITS_OWN") == "1"
    assert (os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"], os.environ["VLLM_NO_USAGE_STATS"]) == ("0", "1")


def test_a_failure_inside_is_contained_too() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="no"), contained():
        torch.manual_seed(0)
        raise ValueError("no")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_log_is_kept_and_not_shown(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "")
    monkeypatch.delenv("VLLM_CONFIGURE_LOGGING")
    kept, again = keep_log(), keep_log()
    for number in range(300):
        logging.getLogger("vllm.engine").warning("line %d", number)
    assert (len(again.lines), again.lines[-1], kept.lines) == (200, "line 299", [])
    assert capfd.readouterr() == ("", "")
    logging.getLogger("vllm").handlers = [
        handler for handler in logging.getLogger("vllm").handlers if not isinstance(handler, LastLines)
    ]
