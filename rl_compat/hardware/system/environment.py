"""Variables that affect CUDA, installers and caches, without their secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_PIPE_DIRECTORY",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "BNB_CUDA_VERSION",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_HUB_ENABLE_HF_TRANSFER",
    "HF_HUB_DISABLE_XET",
    "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE",
    "XDG_CACHE_HOME",
    "RLC_CACHE",
    "RLC_TORCH",
    "TMPDIR",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_USE_V1",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PIP_NO_INDEX",
    "PIP_CONFIG_FILE",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "NO_COLOR",
    "NO_PROXY",
    "no_proxy",
)
ADDRESSES = (
    "HF_ENDPOINT",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_CONSTRAINT",
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
)
"recorded without user name, password and query"
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
"recorded only as set"


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The relevant variables, by name."""
    found = {name: environment[name] for name in VARIABLES if name in environment}
    found |= {name: without_credentials(environment[name]) for name in ADDRESSES if name in environment}
    return found | {name: "(set)" for name in SECRETS if environment.get(name)}


def without_credentials(text: str) -> str:
    """The text with user name, password, query and fragment removed from its URLs."""
    text = re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s]*@", r"\1", text)
    text = re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", text)
    return re.sub(r"(^|\s)[^/\s@]+:[^/\s]*@(?=\S)", r"\1", text)
