"""Products over few rows are right in every format and shape, and taken where they are faster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from rollout.emulated_kernels import COMPILER, EmulatedKernels
from torch import Tensor, nn

from rl_compat.rollout.kernels.cuda_kernels import (
    C_TYPES,
    CudaKernels,
    KernelError,
    captured_seconds,
    compiled,
    kernel_source,
    nvrtc_library,
)
from rl_compat.rollout.kernels.small_batch_linear import (
    MOST_ROWS,
    TILES,
    Decisions,
    LinearKernels,
    SmallBatchLinear,
    Tile,
    Way,
    close,
    num_tiles,
    ways,
)
from rl_compat.rollout.projections import SharedProjection

FORMATS = [
    (torch.float32, torch.float32),
    (torch.float32, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.float16),
]
ARCHITECTURES = ("sm_61", "sm_70", "sm_75", "sm_80", "sm_90")


def macros(states: torch.dtype, weight: torch.dtype) -> dict[str, str | int]:
    return {"INPUT": C_TYPES[states], "WEIGHT": C_TYPES[weight], "OUTPUT": C_TYPES[states]}


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "emulated" and COMPILER is None:
        pytest.skip("g++ runs the kernels on the CPU")
    with torch.no_grad(), torch.device("cpu" if request.param == "emulated" else "cuda") as found:
        torch.manual_seed(0)
        yield found


def kernels_on(device: torch.device, states: torch.dtype, weight: torch.dtype) -> LinearKernels:
    if device.type == "cpu":
        return LinearKernels(EmulatedKernels(macros(states, weight), "linear_kernels"), device=device)
    source = kernel_source("linear_kernels")
    return LinearKernels(CudaKernels(source, macros(states, weight), device=device), device=device)


def exact(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = states.double() @ weight.double().T
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.kernel)
@pytest.mark.parametrize(("states_dtype", "weight_dtype"), FORMATS)
def test_a_product_is_right_in_every_format(
    tile: Tile, states_dtype: torch.dtype, weight_dtype: torch.dtype, device: torch.device
) -> None:
    kernels = kernels_on(device, states_dtype, weight_dtype)
    states, weight = torch.randn(11, 136).to(states_dtype), torch.randn(70, 136).to(weight_dtype)
    bias = torch.randn(70)
    for shares in (1, 3):
        for added in (None, bias):
            ours = kernels.run(Way(tile=tile, shares=shares), states, weight, added)
            assert ours.dtype == states_dtype
            rounding = 1e-5 if states_dtype == torch.float32 else 2e-2
            torch.testing.assert_close(ours.double(), exact(states, weight, added), atol=rounding * 10, rtol=rounding)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.kernel)
@pytest.mark.parametrize(("rows", "outputs", "inputs", "shares"), [(1, 3, 8, 1), (67, 130, 72, 2), (5, 64, 512, 8)])
def test_edges_of_every_shape_are_right(
    tile: Tile, rows: int, outputs: int, inputs: int, shares: int, device: torch.device
) -> None:
    kernels = kernels_on(device, torch.float32, torch.float32)
    states, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    for _ in range(2):
        ours = kernels.run(Way(tile=tile, shares=shares), states, weight, None)
        torch.testing.assert_close(ours.double(), exact(states, weight, None), atol=1e-4, rtol=1e-5)
    assert int(kernels._counters.abs().sum()) == 0


def test_a_product_does_not_depend_on_the_other_rows(device: torch.device) -> None:
    kernels = kernels_on(device, torch.float32, torch.float32)
    states, weight = torch.randn(8, 64), torch.randn(40, 64)
    way = Way(tile=TILES[0], shares=2)
    alone = kernels.run(way, states[2:3].clone(), weight, None)
    assert torch.equal(kernels.run(way, states, weight, None)[2:3], alone)


def decided(
    weights: list[Tensor], times: list[float], device: torch.device, *, dtype: torch.dtype = torch.float32
) -> tuple[SmallBatchLinear, dict[object, Way | None]]:
    """The seconds of PyTorch, then of each way that is tried; the last stays for the rest."""
    kernels = kernels_on(device, torch.float32, dtype)
    waiting = list(times)
    decisions: Decisions = {}
    product = SmallBatchLinear(
        lambda: weights,
        kernels=lambda weight, states: kernels,
        decisions=decisions,
        seconds=lambda run: (run(), waiting.pop(0) if len(waiting) > 1 else waiting[0])[1],
    )
    return product, decisions


def emulated() -> torch.device:
    if COMPILER is None:
        pytest.skip("g++ runs the kernels on the CPU")
    return torch.device("cpu")


def test_the_fastest_way_is_taken_for_each_number_of_rows() -> None:
    weights = [torch.randn(96, 64) for _ in range(3)]
    product, decisions = decided(weights, [3.0, 2.0, 1.0, 2.5], emulated())
    states = torch.randn(3, 64)
    ours = product(states, weights[1], None)
    assert ours is not None
    torch.testing.assert_close(ours, states @ weights[1].T)
    tried = list(ways(4, 96, 64))
    assert list(decisions.values()) == [tried[1]]
    assert product(torch.randn(4, 64), weights[0], None) is not None and len(decisions) == 1


def test_weights_that_would_have_to_be_cast_are_read_as_they_are() -> None:
    weights = [torch.randn(96, 64).half()]
    product, decisions = decided(weights, [3.0, 2.0], emulated(), dtype=torch.float16)
    states = torch.randn(100, 64)
    ours = product(states, weights[0], None)
    assert ours is not None and len(decisions) == 1
    torch.testing.assert_close(ours, states @ weights[0].float().T)
    assert product(torch.randn(MOST_ROWS + 1, 64), weights[0], None) is None


def test_pytorch_makes_a_product_that_it_makes_faster_and_one_of_many_rows() -> None:
    weights = [torch.randn(96, 64)]
    product, decisions = decided(weights, [1.0, 2.0], emulated())
    assert product(torch.randn(2, 64), weights[0], None) is None and list(decisions.values()) == [None]
    assert product(torch.randn(MOST_ROWS + 1, 64), weights[0], None) is None and len(decisions) == 1
    assert product(torch.randn(2, 66)[:, :63], torch.randn(5, 63), None) is None


def test_a_projection_takes_the_faster_product_of_its_merged_weights() -> None:
    first, second = nn.Linear(64, 16), nn.Linear(64, 8)
    whole = torch.cat([first.weight, second.weight]).detach()
    first.weight.data, second.weight.data = whole[:16], whole[16:]
    projection = SharedProjection([first, second], torch.float32)
    seen: list[Tensor] = []

    def product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        seen.append(weight)
        return None if len(seen) == 1 else torch.full((len(states), 24), 7.0)

    projection.small_batch = product
    states = torch.randn(2, 64)
    plain = torch.cat([first(states), second(states)], dim=1)
    torch.testing.assert_close(projection(states), plain)
    assert torch.equal(projection(states), torch.full((2, 24), 7.0)) and torch.equal(seen[0], whole)


def test_ways_keep_all_blocks_busy_and_within_memory() -> None:
    shapes = ((1, 1152, 896), (8, 896, 4864), (16, 9728, 896), (64, 151936, 896), (64, 896, 4864), (128, 9728, 896))
    for rows, outputs, inputs in shapes:
        found = list(ways(rows, outputs, inputs))
        assert found
        for way in found:
            blocks = num_tiles(way.tile, rows, outputs) * way.shares
            assert blocks >= 32 and (way.shares == 1 or blocks <= 2048)


def test_numbers_that_are_off_are_not_close() -> None:
    plain = torch.randn(4, 4)
    assert close(plain + 1e-5, plain)
    assert not close(plain + 1e-2, plain) and not close(plain * float("nan"), plain)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_the_products(architecture: str) -> None:
    try:
        nvrtc_library()
        compiled("__global__ void nothing() {}", {}, architecture=architecture)
    except KernelError as error:
        pytest.skip(str(error))
    for states, weight in FORMATS:
        binary = compiled(kernel_source("linear_kernels"), macros(states, weight), architecture=architecture)
        assert all(tile.kernel.encode() in binary for tile in TILES)


@pytest.mark.gpu
def test_a_trial_on_a_gpu_decides_without_touching_its_random_numbers() -> None:
    device = torch.device("cuda")
    weights = [torch.randn(896, 896, device=device) for _ in range(12)]
    kernels = kernels_on(device, torch.float32, torch.float32)
    decisions: Decisions = {}
    product = SmallBatchLinear(
        lambda: weights, kernels=lambda *dtypes: kernels, decisions=decisions, seconds=captured_seconds
    )
    before = torch.cuda.get_rng_state()
    states = torch.ones(8, 896, device=device)
    output = product(states, weights[0], None)
    assert torch.equal(before, torch.cuda.get_rng_state()) and len(decisions) == 1
    if output is not None:
        torch.testing.assert_close(output.double(), exact(states, weights[0], None), atol=1e-3, rtol=1e-4)
