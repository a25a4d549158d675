"""Start of vLLM inside this process: arguments from the plan, and restoration of process state that vLLM changes."""

from __future__ import annotations

import gc
import importlib.util
import json
import logging
import math
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from rl_compat.errors import HardwareError
from rl_compat.models.load import TORCH_DTYPES
from rl_compat.planning.types import RolloutPlan
from rl_compat.rollout.inference import hugging_face_model
from rl_compat.rollout.vllm.shutdown import install

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"run in this process, so that weights are passed as tensors; use the sampler with processors; disable telemetry"
EXACT_PRODUCTS = {"TRITON_F32_DEFAULT": "ieee"}
"without it Triton compiles fp32 products as TF32, which vLLM's attention in fp32 uses"
NCCL_ALONE = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
"vLLM's other reductions need processes that see each other's GPUs"
PROCESSOR = "rl_compat.rollout.vllm.processor:DrawProcessor"
CACHE_STEP = 128
"the cache of a sequence is a multiple of this many tokens, the largest block of a vLLM backend"
SHORTEST = 16
"minimum tokens of a sequence with which the log-probabilities can be compared"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
SMALL_SHARE = 0.01
LINES_KEPT = 200


class LastLines(logging.Handler):
    """The last lines that vLLM logged: warnings and errors, shown only when something fails."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines = [*self.lines[1 - LINES_KEPT :], record.getMessage()]


def require_vllm() -> None:
    """Raise HardwareError if the package is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise HardwareError(
            "`rollout.engine=vllm` needs the package `vllm`, which is not installed",
            hint="set `rollout.engine=native`, or install the packages that `rlc doctor` recommends",
        )


def keep_log() -> LastLines:
    """Capture vLLM's log in memory, unless the user has configured its logging. Call it before vLLM is imported."""
    handler = LastLines()
    logger = logging.getLogger("vllm")
    logger.handlers = [item for item in logger.handlers if not isinstance(item, LastLines)] + [handler]
    if not {"VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH"} & os.environ.keys():
        os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
        logger.propagate = False
    return handler


def config_folder(model: nn.Module) -> TemporaryDirectory[str]:
    """A folder with only the model's configuration: no weights, tokenizer or generation_config."""
    inner = hugging_face_model(model)
    values = json.loads(inner.config.to_json_string(use_diff=True))
    values.pop("quantization_config", None)
    folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="rl_compat_vllm_")
    values["architectures"] = [type(inner).__name__]
    Path(folder.name, "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def engine_arguments(
    model: nn.Module, plan: RolloutPlan, *, folder: str, device: torch.device | None = None
) -> dict[str, Any]:
    """The arguments of vLLM on a device, by default that of the model."""
    config = hugging_face_model(model).config.get_text_config()
    length = max(SHORTEST, plan.max_model_len or int(config.max_position_embeddings))
    on_cpu = (device or next(model.parameters()).device).type == "cpu"
    arguments: dict[str, Any] = {
        "model": folder,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "dtype": str(TORCH_DTYPES[plan.compute_dtype]).removeprefix("torch."),
        "seed": 0,
        "max_model_len": length,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": max(plan.max_prefill_tokens, plan.max_num_seqs),
        "enforce_eager": not plan.cuda_graphs,
        "enable_prefix_caching": True,
        # sleep mode does not support expandable segments before 0.33
        "enable_sleep_mode": not on_cpu and "expandable_segments:True" not in os.environ.get(ALLOCATOR, ""),
        "logits_processors": [PROCESSOR],
        "disable_log_stats": True,
    }
    if plan.attention_backend is not None:
        arguments["attention_backend"] = plan.attention_backend
    if plan.tensor_parallel > 1:
        arguments |= {"tensor_parallel_size": plan.tensor_parallel, "disable_custom_all_reduce": True}
    return arguments | _memory(config, plan, length=length, on_cpu=on_cpu)


def sleeps(arguments: dict[str, Any], device: torch.device) -> bool:
    """Whether an engine can free its memory without being stopped."""
    return device.type == "cpu" or bool(arguments["enable_sleep_mode"])


def _memory(config: Any, plan: RolloutPlan, *, length: int, on_cpu: bool) -> dict[str, Any]:
    """The user's fraction of the device, from which vLLM sizes its cache, or the size of the cache in bytes."""
    share, cache = plan.gpu_memory_utilization, plan.kv_cache_bytes
    if cache is None and share is not None and not on_cpu:
        return {"gpu_memory_utilization": share}
    if cache is None:
        cache = cache_bytes(config, plan, length=length)
    return {"kv_cache_memory_bytes": cache, "gpu_memory_utilization": SMALL_SHARE}


def cache_bytes(config: Any, plan: RolloutPlan, *, length: int) -> int:
    """Bytes of the cache of `max_num_seqs` sequences of `length` tokens, and of one block that vLLM keeps empty.

    One of several devices has its part of the heads, at least one.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    heads = max(1, heads // plan.tensor_parallel)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * heads * head_size * TORCH_DTYPES[plan.compute_dtype].itemsize
    return int(token * CACHE_STEP * (math.ceil(length / CACHE_STEP) * plan.max_num_seqs + 1))


@contextmanager
def contained() -> Iterator[None]:
    """Restore random generators, threads, garbage collection and the environment after the block.

    vLLM's own variables stay, since it reads them while it runs, and so does the variable for exact products.
    """
    import numpy

    os.environ.update(SETTINGS)
    environment = dict(os.environ)
    precision, set_threads = torch.get_float32_matmul_precision(), torch.set_num_threads
    states = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads = set_threads
        gc.unfreeze()
        for name in [name for name in os.environ if name not in environment and not name.startswith("VLLM_")]:
            del os.environ[name]
        os.environ.update(environment)


def start(arguments: dict[str, Any]) -> Any:
    """A running vLLM engine with random weights."""
    if arguments["dtype"] == "float32":
        for name, value in EXACT_PRODUCTS.items():
            os.environ.setdefault(name, value)
    with contained():
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        if arguments["enable_sleep_mode"]:
            install()
        # set explicitly, since 0.20 uses another process on a CPU
        backend: Any = UniProcExecutor
        if "tensor_parallel_size" in arguments:
            # one scheduler in each process: neighbouring processes of the default group are an engine
            backend = "external_launcher"
            os.environ.update({"RANK": str(torch.distributed.get_rank()), "LOCAL_RANK": "0"})
            for name, value in NCCL_ALONE.items():
                os.environ.setdefault(name, value)
        config = EngineArgs(**arguments, distributed_executor_backend=backend).create_engine_config()
        if hasattr(config.cache_config, "cpu_kvcache_space_bytes"):
            # on a CPU, 0.19 sizes the cache itself
            config.cache_config.cpu_kvcache_space_bytes = arguments.get("kv_cache_memory_bytes")
        return LLMEngine.from_vllm_config(config, disable_log_stats=True)
