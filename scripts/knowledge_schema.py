"""The schema of each table of doctor/knowledge: the key of a row, its fields and the form of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Form = Callable[[Any], bool]
INHERITED = ("source", "date", "confidence")
"fields that any row may have; they default to those of its section or table"

DESCRIPTIVE = frozenset(
    {
        "arch",
        "commit",
        "cp_async",
        "cudnn_preferred",
        "dp4a",
        "engines",
        "examples",
        "experimental_python",
        "fact",
        "fix",
        "flashinfer",
        "fp16_tensor_fp16acc_tflops",
        "fp16_vector_tflops",
        "fp4_tflops",
        "fp8_tensor",
        "fp8_tflops",
        "grouped",
        "int8_path",
        "int8_tops",
        "is_bf16_supported_default",
        "l2_mb",
        "note",
        "parent",
        "released",
        "smem_per_block_default_kb",
        "unproven",
        "vllm_min",
    }
)
"fields for a reader; the program or a rule reads every other one"


def matches(pattern: str) -> Form:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def maybe(form: Form) -> Form:
    return lambda value: value is None or form(value)


def some(form: Form) -> Form:
    return lambda value: isinstance(value, list) and bool(value) and all(map(form, value))


def any_of(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def one_of(*values: str) -> Form:
    return lambda value: value in values


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def by_variant(form: Form) -> Form:
    return lambda value: isinstance(value, dict) and all(map(variant, value)) and all(map(form, value.values()))


_BOUND = r"(?:==|!=|>=|<=|<|>)[0-9]+(?:\.[0-9]+)*(?:\.\*|\.?(?:post|rc)[0-9]+)?"
version = matches(r"[0-9]+(\.[0-9]+)*(\.?(post|rc|a|b)[0-9]+)?")
minor = matches(r"[0-9]+\.[0-9]+")
capability = minor
bounds = matches(rf"{_BOUND}(,{_BOUND})*")
month = matches(r"20[0-9][0-9]-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?")
variant = matches(r"cu1[0-9][0-9]")
wheel_arch = matches(r"[0-9]+\.[0-9](\+PTX)?")
pci_id = matches(r"[0-9a-f]{4}")


def is_library(value: Any) -> bool:
    """One native library of a bitsandbytes wheel."""
    forms = {"cuda_min": minor, "cuda_max": minor, "archs": some(is_whole), "ptx": maybe(is_whole)}
    return isinstance(value, dict) and value.keys() == forms.keys() and all(forms[name](value[name]) for name in forms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The rows of one part of a table."""

    key: tuple[str, ...]
    "fields that together identify a row"
    fields: Mapping[str, Form]
    optional: Mapping[str, Form] = field(default_factory=dict)


NOTE: Mapping[str, Form] = {"note": is_text}
RANGE: Mapping[str, Form] = {"cc_min": maybe(capability), "cc_max": maybe(capability)}
RATES = ("full", "half_with_fp32_accumulate", "1/64", "double", "vector_only", "storage_only", "unknown")
BACKENDS = one_of("cudnn", "flash", "efficient", "math")
DTYPES = some(one_of("float16", "bfloat16", "float32"))
VLLM_ATTENTION = one_of("XFORMERS", "TRITON_ATTN", "FLEX_ATTENTION", "FLASH_ATTN", "FLASHINFER")

TABLES: Mapping[str, Mapping[str, Section]] = {
    "gpus": {
        "gpus": Section(
            key=("id",),
            fields={
                "id": is_text,
                "nvml_names": some(is_text),
                "pci_device_ids": any_of(pci_id),
                "generation": is_text,
                "form": one_of("consumer", "datacenter", "workstation", "jetson", "unified"),
                "cc": capability,
                "memory_gb": is_number,
                "memory_bandwidth_gbs": is_number,
                "l2_mb": maybe(is_number),
                "sm_count": maybe(is_whole),
                "fp32_tflops": maybe(is_number),
                "fp16_vector_tflops": maybe(is_number),
                "fp16_tensor_tflops": maybe(is_number),
                "fp16_tensor_fp16acc_tflops": maybe(is_number),
                "bf16_native": is_flag,
                "bf16_tflops": maybe(is_number),
                "fp8_tflops": maybe(is_number),
                "fp4_tflops": maybe(is_number),
                "int8_tops": maybe(is_number),
                "int8_path": maybe(one_of("tensor", "dp4a")),
                "fp16_rate": one_of(*RATES),
                "tensor_core_gen": is_whole,
            },
            optional={**NOTE, "shared_pci_device_ids": some(pci_id)},
        )
    },
    "compute_capability": {
        "capabilities": Section(
            key=("cc",),
            fields={
                "cc": capability,
                "arch": is_text,
                "smem_per_block_default_kb": is_whole,
                "smem_per_block_optin_kb": is_whole,
                "smem_per_sm_kb": is_whole,
                "bf16_native": is_flag,
                "is_bf16_supported_default": maybe(is_flag),
                "is_bf16_supported_no_emulation": is_flag,
                "fp8_tensor": is_flag,
                "cp_async": is_flag,
                "tensor_core_gen": is_whole,
                "dp4a": is_flag,
                "sdpa_backends": some(BACKENDS),
                "cudnn_preferred": is_flag,
                "examples": is_text,
            },
            optional=NOTE,
        )
    },
    "drivers": {
        "arch_support": Section(
            key=("cc_min",),
            fields={
                "arch": is_text,
                "cc_min": capability,
                "cc_max": capability,
                "first_driver": maybe(version),
                "last_cuda": maybe(minor),
                "last_driver_branch": maybe(is_whole),
            },
            optional=NOTE,
        ),
        "branches": Section(
            key=("branch",),
            fields={"branch": is_whole, "kind": is_text, "ended": is_flag, "eol": maybe(month)},
            optional=NOTE,
        ),
        "kernel_modules": Section(
            key=("flavour",), fields={"flavour": one_of("open", "proprietary"), **RANGE}, optional=NOTE
        ),
        "cuda_min_driver_linux": Section(
            key=("cuda",), fields={"cuda": minor, "full": version, "minor_compat": version}, optional=NOTE
        ),
    },
    "torch": {
        "releases": Section(
            key=("torch",),
            fields={
                "torch": minor,
                "newest": version,
                "python": bounds,
                "released": month,
                "pypi_default": variant,
                "triton": version,
                "x86_64_wheels": by_variant(some(wheel_arch)),
                "torchvision": bounds,
                "torchaudio": bounds,
            },
            optional={**NOTE, "experimental_python": some(minor), "uncertain_archs": by_variant(some(wheel_arch))},
        ),
        "aarch64": Section(
            key=("variant",), fields={"variant": variant, "archs": some(wheel_arch), "torch_min": minor}, optional=NOTE
        ),
        "pinned_libraries": Section(
            key=("package", "torch_min", "variants"),
            fields={
                "torch_min": minor,
                "torch_max": minor,
                "variants": maybe(some(variant)),
                "package": is_text,
                "version": version,
            },
        ),
        "platforms": Section(
            key=("torch_min", "machine", "variants"),
            fields={
                "torch_min": minor,
                "torch_max": maybe(minor),
                "machine": maybe(one_of("x86_64", "aarch64")),
                "variants": maybe(some(matches(r"cpu|cu1[0-9][0-9]"))),
                "glibc_min": minor,
            },
            optional=NOTE,
        ),
        "newest_by_capability": Section(
            key=("cc_min",),
            fields={
                "cc_min": capability,
                "cc_max": capability,
                "newest": version,
                "variant": variant,
                "python": bounds,
                "driver_min": version,
                "last_driver_branch": maybe(is_whole),
            },
            optional={**NOTE, "unproven": some(matches(r"[0-9.]+\+cu1[0-9][0-9]"))},
        ),
        "features": Section(
            key=("id",),
            fields={"id": is_text},
            optional={**NOTE, "torch_min": minor, "cc_min": capability},
        ),
    },
    "bitsandbytes": {
        "wheels": Section(
            key=("version_min",),
            fields={
                "version_min": version,
                "newest": version,
                "torch": bounds,
                "python": bounds,
                "libraries": some(is_library),
            },
            optional=NOTE,
        ),
        "features": Section(
            key=("id", "version_min"),
            fields={"id": is_text, "cc_min": capability, "version_min": version},
            optional=NOTE,
        ),
    },
    "vllm": {
        "releases": Section(
            key=("vllm",),
            fields={
                "vllm": version,
                "python": bounds,
                "torch": bounds,
                "transformers": maybe(bounds),
                "transformers_5": is_flag,
                "xformers": maybe(bounds),
                "flashinfer": maybe(bounds),
                "wheel_sm": some(is_whole),
                "wheel_min_cc": capability,
                "engines": some(one_of("V0", "V1")),
                "attention_below_8_0": any_of(VLLM_ATTENTION),
                "wheel_cuda": some(minor),
            },
            optional={**NOTE, "released": month},
        ),
        "cpu_packages": Section(
            key=("package", "version"),
            fields={
                "package": is_text,
                "version": version,
                "torch": matches(r"[0-9]+(\.[0-9]+)+\+cpu"),
                "python": bounds,
                "transformers": maybe(bounds),
            },
            optional=NOTE,
        ),
        "forks": Section(
            key=("repo",),
            fields={
                "repo": matches(r"[\w.-]+/[\w.-]+"),
                "commit": maybe(is_text),
                "cc_min": capability,
                "cc_max": capability,
                "vllm_min": maybe(version),
                "vllm_max": maybe(version),
                "usable": is_flag,
            },
            optional=NOTE,
        ),
        "attention": Section(
            key=("backend",),
            fields={"backend": VLLM_ATTENTION, "cc_min": maybe(capability), "vllm_max": maybe(version)},
            optional=NOTE,
        ),
    },
    "libs": {
        "cuda_libs": Section(
            key=("package", "version"),
            fields={"package": is_text, "version": version, "sm": some(is_whole)},
            optional=NOTE,
        ),
        "transformers": Section(
            key=("version_min",),
            fields={"version_min": version, "torch_min": minor, "python_min": minor},
            optional=NOTE,
        ),
        "kernels": Section(
            key=("package", "version_min"),
            fields={
                "package": is_text,
                "version_min": version,
                "version_max": maybe(version),
                "torch": maybe(bounds),
                **RANGE,
            },
            optional={**NOTE, "archs": some(is_whole), "triton": bounds, "python": bounds, "cuda_min": minor},
        ),
        "required": Section(key=("package",), fields={"package": is_text, "versions": bounds, "extra": maybe(is_text)}),
        "newest": Section(key=("package",), fields={"package": is_text, "version": version, "released": month}),
    },
    "sdpa": {
        "backends": Section(
            key=("backend",),
            fields={"backend": BACKENDS, **RANGE, "dtypes": DTYPES, "backward": is_flag, "grouped": is_flag},
            optional={**NOTE, "dtypes_from_8_0": DTYPES, "grouped_torch_min": minor},
        ),
        "preference": Section(
            key=("cc_min",), fields={"cc_min": capability, "cc_max": capability, "backends": some(BACKENDS)}
        ),
        "traps": Section(
            key=("id",),
            fields={
                "id": is_text,
                "cc_below": capability,
                "torch_below": minor,
                "checked_with": version,
                "fact": is_text,
                "fix": is_text,
            },
        ),
    },
    "mig": {
        "profiles": Section(
            key=("parent",),
            fields={
                "parent": is_text,
                "gpus": some(is_text),
                "memory_gb": is_number,
                "compute_slices": is_whole,
                "profiles": some(matches(r"[1-7]g\.[0-9]+gb")),
            },
        )
    },
}
