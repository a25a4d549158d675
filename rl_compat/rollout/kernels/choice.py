"""The choice of kernels on a device: those that agree with PyTorch and are faster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_compat.rollout.kernels.cuda_kernels import (
    C_TYPES,
    CudaKernels,
    KernelError,
    Kernels,
    Seconds,
    captured_seconds,
    launched_seconds,
    loaded_kernels,
)
from rl_compat.rollout.kernels.decode_ops import PlainOps, Rotation, StepView
from rl_compat.rollout.kernels.fused_ops import FusedDraw, FusedOps, fitting, kernel_macros
from rl_compat.rollout.native.decoder_spec import DecoderSpec
from rl_compat.rollout.sampling import Draw, plain_draw
from rl_compat.rollout.types import SamplingParams

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
_logger = logging.getLogger(__name__)
_choices: dict[tuple[object, ...], frozenset[str]] = {}
_kernels: dict[tuple[object, ...], CudaKernels] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """The size of the decode step on which kernels are tried."""

    rows: int
    capacity: int
    hidden_size: int
    inner_size: int
    vocab_size: int
    stream: torch.dtype
    compute: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One operation as kernel and in PyTorch, on the same random input."""

    name: str
    plain: Callable[[], Sequence[Tensor]]
    fused: Callable[[], Sequence[Tensor]]


def chosen_ops(spec: DecoderSpec, step: DecodeStep, *, architecture: str | None) -> tuple[PlainOps, Draw] | None:
    """The operations and the draw for a CUDA device; None if no kernel helps. Decided once per process."""
    if step.device.type != "cuda" or step.stream not in C_TYPES or step.compute not in C_TYPES:
        return None
    macros = kernel_macros(spec, stream=step.stream, compute=step.compute)
    key = (step.device, *macros.values())
    try:
        if key not in _kernels:
            _kernels[key] = loaded_kernels("decode_kernels", macros, device=step.device, architecture=architecture)
        kernels = _kernels[key]
        at = (*key, step, spec.activation, spec.layers[0].window, spec.layers[0].softcap)
        if at not in _choices:
            _choices[at] = worth_using(spec, step, kernels, seconds=captured_seconds)
    except KernelError as error:
        _logger.warning("rollout runs without its own kernels: %s", str(error).splitlines()[0])
        return None
    enabled = _choices[at]
    return FusedOps(spec, kernels, enabled), FusedDraw(kernels) if "draw" in enabled else plain_draw


def worth_using(spec: DecoderSpec, step: DecodeStep, kernels: Kernels, *, seconds: Seconds) -> frozenset[str]:
    """Names of the operations whose kernel agrees with PyTorch and takes fewer seconds."""
    fits = (trial for trial in trials(spec, step, kernels) if trial.name in fitting(spec))
    return frozenset(trial.name for trial in fits if pays(trial, step.compute, seconds=seconds))


def pays(trial: Trial, dtype: torch.dtype, *, seconds: Seconds) -> bool:
    """Whether the kernel of one operation agrees with PyTorch and takes fewer seconds; both times are logged."""
    if not agree(trial, dtype):
        _logger.warning("rollout does not use its kernel `%s`: its results differ from those of PyTorch", trial.name)
        return False
    plain, fused = seconds(trial.plain), seconds(trial.fused)
    _logger.info("kernel `%s`: %.1f us, PyTorch %.1f us", trial.name, fused * 1e6, plain * 1e6)
    return fused < plain


def agree(trial: Trial, dtype: torch.dtype) -> bool:
    """Whether both have the same results, up to the rounding of the dtype."""
    allowed = TOLERANCE[dtype]
    return all(
        torch.allclose(ours.float(), plain.float(), atol=allowed, rtol=allowed)
        for ours, plain in zip(trial.fused(), trial.plain(), strict=True)
    )


def trials(spec: DecoderSpec, step: DecodeStep, kernels: Kernels) -> Iterator[Trial]:
    """The trials of all operations, over half-filled slots."""
    generator = torch.Generator(device=step.device).manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = step.compute) -> Tensor:
        return torch.randn(shape, generator=generator, device=step.device).to(dtype)

    plain, fused = PlainOps(spec, fused_attention=False), FusedOps(spec, kernels, fitting(spec))
    layer, norm = spec.layers[0], spec.layers[0].input_norm
    stream, added = random(step.rows, step.hidden_size, dtype=step.stream), random(step.rows, step.hidden_size)
    yield _trial("add_norm", plain, fused, lambda ops: ops.add_norm(stream.clone(), added, norm, step.compute))
    yield _trial("norm", plain, fused, lambda ops: (ops.norm(added, norm, step.compute),))
    gate_up = random(step.rows, 2 * step.inner_size)
    yield _trial("activate", plain, fused, lambda ops: (ops.activate(gate_up),))
    positions = torch.full((step.rows,), step.capacity // 2, dtype=torch.int64, device=step.device)
    memory = (step.rows, spec.num_kv_heads, step.capacity, spec.head_dim)
    keys, values = random(*memory), random(*memory)
    qkv = random(step.rows, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
    rotation = Rotation(
        cosines=random(step.capacity, spec.head_dim // 2, dtype=torch.float32),
        sines=random(step.capacity, spec.head_dim // 2, dtype=torch.float32),
    )
    places = torch.arange(step.capacity, device=step.device)
    view = StepView(positions, step.capacity // 2 + 1, places=places, repeats=spec.num_kv_heads)
    view.mask(layer.window)
    view.at(rotation)
    yield _trial(
        "rotate_and_store",
        plain,
        fused,
        lambda ops: (
            ops.rotate_and_store(qkv, layer, rotation, view, keys, values),
            keys[:, :, step.capacity // 2].clone(),
            values[:, :, step.capacity // 2].clone(),
        ),
    )
    queries = random(step.rows, spec.num_heads, spec.head_dim)
    yield _trial("attend", plain, fused, lambda ops: (ops.attend(queries, keys, values, layer, view),))
    yield draw_trial(kernels, rows=step.rows, vocab_size=step.vocab_size, device=step.device)


def _trial(name: str, plain: PlainOps, fused: FusedOps, run: Callable[[PlainOps], Sequence[Tensor]]) -> Trial:
    return Trial(name=name, plain=lambda: run(plain), fused=lambda: run(fused))


def step_size(spec: DecoderSpec, *, rows: int, capacity: int, compute: torch.dtype) -> DecodeStep:
    """The size of a model whose residual stream has the dtype of its embedding's output."""
    device = spec.final_norm.weight.device
    first = spec.embedding(torch.zeros(1, dtype=torch.int64, device=device))
    return DecodeStep(
        rows=rows,
        capacity=capacity,
        hidden_size=first.shape[-1],
        inner_size=inner_size(spec),
        vocab_size=_outputs(spec.head),
        stream=first.dtype,
        compute=compute,
        device=device,
    )


def inner_size(spec: DecoderSpec) -> int:
    """The width of the feed-forward part."""
    layer = spec.layers[0]
    total = sum(_outputs(module) for module in layer.gate_up)
    return total // 2 if layer.gated else total


def _outputs(module: object) -> int:
    return int(module.out_features)  # type: ignore[attr-defined]


def draw_trial(kernels: Kernels, *, rows: int, vocab_size: int, device: torch.device) -> Trial:
    """The trial of drawing at temperature 1 without filters."""
    generator = torch.Generator(device=device).manual_seed(0)
    logits = torch.randn(rows, vocab_size, generator=generator, device=device)
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64, device=device)
    params, fused_draw = SamplingParams(max_new_tokens=1), FusedDraw(kernels)

    def by(draw: Draw) -> Callable[[], Sequence[Tensor]]:
        return lambda: draw(logits, uniform, params, num_valid_tokens=None)[:2]

    return Trial(name="draw", plain=by(plain_draw), fused=by(fused_draw))


def chosen_draw(vocab_size: int, *, rows: int, device: torch.device, architecture: str | None) -> Draw:
    """The draw for logits [rows, vocab_size] outside of a graph. Decided once per process."""
    if device.type != "cuda":
        return plain_draw
    # the draw kernel does not depend on the shape of the model
    macros: dict[str, str | int] = {"STREAM": "float", "NORM": "float", "COMPUTE": "float", "HEAD_DIM": 64, "GROUP": 1}
    key = (device, *macros.values())
    try:
        if key not in _kernels:
            _kernels[key] = loaded_kernels("decode_kernels", macros, device=device, architecture=architecture)
        if (*key, rows, vocab_size) not in _choices:
            trial = draw_trial(_kernels[key], rows=rows, vocab_size=vocab_size, device=device)
            chosen = {"draw"} if pays(trial, torch.float32, seconds=launched_seconds) else set[str]()
            _choices[(*key, rows, vocab_size)] = frozenset(chosen)
    except KernelError as error:
        _logger.warning("rollout draws without its own kernel: %s", str(error).splitlines()[0])
        return plain_draw
    return FusedDraw(_kernels[key]) if _choices[(*key, rows, vocab_size)] else plain_draw
