"""What cannot be divided among devices that share one copy of a model."""

from __future__ import annotations

from collections.abc import Mapping

TENSOR_PARALLEL_FAMILIES = (
    *("gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"),
)
"by `model_type`: transformers says how their layers are divided, and one process and several give the same numbers"


def against_tensor_parallel(family: str, sizes: Mapping[str, int], *, width: int) -> str | None:
    """The reason why `width` devices cannot compute the layers of a model together. `sizes` are what they divide."""
    if family not in TENSOR_PARALLEL_FAMILIES:
        return f"the layers of `{family}` cannot be divided: those of {', '.join(TENSOR_PARALLEL_FAMILIES)} can"
    uneven = [f"{size} {what}" for what, size in sizes.items() if size % width]
    return f"the layers have {' and '.join(uneven)}" if uneven else None


def against_engine_parts(*, heads: int, kv_heads: int, intermediate: int, width: int) -> str | None:
    """The reason why `width` devices cannot be one engine of vLLM; it repeats key-value heads that are too few."""
    sizes = {"heads": heads, "intermediate neurons": intermediate}
    uneven = [f"{size} {what}" for what, size in sizes.items() if size % width]
    uneven += [f"{kv_heads} key-value heads"] if kv_heads % width and width % kv_heads else []
    return f"the layers have {' and '.join(uneven)}" if uneven else None


def against_sharding(*, optimizer: str, quantization: str) -> tuple[str, ...]:
    """Every reason against weights that several devices share, of a role with this optimizer and quantization."""
    reasons = []
    if optimizer == "adamw8bit":
        reasons.append("`adamw8bit` scales its states in blocks that cross the parts of the devices")
    if quantization != "none":
        reasons.append(f"`{quantization}` keeps the scales of its blocks or rows apart from the weights")
    return tuple(reasons)
