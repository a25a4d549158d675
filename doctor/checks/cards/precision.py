"""What the compute capability of the cards means for number formats, attention and compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rl_compat.capability.attention import sdpa_backends
from rl_compat.capability.devices import has_tensor_cores
from rl_compat.capability.kernels import TF32_MINIMUM, TRITON_MINIMUM, against_compile, against_triton
from rl_compat.capability.precision import against_dtype
from rl_compat.doctor.findings import Finding, finding, ok
from rl_compat.doctor.tables.cards import device_ids, with_capability
from rl_compat.doctor.tables.target import has_a_build
from rl_compat.hardware.gpu.catalogue import capability_of, find_gpu, read_table, shared_memory_optin_bytes
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes

HALF = {
    "full": "fp16 products run on tensor cores",
    "half_with_fp32_accumulate": "fp16 products run on tensor cores",
    "double": "fp16 arithmetic runs at twice the fp32 rate",
    "1/64": "fp16 halves memory; its products run at the fp32 rate, element-wise fp16 arithmetic at 1/64 of it",
    "vector_only": "fp16 products are many times slower than fp32, because there are no tensor cores",
    "storage_only": "fp16 only halves memory, arithmetic is fp32",
    "unknown": "the fp16 rate is unknown",
}
"by `fp16_rate` of the catalogue"
FACTS = {
    "native": "bf16 is native; {}; fp32 products can use TF32",
    "bf16_emulated": "bf16 is emulated only; {}",
    "fp16_collapses": "{}; bf16 is emulated only",
}
"by case, in the order of the findings; the fp16 rate is filled in"
SLOW_HALF = ("vector_only",)
CAPABILITY = "compute capability"


def check_precision(hardware: Hardware) -> Iterator[Finding]:
    """One finding per kind of card: native bf16, emulated bf16, or slow in fp16 too.

    This and the checks below ignore cards that no torch has code for.
    """
    groups: dict[tuple[str, str], list[Device]] = {}
    for device in _usable(hardware).devices:
        native, rate = not against_dtype(replace(hardware, devices=(device,)), "bf16"), _half_rate(device)
        case = "native" if native else "fp16_collapses" if rate in SLOW_HALF else "bf16_emulated"
        groups.setdefault((case, rate), []).append(device)
    for (case, rate), devices in sorted(groups.items(), key=lambda group: list(FACTS).index(group[0][0])):
        what = f"{with_capability(devices)}: {FACTS[case].format(HALF[rate])}"
        if case == "native":
            yield ok("precision.native", what, CAPABILITY, "catalogue")
            continue
        old = any(device.compute_capability < TF32_MINIMUM for device in devices)
        tf32 = f"; no TF32 below {'.'.join(map(str, TF32_MINIMUM))}" if old else ""
        yield finding(f"precision.{case}", what + tf32, affects=device_ids(devices))


def _half_rate(device: Device) -> str:
    """The `fp16_rate` of the catalogue for the card, or for one of the same compute capability."""
    rows = read_table("gpus")["gpus"]
    gpu = find_gpu(device.name, device.memory_total_bytes)
    if gpu is not None and gpu.compute_capability == device.compute_capability:
        return str(next(row["fp16_rate"] for row in rows if row["id"] == gpu.id))
    if not has_tensor_cores(device) and device.compute_capability >= (7, 0):
        return "vector_only"
    like = [row["fp16_rate"] for row in rows if capability_of(row["cc"]) == device.compute_capability]
    return str(next((rate for rate in like if rate not in SLOW_HALF), "unknown"))


def check_attention(hardware: Hardware) -> Iterator[Finding]:
    """Which kernels attention uses; the weakest visible card decides."""
    hardware = _usable(hardware)
    if not hardware.devices:
        return
    backends, weakest = sdpa_backends(hardware), _weakest(hardware)
    card = with_capability([weakest])
    if backends == ("math",):
        yield finding(
            "attention.math_only",
            f"{card} has no fused attention kernel: every step uses the math kernel",
            affects=device_ids([weakest]),
        )
        return
    kernel = (
        "the flash kernel in fp16 and bf16" if "flash" in backends else "the memory-efficient kernel in fp16 and fp32"
    )
    what = f"attention on {card} uses {kernel}; its memory grows linearly with the sequence length"
    yield ok("attention.fused", what, CAPABILITY)


def check_kernels(hardware: Hardware) -> Iterator[Finding]:
    """Whether Triton and torch.compile are on, and how much shared memory a block can have."""
    hardware = _usable(hardware)
    if not hardware.devices:
        return
    weakest = _weakest(hardware)
    shared = weakest.shared_memory_optin_bytes or shared_memory_optin_bytes(weakest.compute_capability)
    room = f"; a block has {format_bytes(shared)} of shared memory" if shared else ""
    if not against_triton(hardware) and not against_compile(hardware):
        what = f"Triton kernels, torch.compile and CUDA graphs run on {with_capability([weakest])}{room}"
        yield ok("kernels.on", what, CAPABILITY)
        return
    minimum = ".".join(map(str, TRITON_MINIMUM))
    old = [device for device in hardware.devices if device.compute_capability < TRITON_MINIMUM]
    if not old:
        what = f"{with_capability([weakest])} supports Triton kernels and torch.compile, the installed Triton does not"
        yield ok("kernels.of_the_card", f"{what} (`attention_packages`); CUDA graphs work{room}", CAPABILITY)
        return
    yield finding(
        "kernels.off",
        f"Triton kernels and torch.compile are off: {with_capability(old)} is below {minimum}; CUDA graphs work{room}",
        affects=device_ids(old),
    )


def _usable(hardware: Hardware) -> Hardware:
    """The machine without the cards that no torch has code for."""
    served = tuple(device for device in hardware.devices if has_a_build(hardware, device.compute_capability))
    return replace(hardware, devices=served)


def _weakest(hardware: Hardware) -> Device:
    return min(hardware.devices, key=lambda device: device.compute_capability)
