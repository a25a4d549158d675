"""The kernels compute what the plain operations do, and compile for the cards that they are for."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rollout.conftest import PROMPTS, forward_logprobs, plain_generate, small
from rollout.emulated_kernels import COMPILER, EmulatedKernels, write_source
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl_compat.rollout.kernels import cuda_kernels
from rl_compat.rollout.kernels.choice import DecodeStep, worth_using
from rl_compat.rollout.kernels.cuda_kernels import (
    CudaKernels,
    KernelError,
    Kernels,
    compiled,
    kernel_source,
    nvrtc_library,
)
from rl_compat.rollout.kernels.decode_ops import PlainOps, Rotation, StepView
from rl_compat.rollout.kernels.fused_ops import FUSED, FusedDraw, FusedOps, fitting, kernel_macros
from rl_compat.rollout.native.decoder import SlotDecoder
from rl_compat.rollout.native.decoder_spec import DecoderSpec, read_spec
from rl_compat.rollout.native.kv_cache import SlotMemory
from rl_compat.rollout.native.own_forward import OwnForward
from rl_compat.rollout.sampling import plain_draw
from rl_compat.rollout.types import SamplingParams
from rl_compat.rollout.weights import SharedWeights

ARCHITECTURES = ("sm_61", "sm_70", "sm_75", "sm_80", "sm_90")
SHAPES = ((7, 64), (1, 96), (4, 256), (16, 128), (3, 32), (5, 80))
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)
CAPACITY = 640


def wide(config_class: type, **more: object) -> object:
    """A head of 32 numbers, which the attention kernel can do."""
    config = small(config_class, **more)
    config.head_dim, config.num_attention_heads, config.num_key_value_heads, config.hidden_size = 32, 6, 2, 192
    return config


def qwen3() -> nn.Module:
    return Qwen3ForCausalLM(wide(Qwen3Config))


def gemma2() -> nn.Module:
    more = {"sliding_window": 40, "layer_types": ["sliding_attention"] * 3, "attn_logit_softcapping": 3.0}
    return Gemma2ForCausalLM(wide(Gemma2Config, **more))


MODELS = {"qwen3": qwen3, "gemma2": gemma2}


@pytest.fixture(params=list(MODELS))
def spec(request: pytest.FixtureRequest) -> DecoderSpec:
    return described(request.param)


@pytest.fixture
def one_spec() -> DecoderSpec:
    return described("qwen3")


def described(name: str) -> DecoderSpec:
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return read_spec(model)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "emulated" and COMPILER is None:
        pytest.skip("g++ runs the kernels on the CPU")
    before = torch.get_default_device()
    found = torch.device("cpu" if request.param == "emulated" else "cuda")
    torch.set_default_device(found)
    with torch.no_grad():
        yield found
    torch.set_default_device(before)


def kernels(
    spec: DecoderSpec, dtype: torch.dtype, device: torch.device, stream: torch.dtype = torch.float32
) -> Kernels:
    for norm in (spec.final_norm, *(layer.input_norm for layer in spec.layers)):
        norm.module.to(device)
    for layer in spec.layers:
        for head_norm in (layer.query_norm, layer.key_norm):
            if head_norm is not None:
                head_norm.module.to(device)
    macros = kernel_macros(spec, stream=torch.float32, compute=dtype)
    if device.type == "cpu":
        return EmulatedKernels(macros)
    return CudaKernels(kernel_source("decode_kernels"), macros, device=device)


def both(spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> tuple[PlainOps, FusedOps]:
    return PlainOps(spec, fused_attention=False), FusedOps(spec, kernels(spec, dtype, device), FUSED)


def close(ours: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype == plain.dtype
    torch.testing.assert_close(ours.float(), plain.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_norms_of_rows_longer_than_the_registers_of_a_block(one_spec: DecoderSpec, device: torch.device) -> None:
    stream, added, weight, out = (torch.randn(*shape) for shape in ((2, 300), (2, 300), (300,), (2, 300)))
    summed = stream + added
    arguments = (stream, added, weight, out, 300, 1e-6, 0.0, 1)
    kernels(one_spec, torch.float32, device).launch("add_norm", (2, 1), 32, arguments)
    close(stream, summed, torch.float32)
    close(out, torch.nn.functional.rms_norm(summed, (300,), weight, 1e-6), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> None:
    plain, fused = both(spec, dtype, device)
    stream, added = torch.randn(3, 192), torch.randn(3, 192).to(dtype)
    norm = spec.layers[1].input_norm
    expected = plain.add_norm(stream, added, norm, dtype)
    for ours, reference in zip(fused.add_norm(stream.clone(), added, norm, dtype), expected, strict=True):
        close(ours, reference, dtype)
    close(fused.add_norm(stream, None, norm, torch.float32)[1], plain.norm(stream, norm, torch.float32), dtype)
    close(fused.norm(added, norm, dtype), plain.norm(added, norm, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", [0, 5, 16])
def test_rotation_and_cache_write(spec: DecoderSpec, dtype: torch.dtype, pairs: int, device: torch.device) -> None:
    plain, fused = both(spec, dtype, device)
    qkv = torch.randn(4, 10 * 32).to(dtype)
    angles = torch.randn(CAPACITY, max(pairs, 1))
    rotation = Rotation(cosines=angles.cos(), sines=angles.sin()) if pairs else None
    positions = torch.tensor([0, 5, 63, CAPACITY - 1])
    view = StepView(positions, CAPACITY, places=torch.arange(CAPACITY), repeats=2)
    results = []
    for ops in (plain, fused):
        keys, values = torch.zeros(2, 5, 2, CAPACITY, 32, dtype=dtype)
        queries = ops.rotate_and_store(qkv, spec.layers[0], rotation, view, keys, values)
        results.append((queries, keys, values))
    for ours, reference in zip(results[1], results[0], strict=True):
        close(ours, reference, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_activation(spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> None:
    plain, fused = both(spec, dtype, device)
    gate_up = (3 * torch.randn(3, 2 * 300)).to(dtype)
    close(fused.activate(gate_up), plain.activate(gate_up), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_to_the_filled_part(spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> None:
    plain, fused = both(spec, dtype, device)
    keys, values = torch.randn(2, 7, 2, CAPACITY, 32).to(dtype)
    queries = torch.randn(6, 6, 32).to(dtype)
    positions = torch.tensor([0, 2, 31, 255, 256, CAPACITY - 1])
    view = StepView(positions, CAPACITY, places=torch.arange(CAPACITY), repeats=2)
    expected = plain.attend(queries, keys, values, spec.layers[0], view)
    close(fused.attend(queries, keys, values, spec.layers[0], view), expected, dtype)


@pytest.mark.parametrize("vocab", [97, 2100])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_new_tokens=1),
        SamplingParams(max_new_tokens=1, temperature=0.0),
        SamplingParams(max_new_tokens=1, temperature=0.7, min_p=0.05, raw_logprobs=True),
    ],
)
def test_draws(one_spec: DecoderSpec, vocab: int, params: SamplingParams, device: torch.device) -> None:
    fused = FusedDraw(kernels(one_spec, torch.float32, device))
    torch.manual_seed(2)
    logits = 4 * torch.randn(8, vocab)
    logits[0, : vocab // 2] = -torch.inf
    logits[1] = 0.0
    uniform = torch.tensor([0.0, 0.3123, 0.99, 0.8, 0.5, 0.1, 0.9, 0.7], dtype=torch.float64)
    for num_valid in (None, vocab - 7):
        ours = fused(logits, uniform, params, num_valid_tokens=num_valid)
        expected = plain_draw(logits, uniform, params, num_valid_tokens=num_valid)
        assert ours[0].tolist() == expected[0].tolist()
        torch.testing.assert_close(ours[1], expected[1], atol=2e-5, rtol=1e-5)
        if params.raw_logprobs:
            torch.testing.assert_close(ours[2], expected[2], atol=2e-5, rtol=1e-5)


def test_every_uniform_number_hits_a_token_that_has_probability(one_spec: DecoderSpec, device: torch.device) -> None:
    logits = torch.full((4, 3000), -torch.inf)
    logits[:, [3, 300, 2511]] = torch.tensor([0.0, 1.0, -20.0])
    uniform = torch.tensor([0.0, 1e-300, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    params = SamplingParams(max_new_tokens=1)
    tokens, logprobs, _ = FusedDraw(kernels(one_spec, torch.float32, device))(
        logits, uniform, params, num_valid_tokens=None
    )
    assert set(tokens.tolist()) <= {3, 300, 2511}
    assert torch.isfinite(logprobs).all()


def test_draws_that_sort_the_vocabulary_take_no_kernel() -> None:
    class NoKernels:
        def launch(self, *arguments: object) -> None:
            raise AssertionError

    logits, uniform = torch.randn(2, 97), torch.tensor([0.2, 0.8], dtype=torch.float64)
    params = SamplingParams(max_new_tokens=1, top_k=5, top_p=0.9)
    ours = FusedDraw(NoKernels())(logits, uniform, params, num_valid_tokens=None)
    assert ours[0].tolist() == plain_draw(logits, uniform, params, num_valid_tokens=None)[0].tolist()


def test_what_does_not_fit_a_kernel_is_left_to_pytorch() -> None:
    assert fitting(read_spec(qwen3())) == frozenset(FUSED) - {"norm"}
    assert "norm" in fitting(read_spec(gemma2()))
    phi = PhiForCausalLM(small(PhiConfig, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}))
    assert fitting(read_spec(phi)) == {"rotate_and_store", "draw"}
    assert "attend" not in fitting(read_spec(Qwen2ForCausalLM(small(Qwen2Config))))


def test_a_decoder_on_kernels_gives_the_greedy_tokens_of_the_model(one_spec: DecoderSpec) -> None:
    if COMPILER is None:
        pytest.skip("g++ runs the kernels on the CPU")
    torch.manual_seed(1)
    model = qwen3().eval()
    spec, weights = read_spec(model), SharedWeights(model)
    emulated = EmulatedKernels(kernel_macros(spec, stream=torch.float32, compute=torch.float32))
    memory = SlotMemory(num_slots=3, capacity=32)
    forward = OwnForward(
        spec,
        memory,
        projection=weights.projection,
        head=weights.projection((spec.head,)),
        compute_dtype=torch.float32,
        ops=FusedOps(spec, emulated, FUSED),
    )
    decoder = SlotDecoder(forward, memory, device=torch.device("cpu"), num_valid_tokens=None, draw=FusedDraw(emulated))
    prompts, params = PROMPTS[:3], SamplingParams(max_new_tokens=4, temperature=0.0)
    with torch.no_grad():
        decoder.prefill([prompt[:-1] for prompt in prompts[:2]], [[0], [1]])
        decoder.set_state(
            tokens=[p[-1] for p in prompts],
            positions=[len(p) - 1 for p in prompts],
            keys=range(3),
            seeds=[0] * 3,
            drawn=[0] * 3,
        )
        tokens, logprobs, _ = decoder.steps(3, count=4, length=32, params=params)
    assert set(emulated.launched) == set(FUSED) - {"norm"}
    for prompt, drawn, numbers in zip(prompts, tokens.T.tolist(), logprobs.T, strict=True):
        assert drawn == plain_generate(model, prompt, 4)
        torch.testing.assert_close(numbers, forward_logprobs(model, prompt, drawn, 1.0), atol=2e-5, rtol=0)


class Broken(EmulatedKernels):
    """One kernel does nothing."""

    def launch(self, name: str, *arguments: object) -> None:
        if name != "activate":
            super().launch(name, *arguments)


def test_kernels_are_used_that_agree_and_are_faster(one_spec: DecoderSpec, caplog: pytest.LogCaptureFixture) -> None:
    if COMPILER is None:
        pytest.skip("g++ runs the kernels on the CPU")
    size = DecodeStep(
        rows=2,
        capacity=48,
        hidden_size=192,
        inner_size=64,
        vocab_size=97,
        stream=torch.float32,
        compute=torch.float32,
        device=torch.device("cpu"),
    )
    emulated = Broken(kernel_macros(one_spec, stream=torch.float32, compute=torch.float32))
    slow_attention = iter([2.0, 1.0] * 2 + [1.0, 2.0] + [2.0, 1.0])
    with torch.no_grad():
        enabled = worth_using(one_spec, size, emulated, seconds=lambda run: next(slow_attention))
    assert enabled == {"add_norm", "rotate_and_store", "draw"}
    assert "`activate`" in caplog.text


def macro_options(group: int, head_dim: int, compute: str) -> dict[str, str | int]:
    stream = "float" if compute != "f16" else "f16"
    return {"STREAM": stream, "NORM": stream, "COMPUTE": compute, "GROUP": group, "HEAD_DIM": head_dim}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_every_kernel(architecture: str) -> None:
    try:
        nvrtc_library()
        compiled("__global__ void nothing() {}", {}, architecture=architecture)
    except KernelError as error:
        pytest.skip(str(error))
    for (group, head_dim), compute in zip(SHAPES, ("float", "b16", "f16") * 2, strict=True):
        binary = compiled(
            kernel_source("decode_kernels"), macro_options(group, head_dim, compute), architecture=architecture
        )
        assert b"add_norm" in binary and (b"attend" in binary) == (head_dim % 32 == 0)


def test_kernels_come_by_way_of_the_driver_where_nvrtc_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def kernels(*_: object, architecture: str | None = None, **__: object) -> str:
        asked.append(architecture)
        if architecture is not None:
            raise AttributeError("nvrtcGetCUBIN")
        return "by the driver"

    monkeypatch.setattr(cuda_kernels, "CudaKernels", kernels)
    device = torch.device("cpu")
    assert cuda_kernels.loaded_kernels("decode_kernels", {}, device=device, architecture="sm_61") == "by the driver"
    assert asked == ["sm_61", None]


@pytest.mark.parametrize("architecture", ["sm_61", None])
def test_a_missing_driver_is_an_error_of_the_kernels(architecture: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object, **__: object) -> None:
        raise OSError("libcuda.so.1: cannot open")

    monkeypatch.setattr(cuda_kernels, "CudaKernels", no_driver)
    with pytest.raises(KernelError, match=r"libcuda\.so\.1"):
        cuda_kernels.loaded_kernels("decode_kernels", {}, device=torch.device("cpu"), architecture=architecture)


def test_an_error_in_a_source_is_told_with_the_compilers_words() -> None:
    try:
        nvrtc_library()
    except KernelError as error:
        pytest.skip(str(error))
    with pytest.raises(KernelError, match="undefined_name"):
        compiled("__global__ void wrong() { undefined_name(); }", {}, architecture="sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles_every_kernel(architecture: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    if architecture.replace("sm", "compute") not in known:
        pytest.skip(f"this nvcc does not know {architecture}")
    for (group, head_dim), compute in zip(SHAPES, ("float", "b16", "f16") * 2, strict=True):
        macros = [f"-D{name}={value}" for name, value in macro_options(group, head_dim, compute).items()]
        command = [nvcc, f"-arch={architecture}", "-Werror", "all-warnings", "-cubin", *macros]
        subprocess.run(
            [*command, "-o", str(tmp_path / "kernels.cubin"), str(write_source(tmp_path, "decode_kernels"))], check=True
        )
