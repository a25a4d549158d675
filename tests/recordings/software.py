"""torch and the packages around it: absent, broken, of the wrong kind, or not for this card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recordings.parts import (
    CU124,
    CU128,
    CU130,
    NEW_TORCH,
    OLD_TORCH,
    SITE,
    machine,
    nvml_device,
    p40,
    packages_of,
    rtx3060,
    rtx4090,
    rtx5090,
    with_3060,
    with_3090,
    with_p40,
)

from rl_compat.hardware.types import Hardware, TorchBuild
from rl_compat.units import MIB

CU130_2_11 = TorchBuild(version="2.11.0+cu130", cuda="13.0", arch_list=CU130, cuda_available=True)
"what installing vLLM 0.25 brings"


def wheel_without_code() -> Hardware:
    """CUDA is there, and the wheel has nothing for 6.1 (A-ENV-01)."""
    torch = TorchBuild(version="2.8.0+cu128", cuda="12.8", arch_list=CU128, cuda_available=True)
    return machine((p40(),), torch=torch, driver="575.57.08", cuda_version="12.9", module="proprietary")


def v100(torch: TorchBuild, **facts: Any) -> Hardware:
    """The package index's torch has had no code for Volta since 2.11."""
    card = nvml_device(0, "Tesla V100-SXM2-32GB", total=32768 * MIB)
    return machine((card,), torch=torch, driver="580.95.05", cuda_version="13.0", module="proprietary", **facts)


def rtx5090_cu126() -> Hardware:
    return machine((rtx5090(),), torch=OLD_TORCH, driver="595.58.03", cuda_version="13.2", module="open")


def rtx5090_ptx_only() -> Hardware:
    """A build of one's own that has PTX for 9.0 and no machine code for 12.0."""
    torch = TorchBuild(
        version="2.9.0a0+git1b2c3d4", cuda="12.8", arch_list=("sm_80", "sm_90", "compute_90"), cuda_available=True
    )
    return machine((rtx5090(),), torch=torch, driver="595.58.03", cuda_version="13.2", module="open")


def cpu_torch_on_gpu() -> Hardware:
    """A dependency put the CPU build in place of the other (A-ENV-10)."""
    torch = TorchBuild(version="2.6.0+cpu")
    return machine((rtx3060(),), torch=torch, driver="560.35.03", cuda_version="12.6", module="open")


def torch_that_fails(error: str, of: TorchBuild = NEW_TORCH, **facts: Any) -> Hardware:
    """torch is installed and cannot be imported."""
    return with_3090(torch=None, torch_error=error, packages=packages_of(of), **facts)


def library_conflict() -> Hardware:
    """A system CUDA shadows the libraries that torch brings (A-ENV-13)."""
    folder = "/usr/local/cuda-12.1/lib64"
    return torch_that_fails(
        "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        of=TorchBuild(version="2.6.0+cu124", cuda="12.4"),
        environment={"LD_LIBRARY_PATH": folder},
        software={"shadowing_libraries": (f"{folder}/libnvJitLink.so.12", f"{folder}/libcusparse.so.12")},
    )


def shadowed_and_working() -> Hardware:
    """The same folder in LD_LIBRARY_PATH, and torch happens to get on with it."""
    folder = "/usr/local/cuda/lib64"
    return with_3090(
        environment={"LD_LIBRARY_PATH": folder}, software={"shadowing_libraries": (f"{folder}/libcudart.so.13",)}
    )


def newer_than_the_tables() -> Hardware:
    torch = TorchBuild(version="2.17.0+cu134", cuda="13.4", arch_list=CU130, cuda_available=True)
    newer = {"transformers": "6.2.0", "bitsandbytes": "0.55.0", "vllm": "0.41.0", "peft": "0.25.0", "triton": "3.12.0"}
    return machine((rtx4090(),), torch=torch, driver="640.22.01", cuda_version="13.6", module="open", packages=newer)


def two_torches() -> Hardware:
    user = "/home/ada/.local/lib/python3.12/site-packages"
    return with_3090(software={"locations": {"torch": (user, SITE)}})


def system_python() -> Hardware:
    """Debian's and Ubuntu's own Python, in which pip refuses to install."""
    return with_3060(
        torch=None,
        software={
            "executable": "/usr/bin/python3",
            "environment_kind": "system",
            "externally_managed": True,
            "python": "3.12.3",
        },
        packages=dict.fromkeys(_RL_PACKAGES),
    )


_RL_PACKAGES = (
    "transformers",
    "peft",
    "datasets",
    "bitsandbytes",
    "accelerate",
    "tokenizers",
    "safetensors",
    "gguf",
    "pyarrow",
    "nvidia-ml-py",
    "typer",
    "rich",
)


def torch_2_5() -> Hardware:
    """transformers 5.24 wants torch 2.6 and takes an older one for none at all."""
    torch = TorchBuild(version="2.5.1+cu121", cuda="12.1", arch_list=CU124, cuda_available=True)
    return with_3090(torch=torch)


RECORDINGS: dict[str, Callable[[], Hardware]] = {
    "p40_cu128_wheel": wheel_without_code,
    "v100_cu132_wheel": lambda: v100(NEW_TORCH),
    "rtx5090_cu126_wheel": rtx5090_cu126,
    "rtx5090_ptx_only": rtx5090_ptx_only,
    "rtx3060_cpu_torch": cpu_torch_on_gpu,
    "rtx3090_no_torch": lambda: with_3090(torch=None),
    "rtx3090_library_conflict": library_conflict,
    "rtx3090_shadowed_library": shadowed_and_working,
    "rtx3090_torch_segfault": lambda: torch_that_fails("killed by signal 11 (SIGSEGV)"),
    "rtx3090_torch_hang": lambda: torch_that_fails("no answer within 60 s"),
    "rtx3090_torch_missing_library": lambda: torch_that_fails(
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"
    ),
    "rtx4090_newer_than_the_tables": newer_than_the_tables,
    "rtx3090_two_torches": two_torches,
    "rtx3060_system_python": system_python,
    "p40_python_3_15": lambda: with_p40(torch=None, software={"python": "3.15.0"}),
    "rtx3090_bitsandbytes_cpu": lambda: with_3090(library="cpu"),
    "rtx3090_bitsandbytes_broken": lambda: with_3090(
        library=f"CUDA SETUP: {SITE}/bitsandbytes/libbitsandbytes_cuda134.so not found"
    ),
    "v100_flash_attn": lambda: v100(OLD_TORCH, packages={"flash-attn": "2.6.3"}),
    "p40_liger_triton": lambda: with_p40(packages={"liger-kernel": "0.8.5"}),
    "p40_vllm": lambda: with_p40(packages={"vllm": "0.25.0"}),
    "p40_vllm_brought_torch": lambda: with_p40(torch=CU130_2_11, packages={"vllm": "0.25.0"}),
    "v100_vllm": lambda: v100(CU130_2_11, packages={"vllm": "0.25.0"}),
    "p40_xformers": lambda: with_p40(packages={"xformers": "0.0.33.post1"}),
    "rtx3090_torch_2_5": torch_2_5,
    "rtx3090_flash_attn_broken": lambda: with_3090(
        packages={"flash-attn": "2.8.3"},
        software={
            "import_errors": {
                "flash-attn": "ImportError: flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: "
                "_ZN3c104cuda9SetDeviceEab"
            }
        },
    ),
}
