"""What the cards' compute capability means for number formats, attention and compiled kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rl_compat.capability.attention import sdpa_backends
from rl_compat.capability.devices import capability_text, has_tensor_cores
from rl_compat.capability.kernels import TF32_MINIMUM, TRITON_MINIMUM, torch_compile, triton
from rl_compat.capability.precision import compute_dtype
from rl_compat.doctor.checks.variables import look_at_variables
from rl_compat.doctor.findings import Check, Finding, Severity
from rl_compat.doctor.tables.cards import names
from rl_compat.doctor.tables.target import has_a_build
from rl_compat.doctor.tables.torch import read_knowledge
from rl_compat.hardware.gpu.catalogue import capability_of, find_gpu, shared_memory_optin_bytes
from rl_compat.hardware.types import Device, Hardware
from rl_compat.units import format_bytes

HALF = {
    "full": "fp16 products run on tensor cores",
    "half_with_fp32_accumulate": "fp16 products run on tensor cores",
    "double": "fp16 arithmetic runs at twice the rate of fp32",
    "1/64": "fp16 halves memory and multiplies at the rate of fp32, element-wise half arithmetic at 1/64 of it",
    "vector_only": "fp16 products are many times slower than fp32, since it has no tensor cores",
    "storage_only": "fp16 only halves memory, arithmetic is fp32",
    "unknown": "the rate of fp16 is not known",
}
"by `fp16_rate` of the catalogue"
SLOW_HALF = ("vector_only",)


def look_at_precision(hardware: Hardware) -> Iterator[Finding]:
    """One finding for the cards of each kind: native bf16, emulated bf16, or slow in fp16 too.

    Nothing, here and below, of cards that no torch has code for.
    """
    native: list[Device] = []
    emulated: list[Device] = []
    collapsing: list[Device] = []
    for device in _usable(hardware).devices:
        alone = compute_dtype(replace(hardware, devices=(device,)), "bf16")
        rate = _half_rate(device)
        group = native if alone.supported else collapsing if rate in SLOW_HALF else emulated
        group.append(device)
    for rate, devices in _by_rate(native):
        yield _precision("native", Severity.OK, devices, f"bf16 is native; {HALF[rate]}; TF32 serves fp32 products", "")
    for rate, devices in _by_rate(emulated):
        yield _precision(
            "bf16_emulated",
            Severity.NOTE,
            devices,
            f"bf16 is emulated only; {HALF[rate]}",
            "torch calls bf16 supported, and runs it slowly and with quadratic attention; the plan takes fp16 with "
            "loss scaling or fp32",
        )
    for rate, devices in _by_rate(collapsing):
        yield _precision(
            "fp16_collapses",
            Severity.NOTE,
            devices,
            f"{HALF[rate]}; bf16 is emulated only",
            "the plan multiplies in fp32; fp16 still halves the memory of what is only kept",
        )


def _precision(case: str, severity: Severity, devices: Sequence[Device], facts: str, why: str) -> Finding:
    old = [device for device in devices if device.compute_capability < TF32_MINIMUM]
    minimum = ".".join(map(str, TF32_MINIMUM))
    return Finding(
        id=f"precision.{case}",
        severity=severity,
        what=f"{_cards(devices)}: {facts}" + (f"; no TF32 below {minimum}" if old and case != "native" else ""),
        why=why,
        where=("compute capability", "catalogue"),
        affects=_affected(devices) if severity > Severity.OK else (),
    )


def _by_rate(devices: Iterable[Device]) -> Iterator[tuple[str, list[Device]]]:
    groups: dict[str, list[Device]] = {}
    for device in devices:
        groups.setdefault(_half_rate(device), []).append(device)
    yield from groups.items()


def _half_rate(device: Device) -> str:
    """The catalogue's word for the rate of fp16, of the card or else of one of the same compute capability."""
    rows = read_knowledge("gpus")["gpus"]
    gpu = find_gpu(device.name, device.memory_total_bytes)
    if gpu is not None and gpu.compute_capability == device.compute_capability:
        return str(next(row["fp16_rate"] for row in rows if row["id"] == gpu.id))
    if not has_tensor_cores(device) and device.compute_capability >= (7, 0):
        return "vector_only"
    like = [row["fp16_rate"] for row in rows if capability_of(row["cc"]) == device.compute_capability]
    return str(next((rate for rate in like if rate not in SLOW_HALF), "unknown"))


def look_at_attention(hardware: Hardware) -> Iterator[Finding]:
    """Which kernels attention runs in; the weakest visible card decides."""
    hardware = _usable(hardware)
    if not hardware.devices:
        return
    backends, weakest = sdpa_backends(hardware), _weakest(hardware)
    if backends == ("math",):
        yield Finding(
            id="attention.math_only",
            severity=Severity.NOTE,
            what=f"{_cards([weakest])} has no fused attention: every step goes through the math kernel",
            why="its memory grows with the square of the length: keep prompts and responses short",
            where=("compute capability",),
            affects=_affected([weakest]),
        )
        return
    flash = "flash" in backends
    text = "in fp16 and bf16 by the flash kernel" if flash else "in fp16 and fp32 by the memory-efficient kernel"
    yield Finding(
        id="attention.fused",
        severity=Severity.OK,
        what=f"attention runs fused on {_cards([weakest])}, {text}, with memory that grows with the length alone",
        where=("compute capability",),
    )


def look_at_kernels(hardware: Hardware) -> Iterator[Finding]:
    """Whether Triton and torch.compile are on, and how much shared memory a block may take."""
    hardware = _usable(hardware)
    if not hardware.devices:
        return
    weakest = _weakest(hardware)
    shared = weakest.shared_memory_optin_bytes or shared_memory_optin_bytes(weakest.compute_capability)
    room = f"; a block has {format_bytes(shared)} of shared memory" if shared else ""
    if triton(hardware).supported and torch_compile(hardware).supported:
        yield Finding(
            id="kernels.on",
            severity=Severity.OK,
            what=f"Triton kernels, torch.compile and CUDA graphs run on {_cards([weakest])}{room}",
            where=("compute capability",),
        )
        return
    minimum = ".".join(map(str, TRITON_MINIMUM))
    old = [device for device in hardware.devices if device.compute_capability < TRITON_MINIMUM]
    yield Finding(
        id="kernels.off",
        severity=Severity.NOTE,
        what=f"Triton kernels and torch.compile are off: {_cards(old)} is below {minimum}; CUDA graphs run{room}",
        why="nothing to mend: this project's engines need neither; packages that do (Liger, unsloth, vLLM) do not run",
        where=("compute capability",),
        affects=_affected(old),
    )


def _usable(hardware: Hardware) -> Hardware:
    """The machine without the cards that no torch has code for."""
    served = tuple(device for device in hardware.devices if has_a_build(hardware, device.compute_capability))
    return replace(hardware, devices=served)


def _weakest(hardware: Hardware) -> Device:
    return min(hardware.devices, key=lambda device: device.compute_capability)


def _cards(devices: Sequence[Device]) -> str:
    """`2 × NVIDIA A10 (compute capability 8.6)`."""
    capabilities = ", ".join(dict.fromkeys(capability_text(device) for device in devices))
    return f"{names(devices)} (compute capability {capabilities})"


def _affected(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(f"cuda:{device.index}" for device in devices)


CHECKS: tuple[Check, ...] = (
    Check(
        id="precision",
        question="which number formats are native, emulated or slow on the visible cards?",
        run=look_at_precision,
    ),
    Check(
        id="attention",
        question="which attention kernels do the visible cards have?",
        run=look_at_attention,
    ),
    Check(
        id="kernels",
        question="do Triton kernels and torch.compile run on the visible cards?",
        run=look_at_kernels,
    ),
    Check(
        id="environment",
        question="does a variable of this shell slow training down or have no effect?",
        run=look_at_variables,
    ),
)
