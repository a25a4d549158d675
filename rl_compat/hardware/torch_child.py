"""The program that a child process runs to say what torch and CUDA are: one marked JSON line per stage.

It stands alone (the child may not find this package), and each stage is printed as soon as it is known, so that a
crash in a later stage does not lose the earlier ones.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
import warnings
from typing import Any

MARK = "rl_compat-reading:"


def say(stage: str, **facts: Any) -> None:
    print(MARK + json.dumps({"stage": stage, **facts}), flush=True)


def last_line(error: BaseException) -> str:
    """`ImportError: libnvJitLink.so.12: undefined symbol …`, on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def torch_facts() -> dict[str, Any]:
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return {"version": str(torch.__version__), "cuda": torch.version.cuda, "arch_list": (flags or "").split()}


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


def bitsandbytes_library() -> str | None:
    """`cuda`, `cpu`, or why the library could not be loaded; None when it is not installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return None
    try:
        from bitsandbytes.cextension import lib

        if type(lib).__name__.startswith("ErrorHandler"):
            return " ".join(str(lib.error_msg).split())[:300]
        return "cuda" if lib.compiled_with_cuda else "cpu"
    except Exception as error:
        return last_line(error)


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        say("absent")
        return
    try:
        facts = torch_facts()
    except BaseException as error:
        say("import_error", error=last_line(error))
        sys.exit(0)
    say("torch", **facts)
    say("cuda", **cuda_facts())
    say("bitsandbytes", library=bitsandbytes_library())


if __name__ == "__main__":
    main()
