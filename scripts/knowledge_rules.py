"""Rules that compare the tables of doctor/knowledge with each other, rl_compat/capability and pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_compat.capability.attention import EFFICIENT_MINIMUM, FLASH_MINIMUM, GROUPED_EFFICIENT_TORCH
from rl_compat.capability.binaries import parse_version
from rl_compat.capability.kernels import TRITON_MINIMUM
from rl_compat.capability.precision import BF16_MINIMUM
from rl_compat.doctor.tables.rows import satisfies, within
from rl_compat.doctor.tables.target import Target
from rl_compat.doctor.tables.torch import OLDEST, OLDEST_PYTHON, cuda_of, driver_runs
from rl_compat.hardware.gpu.catalogue import capability_of

Tables = Mapping[str, Mapping[str, Any]]
ROOT = Path(__file__).resolve().parents[1]
BITSANDBYTES_FEATURES = ("optimizer_8bit", "nf4", "llm_int8")
"those that rl_compat/capability asks for"


def torch_builds_have_drivers(tables: Tables) -> Iterator[str]:
    """Each CUDA variant of torch and each CUDA version of a vLLM wheel must have a row of minimum drivers."""
    listed = {row["cuda"] for row in tables["drivers"]["cuda_min_driver_linux"]}
    for row in tables["torch"]["releases"]:
        for variant in row["x86_64_wheels"]:
            if cuda_of(variant) not in listed:
                yield f"torch {row['torch']}: {variant} has no row of minimum drivers"
    for row in tables["vllm"]["releases"]:
        for cuda in set(row["wheel_cuda"]) - listed:
            yield f"vllm {row['vllm']}: CUDA {cuda} has no row of minimum drivers"
    for row in tables["drivers"]["cuda_min_driver_linux"]:
        if parse_version(row["minor_compat"]) > parse_version(row["full"]):
            yield f"drivers: CUDA {row['cuda']} needs {row['minor_compat']} for binaries but only {row['full']} for PTX"


def torch_rows_are_consistent(tables: Tables) -> Iterator[str]:
    known = {row["cc"] for row in tables["compute_capability"]["capabilities"]}
    variants = {row["torch"]: row["x86_64_wheels"] for row in tables["torch"]["releases"]}
    for row in tables["torch"]["releases"]:
        wheels, name = row["x86_64_wheels"], row["torch"]
        if row["pypi_default"] not in wheels:
            yield f"torch {name}: the PyPI build {row['pypi_default']} is not among its wheels"
        if parse_version(row["newest"])[:2] != parse_version(name):
            yield f"torch {name}: newest is {row['newest']}"
        for variant, archs in [*wheels.items(), *row.get("uncertain_archs", {}).items()]:
            for arch in {arch.partition("+")[0] for arch in archs} - known:
                yield f"torch {name} {variant}: compute capability {arch} is not in the table"
    every = {variant for wheels in variants.values() for variant in wheels}
    for row in tables["torch"]["aarch64"]:
        if row["variant"] not in every:
            yield f"torch aarch64: no release has a build {row['variant']}"
    for row in tables["torch"]["pinned_libraries"]:
        low, high = parse_version(row["torch_min"]), parse_version(row["torch_max"])
        inside = [wheels for name, wheels in variants.items() if low <= parse_version(name) <= high]
        for variant in row["variants"] or ():
            if not all(variant in wheels for wheels in inside) or not inside:
                yield f"torch {row['torch_min']} to {row['torch_max']}: no build {variant} to pin {row['package']}"


def no_build_has_code_for_a_dropped_card(tables: Tables) -> Iterator[str]:
    """A CUDA version newer than the last for an architecture cannot compile for it."""
    for row in tables["torch"]["releases"]:
        for variant, archs in row["x86_64_wheels"].items():
            for arch in archs:
                card = capability_of(arch.partition("+")[0])
                last = next((r["last_cuda"] for r in tables["drivers"]["arch_support"] if within(r, card)), None)
                if last is not None and parse_version(cuda_of(variant)) > parse_version(last):
                    yield f"torch {row['torch']} {variant}: has {arch}, but CUDA {last} was the last to support it"


def newest_builds_follow_from_the_releases(tables: Tables) -> Iterator[str]:
    """The listed newest build for a card must be the one chosen for a new driver and any supported Python."""
    for row in tables["torch"]["newest_by_capability"]:
        if parse_version(row["newest"])[:2] < OLDEST:
            continue
        if not driver_runs(row["driver_min"], cuda_of(row["variant"])):
            yield f"newest for {row['cc_min']}: driver {row['driver_min']} does not support {row['variant']}"
        driver = "595.58.03" if row["last_driver_branch"] is None else f"{row['last_driver_branch']}.95.05"
        low, high = (bound.lstrip("<>=") for bound in row["python"].split(","))
        oldest = low if parse_version(low) >= OLDEST_PYTHON else ".".join(map(str, OLDEST_PYTHON))
        for card in (row["cc_min"], row["cc_max"]):
            for python in (oldest, high):
                build = Target(cards=(capability_of(card),), driver=driver, python=python).builds()[0]
                listed = f"torch=={row['newest']}+{row['variant']}"
                if build.requirement != listed:
                    yield f"newest for {card}, Python {python}: {listed} is listed, {build.requirement} is chosen"


def cards_are_consistent(tables: Tables) -> Iterator[str]:
    by_capability = {row["cc"]: row for row in tables["compute_capability"]["capabilities"]}
    for row in tables["gpus"]["gpus"]:
        rule = by_capability.get(row["cc"])
        if rule is None:
            yield f"gpu {row['id']}: compute capability {row['cc']} is not in the table"
            continue
        if row["bf16_native"] != rule["bf16_native"]:
            yield f"gpu {row['id']}: bf16_native is {row['bf16_native']}, but not for {row['cc']}"
        if row["tensor_core_gen"] not in (rule["tensor_core_gen"], 0):
            yield f"gpu {row['id']}: tensor cores of generation {row['tensor_core_gen']}, not {rule['tensor_core_gen']}"
        if (row["fp16_rate"] == "1/64") != (row["cc"] == "6.1"):
            yield f"gpu {row['id']}: fp16_rate is {row['fp16_rate']} at {row['cc']}"
        if not any(within(entry, capability_of(row["cc"])) for entry in tables["drivers"]["arch_support"]):
            yield f"gpu {row['id']}: no row of driver support for {row['cc']}"


def pci_ids_are_shared_on_purpose_only(tables: Tables) -> Iterator[str]:
    holders: dict[str, list[Mapping[str, Any]]] = {}
    for row in tables["gpus"]["gpus"]:
        for number in row["pci_device_ids"]:
            holders.setdefault(number, []).append(row)
        for number in set(row.get("shared_pci_device_ids", ())) - set(row["pci_device_ids"]):
            yield f"gpu {row['id']}: shares {number}, which it does not have"
    for number, rows in holders.items():
        names = ", ".join(row["id"] for row in rows)
        declared = [number in row.get("shared_pci_device_ids", ()) for row in rows]
        if len(rows) > 1 and not all(declared):
            yield f"PCI id {number}: belongs to {names}, but is not marked as shared"
        if len(rows) == 1 and declared[0]:
            yield f"PCI id {number}: is marked as shared, but belongs to {names} only"


def capabilities_follow_the_rules(tables: Tables) -> Iterator[str]:
    for row in tables["compute_capability"]["capabilities"]:
        card = capability_of(row["cc"])
        if row["bf16_native"] != (card >= BF16_MINIMUM):
            yield f"compute capability {row['cc']}: bf16_native is {row['bf16_native']}, which contradicts the rule"
        if row["is_bf16_supported_no_emulation"] != row["bf16_native"]:
            yield f"compute capability {row['cc']}: torch's answer without emulation differs from bf16_native"
        if row["smem_per_block_optin_kb"] > row["smem_per_sm_kb"]:
            yield f"compute capability {row['cc']}: a block may use more shared memory than exists"


def attention_follows_the_rules(tables: Tables) -> Iterator[str]:
    backends = {row["backend"]: row for row in tables["sdpa"]["backends"]}
    expected = {"flash": FLASH_MINIMUM, "efficient": EFFICIENT_MINIMUM}
    for name, minimum in expected.items():
        if capability_of(backends[name]["cc_min"]) != minimum:
            yield f"sdpa {name}: starts at {backends[name]['cc_min']}, the rule at {minimum}"
    efficient = backends["efficient"]
    if "bfloat16" in efficient["dtypes"] or "bfloat16" not in efficient["dtypes_from_8_0"]:
        yield f"sdpa efficient: bf16 does not start at {BF16_MINIMUM}"
    grouped = [
        ("sdpa efficient", backends["efficient"]["grouped_torch_min"]),
        *((f"trap {row['id']}", row["torch_below"]) for row in tables["sdpa"]["traps"]),
        *(
            (f"torch feature {row['id']}", row["torch_min"])
            for row in tables["torch"]["features"]
            if row["id"] == "grouped_efficient_attention"
        ),
    ]
    for name, release in grouped:
        if parse_version(release) != GROUPED_EFFICIENT_TORCH:
            yield f"{name}: torch {release}, the rule says {GROUPED_EFFICIENT_TORCH}"
    for row in tables["torch"]["features"]:
        if row["id"] == "inductor" and capability_of(row["cc_min"]) != TRITON_MINIMUM:
            yield f"torch feature inductor: {row['cc_min']}, the rule says {TRITON_MINIMUM}"
    yield from _backends_of_every_capability(tables, backends)


def _backends_of_every_capability(tables: Tables, backends: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for row in tables["compute_capability"]["capabilities"]:
        card, listed = capability_of(row["cc"]), set(row["sdpa_backends"])
        by_gate = {name for name, gate in backends.items() if within(gate, card)}
        preferred = next((entry["backends"] for entry in tables["sdpa"]["preference"] if within(entry, card)), None)
        if by_gate != listed:
            yield f"compute capability {row['cc']}: backends {sorted(listed)}, by their minimums {sorted(by_gate)}"
        if preferred is None or set(preferred) != listed:
            yield f"compute capability {row['cc']}: backends {sorted(listed)}, in order of preference {preferred}"


def vllm_rows_are_consistent(tables: Tables) -> Iterator[str]:
    listed = {parse_version(row["torch"]) for row in tables["torch"]["releases"]}
    order = [parse_version(row["vllm"]) for row in tables["vllm"]["releases"]]
    if order != sorted(order):
        yield "vllm: the releases are not in order"
    for row in tables["vllm"]["releases"]:
        least = min(row["wheel_sm"])
        if capability_of(row["wheel_min_cc"]) != (least // 10, least % 10):
            yield f"vllm {row['vllm']}: starts at {row['wheel_min_cc']}, its wheel at sm_{least}"
        if row["torch"].startswith("==") and parse_version(row["torch"][2:])[:2] not in listed:
            yield f"vllm {row['vllm']}: pins torch {row['torch']}, which is not in the table of torch"
    for row in tables["vllm"]["cpu_packages"]:
        if parse_version(row["torch"])[:2] not in listed:
            yield f"{row['package']} {row['version']}: pins torch {row['torch']}, which is not in the table of torch"


def bitsandbytes_rows_are_consistent(tables: Tables) -> Iterator[str]:
    known = {row["cc"] for row in tables["compute_capability"]["capabilities"]}
    table = tables["bitsandbytes"]
    for rows, name in (
        (table["wheels"], "wheels"),
        *((_of(table, feature), feature) for feature in BITSANDBYTES_FEATURES),
    ):
        if not any(parse_version(row["version_min"]) == (0,) for row in rows):
            yield f"bitsandbytes {name}: no row for the oldest releases"
    for row in table["wheels"]:
        if parse_version(row["newest"]) < parse_version(row["version_min"]):
            yield f"bitsandbytes {row['version_min']}: newest is {row['newest']}"
        for library in row["libraries"]:
            if parse_version(library["cuda_min"]) > parse_version(library["cuda_max"]):
                span = f"{library['cuda_min']} to {library['cuda_max']}"
                yield f"bitsandbytes {row['version_min']}: a library from CUDA {span}"
            for arch in library["archs"]:
                if f"{arch // 10}.{arch % 10}" not in known:
                    yield f"bitsandbytes {row['version_min']}: sm_{arch} is not a known compute capability"
    newest = max(table["wheels"], key=lambda row: parse_version(row["version_min"]))
    least = min(arch for library in newest["libraries"] for arch in library["archs"])
    for feature in BITSANDBYTES_FEATURES:
        floor = max(_of(table, feature), key=lambda row: parse_version(row["version_min"]))["cc_min"]
        if capability_of(floor) < (least // 10, least % 10):
            yield f"bitsandbytes {feature}: listed from {floor} on, but the newest wheel starts at sm_{least}"


def _of(table: Mapping[str, Any], feature: str) -> list[Mapping[str, Any]]:
    return [row for row in table["features"] if row["id"] == feature]


def drivers_are_consistent(tables: Tables) -> Iterator[str]:
    branches = {row["branch"]: row for row in tables["drivers"]["branches"]}
    advised = tables["drivers"]["recommended_branch"]
    if advised not in branches or branches[advised]["ended"]:
        yield f"drivers: the recommended branch {advised} is not supported"
    for row in (*tables["drivers"]["arch_support"], *tables["torch"]["newest_by_capability"]):
        if row["last_driver_branch"] not in (None, *branches):
            yield f"drivers: branch {row['last_driver_branch']}, the last for {row['cc_min']}, is not in the table"
    for row in tables["compute_capability"]["capabilities"]:
        if not any(within(entry, capability_of(row["cc"])) for entry in tables["drivers"]["kernel_modules"]):
            yield f"drivers: no kernel module supports {row['cc']}"


def mig_profiles_fit_their_gpu(tables: Tables) -> Iterator[str]:
    cards = {row["id"]: row for row in tables["gpus"]["gpus"]}
    for row in tables["mig"]["profiles"]:
        for profile in row["profiles"]:
            slices, memory = (int(number) for number in re.findall(r"[0-9]+", profile))
            if memory > row["memory_gb"] or slices > row["compute_slices"]:
                yield f"mig {row['parent']}: {profile} is larger than the GPU"
        for card in row["gpus"]:
            if card not in cards:
                yield f"mig {row['parent']}: {card} is not in the catalogue"
            elif abs(cards[card]["memory_gb"] - row["memory_gb"]) > 0.1 * row["memory_gb"]:
                yield f"mig {row['parent']}: {card} has {cards[card]['memory_gb']} GB"


def the_newest_is_the_newest(tables: Tables) -> Iterator[str]:
    """No row of any table may have a release newer than the newest known of its package."""
    newest = {row["package"]: row["version"] for row in tables["libs"]["newest"]}
    rows = [
        *(("torch", row["newest"]) for row in tables["torch"]["releases"]),
        *(
            (name, row[name].lstrip("="))
            for row in tables["torch"]["releases"]
            for name in ("torchvision", "torchaudio")
        ),
        *(("triton", row["triton"]) for row in tables["torch"]["releases"]),
        *(("vllm", row["vllm"]) for row in tables["vllm"]["releases"]),
        *((row["package"], row["version"]) for row in tables["vllm"]["cpu_packages"]),
        *(("bitsandbytes", row["newest"]) for row in tables["bitsandbytes"]["wheels"]),
        *(("transformers", row["version_min"]) for row in tables["libs"]["transformers"]),
        *((row["package"], row["version"]) for row in tables["libs"]["cuda_libs"]),
        *((row["package"], row["version"]) for row in tables["torch"]["pinned_libraries"]),
        *(
            (row["package"], row["version_min"])
            for row in tables["libs"]["kernels"]
            if row["package"] != "flash-attn-3"
        ),
    ]
    for package, version in rows:
        if package not in newest:
            yield f"{package}: its newest release is not in the table"
        elif parse_version(version) > parse_version(newest[package]):
            yield f"{package} {version}: newer than {newest[package]}, the newest known"


def requirements_are_those_of_the_project(tables: Tables) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {row["extra"] for row in tables["libs"]["required"]} - {None}
    asked = [(text, None) for text in project["dependencies"]]
    asked += [(text, extra) for extra in extras for text in project["optional-dependencies"][extra]]
    listed = {(row["package"] + row["versions"], row["extra"]) for row in tables["libs"]["required"]}
    for text, extra in set(asked) ^ listed:
        yield f"`{text}` of {extra or 'the dependencies'}: " + (
            "is not in libs.required" if (text, extra) not in listed else "is not in pyproject.toml"
        )
    for row in tables["libs"]["newest"]:
        need = next((need for need in tables["libs"]["required"] if need["package"] == row["package"]), None)
        if need is not None and not satisfies(row["version"], need["versions"]):
            yield f"{row['package']} {row['version']}: the newest known is outside of {need['versions']}"


RULES: tuple[Callable[[Tables], Iterator[str]], ...] = (
    torch_builds_have_drivers,
    torch_rows_are_consistent,
    no_build_has_code_for_a_dropped_card,
    newest_builds_follow_from_the_releases,
    cards_are_consistent,
    pci_ids_are_shared_on_purpose_only,
    capabilities_follow_the_rules,
    attention_follows_the_rules,
    vllm_rows_are_consistent,
    bitsandbytes_rows_are_consistent,
    drivers_are_consistent,
    mig_profiles_fit_their_gpu,
    the_newest_is_the_newest,
    requirements_are_those_of_the_project,
)
