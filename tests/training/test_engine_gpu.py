"""What only a GPU shows: memory that offload frees, kernels that attention takes, and a real out-of-memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, random_batch, role_plan, token_mean_loss
from fakes.models import save_random_model
from torch.nn.attention import SDPBackend, sdpa_kernel

from rl_compat.training.engine import PolicyEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.state import CopyPlace

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 2 million parameters: 8 MiB in fp32."""
    return save_random_model(tmp_path_factory.mktemp("wide"), num_layers=4, hidden_size=256)


def _engine(folder: Path, **plan) -> PolicyEngine:
    role = role_plan(device=DEVICE, **plan)
    return PolicyEngine(causal_lm(folder, role=role), role=role, optimizer=OptimizerSettings(lr=1e-3))


def test_a_step_on_the_gpu_is_that_on_the_cpu(wide_folder: Path) -> None:
    role = role_plan()
    on_cpu = PolicyEngine(causal_lm(wide_folder, role=role), role=role, optimizer=OptimizerSettings(lr=1e-3))
    on_gpu = _engine(wide_folder)
    batch = random_batch()
    one, other = (engine.update(batch, loss=token_mean_loss, temperature=0.9) for engine in (on_cpu, on_gpu))
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
    assert other["skipped_steps"] == 0


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_steps_are_taken(wide_folder: Path, dtype: str) -> None:
    engine = _engine(wide_folder, compute_dtype=dtype, loss_scaling=dtype == "fp16", gradient_checkpointing=True)
    losses = [engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("plan", [{"repeat_kv": True}, {}], ids=["repeated keys", "grouped keys"])
def test_attention_needs_no_quadratic_kernel(wide_folder: Path, plan: dict) -> None:
    engine = _engine(wide_folder, compute_dtype="bf16", **plan)
    backends = [SDPBackend.EFFICIENT_ATTENTION] if plan else [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    with sdpa_kernel(backends):
        assert engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["skipped_steps"] == 0


def test_idle_weights_leave_the_device_and_come_back_to_the_same_parameters(wide_folder: Path) -> None:
    engine = _engine(wide_folder, offload_idle=True)
    batch = random_batch()
    engine.update(batch, loss=token_mean_loss, temperature=1.0)
    parameter = engine.model.model.embed_tokens.weight
    expected = engine.logprobs(batch, temperature=1.0).logprobs
    before = torch.cuda.memory_allocated(DEVICE)
    engine.offload()
    weights_bytes = sum(p.nbytes for p in engine.parameters.values())
    assert before - torch.cuda.memory_allocated(DEVICE) >= weights_bytes
    assert parameter.device.type == "cpu"
    with engine.onloaded():
        assert engine.model.model.embed_tokens.weight is engine.model.lm_head.weight is parameter
        assert torch.equal(engine.logprobs(batch, temperature=1.0).logprobs, expected)


def test_an_optimizer_on_the_host_takes_the_same_steps_and_no_device_memory(wide_folder: Path) -> None:
    plain, offloaded = _engine(wide_folder), _engine(wide_folder, offload_optimizer=True)
    for _ in range(3):  # first, since the first matrix products of a process allocate a workspace
        plain.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    before = torch.cuda.memory_allocated(DEVICE)
    for _ in range(3):
        offloaded.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    assert torch.cuda.memory_allocated(DEVICE) - before < 0.1 * sum(p.nbytes for p in offloaded.parameters.values())
    for name, parameter in plain.parameters.items():
        torch.testing.assert_close(parameter, offloaded.parameters[name], atol=1e-5, rtol=1e-4)


def test_an_offloaded_state_resumes(wide_folder: Path, tmp_path: Path) -> None:
    engine, resumed = _engine(wide_folder, offload_optimizer=True), _engine(wide_folder, offload_optimizer=True)
    engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    engine.save_state(tmp_path)
    resumed.load_state(tmp_path)
    one, other = (e.update(random_batch(seed=1), loss=token_mean_loss, temperature=1.0) for e in (engine, resumed))
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("plan", [{}, {"offload_idle": True}, {"offload_optimizer": True}], ids=str)
def test_a_kept_state_comes_back_although_steps_follow_at_once(
    wide_folder: Path, plan: dict[str, bool], place: CopyPlace
) -> None:
    """The copy is still under way when the update begins."""
    engine = _engine(wide_folder, **plan)
    with engine.onloaded():
        engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    before = {name: parameter.detach().cpu().clone() for name, parameter in engine.parameters.items()}
    for _ in range(2):
        engine.keep_state(place)
        with engine.onloaded():
            first = [engine.update(random_batch(seed=n), loss=token_mean_loss, temperature=1.0) for n in (1, 2)]
        changed = [name for name, value in before.items() if not engine.parameters[name].detach().cpu().equal(value)]
        assert len(changed) == len(before)
        engine.put_back_state()
        for name, value in before.items():
            assert engine.parameters[name].detach().cpu().equal(value), name
    with engine.onloaded():
        again = [engine.update(random_batch(seed=n), loss=token_mean_loss, temperature=1.0) for n in (1, 2)]
    assert [metrics["loss"] for metrics in again] == pytest.approx([metrics["loss"] for metrics in first], rel=1e-5)


def test_a_copy_goes_to_pinned_memory_and_is_not_waited_for(wide_folder: Path) -> None:
    engine = _engine(wide_folder)
    engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    engine.keep_state("host")
    assert engine.step is not None
    copy = engine.step._copy
    assert all(place.is_pinned() for places in copy._places for place in places)
    torch.cuda.synchronize(DEVICE)
    started, issued, done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    started.record()
    engine.keep_state("host")
    issued.record()  # on the stream of the model, which the copy does not hold up
    copy.wait()
    done.record()
    torch.cuda.synchronize(DEVICE)
    assert started.elapsed_time(issued) < started.elapsed_time(done)


def test_a_copy_that_the_device_has_no_room_for_goes_to_the_host(wide_folder: Path) -> None:
    engine = _engine(wide_folder)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved(DEVICE) / total, DEVICE)
    try:
        engine.keep_state("device")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
    assert engine.step is not None
    assert all(place.is_pinned() for places in engine.step._copy._places for place in places)


def test_a_real_out_of_memory_is_survived(wide_folder: Path) -> None:
    engine = _engine(wide_folder, micro_batch_size=64)
    batch = random_batch([(200, 400)] * 64)
    engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    room = torch.cuda.memory_reserved(DEVICE) + 512 * 1024**2
    torch.cuda.set_per_process_memory_fraction(room / total, DEVICE)
    try:
        metrics = engine.update(batch, loss=token_mean_loss, temperature=1.0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
    assert metrics["skipped_steps"] == 0
    assert engine.limits.max_rows < 64
    assert "ran out of memory" in engine.take_notes()[0]


def test_an_8_bit_optimizer_learns(wide_folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    engine = _engine(wide_folder, optimizer="adamw8bit")
    losses = [engine.update(random_batch(), loss=token_mean_loss, temperature=1.0)["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]
