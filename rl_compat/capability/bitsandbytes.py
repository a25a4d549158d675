"""What the installed bitsandbytes can do on the devices.

Its wheels hold code from 6.0 for CUDA 11.8 to 12.6, from 7.0 for CUDA 12.8 and from 7.5 for CUDA 13; the library
follows the CUDA version of torch. 8-bit optimizers and 4-bit weights need 6.0, LLM.int8() 7.5.
"""

from __future__ import annotations

from rl_compat.capability.devices import below, on_cpu
from rl_compat.hardware.binaries import parse_version
from rl_compat.hardware.types import Hardware

_CODE_FLOORS = (((13, 0), (7, 5)), ((12, 7), (7, 0)), ((0, 0), (6, 0)))
"CUDA version of torch at least, lowest compute capability in the library"


def missing(hardware: Hardware, *, minimum: tuple[int, int]) -> tuple[str, ...]:
    """Every reason why the package cannot serve a feature whose lowest compute capability is `minimum`."""
    if on_cpu(hardware):
        return ("needs a CUDA device",)
    software = hardware.software
    if "bitsandbytes" not in software.packages:
        return ("needs the package `bitsandbytes`, which is not installed",)
    library = software.bitsandbytes_library
    if library == "cpu":
        return ("`bitsandbytes` is installed without a GPU library: it found only `libbitsandbytes_cpu`",)
    if library is not None and library != "cuda":
        return (f"`bitsandbytes` does not load: {library}",)
    return below(hardware, max(minimum, _code_floor(hardware)))


def _code_floor(hardware: Hardware) -> tuple[int, int]:
    torch = hardware.software.torch
    cuda = parse_version(torch.cuda) if torch is not None and torch.cuda is not None else (0, 0)
    return next(floor for version, floor in _CODE_FLOORS if cuda >= version)
