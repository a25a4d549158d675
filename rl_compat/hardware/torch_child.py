"""The program of the child process that reports on torch, CUDA and other packages, stage by stage.

It imports nothing of this package, which the child may not find. Its arguments are the subjects, in order. Each stage
is announced and then answered with a marked JSON line, so that a crash or hang is attributed to its stage and earlier
answers are kept.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

MARK = "rl_compat-reading:"
BEGIN = "begin"
PATIENCE_SECONDS = 30
"how long the import of another package may take"
IMPORTS = {
    "transformers": ("transformers", None),
    "triton": ("triton", None),
    "flash-attn": ("flash_attn", None),
    "xformers": ("xformers", None),
    "liger-kernel": ("liger_kernel", "liger_kernel.ops"),
    "vllm": ("vllm", "vllm._C"),
}
"packages that often fail to import, by distribution: the module, and a submodule that loads native code, if any"
ALWAYS = ("torch", "bitsandbytes")
QUICK = ("transformers", "triton")
PLANNED = ("flash-attn", "vllm")
"what a plan may use in addition to ALWAYS, in a second child: importing them takes seconds"
SLOW = ("liger-kernel", "xformers", *PLANNED)


def say(stage: str, **facts: Any) -> None:
    """Print one line, even if a library left the previous line unfinished."""
    print("\n" + MARK + json.dumps({"stage": stage, **facts}), flush=True)


def last_line(error: BaseException) -> str:
    """`ImportError: libnvJitLink.so.12: undefined symbol …`, on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def torch_facts() -> dict[str, Any]:
    started = time.perf_counter()
    import torch

    seconds = time.perf_counter() - started
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "arch_list": (flags or "").split(),
        "seconds": round(seconds, 3),
    }


def device_facts(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    bus = getattr(properties, "pci_bus_id", None)
    domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
    uuid = getattr(properties, "uuid", None)
    with torch.cuda.device(index):
        free, total = torch.cuda.mem_get_info(index)
        bf16_native = torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        "index": index,
        "name": properties.name,
        "compute_capability": [properties.major, properties.minor],
        "memory_total_bytes": total,
        "memory_free_bytes": free,
        "uuid": str(uuid) if uuid is not None else None,
        "pci_bus_id": f"{domain:08x}:{bus:02x}:{slot:02x}.0" if bus is not None else None,
        "num_multiprocessors": properties.multi_processor_count,
        "shared_memory_optin_bytes": getattr(properties, "shared_memory_per_block_optin", None),
        "bf16_native": bf16_native,
    }


def cuda_facts() -> dict[str, Any]:
    """Availability, devices and the first thing that went wrong."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    errors = [" ".join(str(warning.message).split()) for warning in caught]
    devices = []
    for index in range(torch.cuda.device_count() if available else 0):
        try:
            devices.append(device_facts(index))
        except Exception as error:
            errors.append(f"cuda:{index}: {last_line(error)}")
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    return {"available": available, "devices": devices, "driver": driver, "error": errors[0] if errors else None}


def peer_facts() -> dict[str, Any]:
    """Whether each device can read the memory of each other device: first, second, yes or no."""
    import torch

    pairs = itertools.permutations(range(torch.cuda.device_count()), 2)
    return {"access": [[first, second, torch.cuda.can_device_access_peer(first, second)] for first, second in pairs]}


def leave_compiler_out() -> None:
    """Make `torch.compile` return functions unchanged: none is called here, and the compiler imports slowly."""
    import torch

    torch.compile = lambda model=None, **_: (lambda function: function) if model is None else model  # type: ignore[assignment]


def bitsandbytes_facts() -> dict[str, Any]:
    """`cuda`, `cpu`, or why the library does not load; None if it is not installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return {"library": None}
    leave_compiler_out()
    from bitsandbytes.cextension import lib

    if type(lib).__name__.startswith("ErrorHandler"):
        return {"library": " ".join(str(lib.error_msg).split())[:300]}
    return {"library": "cuda" if lib.compiled_with_cuda else "cpu"}


def import_facts(module: str, native: str | None) -> dict[str, Any]:
    """None if the module imports with its native code. xformers only warns if its native code does not load."""
    leave_compiler_out()
    importlib.import_module(module)
    if native is not None and importlib.util.find_spec(native) is not None:
        importlib.import_module(native)
    refusal = getattr(sys.modules.get(f"{module}._cpp_lib"), "_cpp_library_load_exception", None)
    return {} if refusal is None else {"error": last_line(refusal)}


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def stage(name: str, ask: Callable[[], dict[str, Any]], *, patience_seconds: int = 0) -> dict[str, Any]:
    """Announce a stage and print its result. An alarm ends this program if the stage hangs."""
    say(BEGIN, of=name)
    signal.alarm(patience_seconds)
    try:
        facts = ask()
    except BaseException as error:
        facts = {"error": last_line(error)}
    signal.alarm(0)
    say(name, **facts)
    return facts


def look_at_torch() -> bool:
    """Whether torch could be imported, so that packages built on it can be checked."""
    if importlib.util.find_spec("torch") is None:
        say("absent")
        return False
    if "error" in stage("torch", torch_facts):
        return False
    cuda = stage("cuda", cuda_facts)
    if len(cuda.get("devices", ())) > 1:
        stage("peers", peer_facts)
    return True


def look_at(subject: str) -> bool:
    """Whether the next subject can be checked."""
    if subject == "torch":
        return look_at_torch()
    if subject == "bitsandbytes":
        stage(subject, bitsandbytes_facts, patience_seconds=PATIENCE_SECONDS)
    elif is_installed(subject):
        ask = functools.partial(import_facts, *IMPORTS[subject])
        stage(f"import {subject}", ask, patience_seconds=PATIENCE_SECONDS)
    return True


if __name__ == "__main__":
    all(look_at(subject) for subject in sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
