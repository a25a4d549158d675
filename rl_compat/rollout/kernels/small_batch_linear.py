"""Linear layers for small batches, by this project's kernels where they are faster than PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle

import torch
from torch import Tensor

from rl_compat.models.files.storage import linear_in_pieces
from rl_compat.rollout.inference import exact_products
from rl_compat.rollout.kernels.cuda_kernels import (
    C_TYPES,
    KernelError,
    Kernels,
    Seconds,
    captured_seconds,
    loaded_kernels,
)

MOST_ROWS = 128
"above it PyTorch was as fast on an H200"
_THREADS = 128
_PARTIAL_NUMBERS = 4 * 2**20
"fp32 partial sums that blocks exchange, 16 MiB"
_MOST_TILES = 65536
_BLOCKS = (32, 2048)
"minimum and maximum blocks of a kernel that is tried with split inputs"
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2}
"relative to the largest number in an output"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A kernel of linear_kernels.cu, whose blocks compute `rows` x `outputs` numbers from `depth` inputs a step."""

    kernel: str
    rows: int
    outputs: int
    depth: int


TILES = (
    Tile(kernel="linear_8x64", rows=8, outputs=64, depth=32),
    Tile(kernel="linear_8x64_deep", rows=8, outputs=64, depth=64),
    Tile(kernel="linear_16x64", rows=16, outputs=64, depth=32),
    Tile(kernel="linear_16x32", rows=16, outputs=32, depth=32),
    Tile(kernel="linear_32x64", rows=32, outputs=64, depth=32),
    Tile(kernel="linear_32x32", rows=32, outputs=32, depth=32),
    Tile(kernel="linear_64x64", rows=64, outputs=64, depth=32),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A kernel, and the number of blocks among which the inputs of a tile are split."""

    tile: Tile
    shares: int


class LinearKernels:
    """The kernels for one set of dtypes on one device, with the memory in which blocks exchange sums."""

    def __init__(self, kernels: Kernels, *, device: torch.device) -> None:
        self._kernels = kernels
        self._partial = torch.empty(_PARTIAL_NUMBERS, device=device)
        self._counters = torch.zeros(_MOST_TILES, dtype=torch.int32, device=device)

    def run(self, way: Way, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """States [N, inputs], weight [outputs, inputs], bias [outputs] to [N, outputs] in the dtype of the states."""
        rows, inputs = states.shape
        outputs, tile = weight.shape[0], way.tile
        out = torch.empty(rows, outputs, dtype=states.dtype, device=states.device)
        share = -(-inputs // (way.shares * tile.depth)) * tile.depth
        shares = -(-inputs // share)
        bias = None if bias is None else bias.to(states.dtype)
        arguments = (states, weight, bias, out, self._partial, self._counters, rows, outputs, inputs, share, shares)
        grid = (num_tiles(tile, rows, outputs), shares)
        self._kernels.launch(tile.kernel, grid, _THREADS, arguments)
        return out


KernelsFor = Callable[[torch.dtype, torch.dtype], LinearKernels | None]
"the kernels for weights and states of these dtypes, None if there are none"
Decisions = dict[Hashable, Way | None]


class SmallBatchLinear:
    """The products of layers of one shape. The kernel for a number of rows is chosen at its first use."""

    def __init__(
        self, weights: Callable[[], list[Tensor]], *, kernels: KernelsFor, decisions: Decisions, seconds: Seconds
    ) -> None:
        """`weights` returns the weights of all the layers, which a trial reads in turn as a decode step does."""
        self._weights = weights
        self._kernels = kernels
        self._decisions = decisions
        self._seconds = seconds

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """The product, or None if PyTorch should compute it."""
        rows = states.shape[0]
        if rows > MOST_ROWS or not fits(states, weight):
            return None
        kernels = self._kernels(weight.dtype, states.dtype)
        if kernels is None:
            return None
        trial_rows = 1 << (rows - 1).bit_length()
        key = (states.device, weight.dtype, states.dtype, weight.shape, trial_rows)
        if key not in self._decisions:
            if states.is_cuda and torch.cuda.is_current_stream_capturing():
                return None
            self._decisions[key] = self._decide(kernels, trial_rows, states.dtype, weight)
        way = self._decisions[key]
        return None if way is None else kernels.run(way, states, weight, bias)

    def _decide(self, kernels: LinearKernels, rows: int, dtype: torch.dtype, weight: Tensor) -> Way | None:
        outputs, inputs = weight.shape
        generator = torch.Generator(device=weight.device).manual_seed(0)
        states = torch.randn(rows, inputs, generator=generator, device=weight.device).to(dtype)
        with exact_products():
            plain = linear_in_pieces(states, weight, None)
        turns = cycle([one for one in self._weights() if one.shape == weight.shape] or [weight])
        library = least = self._seconds(lambda: linear_in_pieces(states, next(turns), None))
        best = None
        for way in ways(rows, outputs, inputs):
            if not close(kernels.run(way, states, weight, None), plain):
                _logger.warning("rollout does not use `%s`: its results differ from those of PyTorch", way.tile.kernel)
                continue
            seconds = self._seconds(lambda way=way: kernels.run(way, states, next(turns), None))  # type: ignore[misc]
            if seconds < least:
                best, least = way, seconds
        name = "PyTorch" if best is None else f"`{best.tile.kernel}` with its inputs in {best.shares}"
        product = f"{rows} x {inputs} by {outputs} x {inputs}"
        _logger.info("product %s: %.1f us with %s, PyTorch %.1f us", product, least * 1e6, name, library * 1e6)
        return best


def small_batch_linear_on(
    device: torch.device, weights: Callable[[], list[Tensor]], *, architecture: str | None
) -> SmallBatchLinear | None:
    """The products of layers of one shape; None on a CPU. Choices are kept for the process."""
    if device.type != "cuda":
        return None
    kernels = partial(_kernels_on, device, architecture)
    return SmallBatchLinear(weights, kernels=kernels, decisions=_decisions, seconds=captured_seconds)


_decisions: Decisions = {}


@cache
def _kernels_on(
    device: torch.device, architecture: str | None, weight: torch.dtype, states: torch.dtype
) -> LinearKernels | None:
    """None for bf16, which PyTorch multiplies on tensor cores, and where NVRTC fails."""
    if states not in _TOLERANCE or weight not in C_TYPES:
        return None
    macros = {"INPUT": C_TYPES[states], "WEIGHT": C_TYPES[weight], "OUTPUT": C_TYPES[states]}
    try:
        kernels = loaded_kernels("linear_kernels", macros, device=device, architecture=architecture)
    except KernelError as error:
        _logger.warning("rollout multiplies without its own kernels: %s", str(error).splitlines()[0])
        return None
    return LinearKernels(kernels, device=device)


def ways(rows: int, outputs: int, inputs: int) -> Iterator[Way]:
    """Kernels worth a trial: tiles of about this many rows, the inputs whole or split to keep all blocks busy."""
    least, most = _BLOCKS
    for tile in TILES:
        if not (rows <= 4 * tile.rows and (tile.rows <= 8 or tile.rows < 2 * rows)):
            continue
        count = num_tiles(tile, rows, outputs)
        for shares in (1, 2, 3, 4, 5, 6, 8, 10, 14):
            alone = shares == 1 and (count >= least or inputs < 4 * tile.depth)
            shared = least <= count * shares <= most and inputs >= 2 * shares * tile.depth
            kept = count * shares * tile.rows * tile.outputs <= _PARTIAL_NUMBERS and count <= _MOST_TILES
            if alone or (shares > 1 and shared and kept):
                yield Way(tile=tile, shares=shares)


def num_tiles(tile: Tile, rows: int, outputs: int) -> int:
    return -(-rows // tile.rows) * -(-outputs // tile.outputs)


def fits(states: Tensor, weight: Tensor) -> bool:
    """Whether both are aligned for the kernels, which load sixteen bytes at a time."""
    ready = states.is_contiguous() and weight.is_contiguous() and states.shape[1] % 8 == 0
    return ready and states.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0


def close(ours: Tensor, plain: Tensor) -> bool:
    allowed = _TOLERANCE[plain.dtype] * float(plain.abs().max())
    return bool(torch.isfinite(ours).all()) and float((ours.float() - plain.float()).abs().max()) <= allowed
