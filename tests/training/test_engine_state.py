"""Saving and resuming an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.engines import causal_lm, random_batch, role_plan, token_mean_loss, value_mean_loss, value_model
from fakes.models import save_random_model
from fakes.part_settings import lora_of
from safetensors.torch import load_file

from rl_compat.errors import CheckpointError, DamagedCheckpointError, RLCompatError
from rl_compat.models.lora import LoraSettings
from rl_compat.training.engine import PolicyEngine, ValueEngine
from rl_compat.training.optimizers import OptimizerSettings
from rl_compat.training.state import CopyPlace

SETTINGS = OptimizerSettings(lr=1e-2, schedule="cosine", warmup_steps=1, total_steps=8)


def _policy(folder: Path, *, lora: LoraSettings | None = None, settings=SETTINGS, seed=0, **plan) -> PolicyEngine:
    role = role_plan(**plan)
    torch.manual_seed(seed)
    return PolicyEngine(causal_lm(folder, role=role, lora=lora), role=role, optimizer=settings)


def _steps(engine: PolicyEngine, numbers: range) -> list[dict[str, float]]:
    return [engine.update(random_batch(seed=n), loss=token_mean_loss, temperature=1.0) for n in numbers]


@pytest.mark.parametrize("lora", [None, lora_of(rank=4)], ids=["all weights", "adapters"])
@pytest.mark.parametrize("plan", [{}, {"compute_dtype": "fp16", "loss_scaling": True}], ids=["fp32", "fp16"])
def test_resuming_gives_what_an_uninterrupted_run_gives(
    llama_folder: Path, tmp_path: Path, lora: LoraSettings | None, plan: dict
) -> None:
    """A-CKPT-02: bitwise on the CPU; two steps, save, two more in a new engine."""
    uninterrupted = _policy(llama_folder, lora=lora, **plan)
    expected = _steps(uninterrupted, range(4))
    stopped = _policy(llama_folder, lora=lora, **plan)
    _steps(stopped, range(2))
    stopped.save_state(tmp_path)
    resumed = _policy(llama_folder, lora=lora, seed=1, **plan)
    resumed.load_state(tmp_path)
    assert _steps(resumed, range(2, 4)) == expected[2:]
    for name, parameter in uninterrupted.parameters.items():
        assert torch.equal(parameter, resumed.parameters[name])


def test_a_critic_resumes_with_its_head(llama_folder: Path, tmp_path: Path) -> None:
    role = role_plan("critic")
    engines = [ValueEngine(value_model(llama_folder, role=role), role=role, optimizer=SETTINGS) for _ in range(2)]
    engines[0].update(random_batch(), loss=value_mean_loss)
    engines[0].save_state(tmp_path)
    engines[1].load_state(tmp_path)
    assert torch.equal(engines[0].values(random_batch()), engines[1].values(random_batch()))
    assert engines[1].values(random_batch()).abs().sum() > 0


def test_tied_weights_are_saved_once_and_stay_tied(llama_folder: Path, tmp_path: Path) -> None:
    """A-CKPT-05."""
    engine = _policy(llama_folder)
    _steps(engine, range(1))
    engine.save_state(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "weights.safetensors")
    resumed = _policy(llama_folder)
    resumed.load_state(tmp_path)
    assert resumed.model.lm_head.weight is resumed.model.model.embed_tokens.weight
    batch = random_batch()
    assert torch.equal(*(e.logprobs(batch, temperature=1.0).logprobs for e in (engine, resumed)))


def test_adapters_alone_are_saved_and_resume_trains_the_same_names(llama_folder: Path, tmp_path: Path) -> None:
    """A-CKPT-07."""
    engine = _policy(llama_folder, lora=lora_of(rank=4))
    _steps(engine, range(1))
    engine.save_state(tmp_path)
    resumed = _policy(llama_folder, lora=lora_of(rank=4))
    resumed.load_state(tmp_path)
    saved = load_file(tmp_path / "weights.safetensors")
    assert set(saved) == set(resumed.parameters) == set(engine.parameters)
    assert all("lora_" in name for name in saved)


def test_loading_keeps_the_tensors_that_others_share(llama_folder: Path, tmp_path: Path) -> None:
    engine = _policy(llama_folder)
    shared = engine.model.model.norm.weight.data
    before = shared.clone()
    engine.save_state(tmp_path)
    _steps(engine, range(1))
    assert not torch.equal(shared, before)
    engine.load_state(tmp_path)
    assert torch.equal(shared, before)


def test_a_changed_setting_is_not_overruled_by_the_checkpoint(llama_folder: Path, tmp_path: Path) -> None:
    """CKPTD-05"""
    engine = _policy(llama_folder)
    _steps(engine, range(2))
    engine.save_state(tmp_path)
    resumed = _policy(llama_folder, settings=OptimizerSettings(lr=5e-3, weight_decay=0.5, betas=(0.8, 0.9)))
    resumed.load_state(tmp_path)
    assert resumed.step is not None
    assert {group["weight_decay"] for group in resumed.step.optimizer.param_groups} == {0.5, 0.0}
    assert {group["betas"] for group in resumed.step.optimizer.param_groups} == {(0.8, 0.9)}
    assert _steps(resumed, range(1))[0]["lr"] == 5e-3


def test_another_total_continues_the_schedule(llama_folder: Path, tmp_path: Path) -> None:
    """A-CKPT-08: no second warm-up."""
    engine = _policy(llama_folder)
    rates = [metrics["lr"] for metrics in _steps(engine, range(4))]
    engine.save_state(tmp_path)
    longer = _policy(
        llama_folder, settings=OptimizerSettings(lr=1e-2, schedule="cosine", warmup_steps=1, total_steps=20)
    )
    longer.load_state(tmp_path)
    assert rates[-1] < _steps(longer, range(1))[0]["lr"] < 1e-2


def test_limits_found_after_an_out_of_memory_are_kept(llama_folder: Path, tmp_path: Path) -> None:
    engine = _policy(llama_folder)
    engine.limits = engine.limits.halved(5, 100)
    engine.save_state(tmp_path)
    same, replanned = _policy(llama_folder), _policy(llama_folder, micro_batch_size=3)
    same.load_state(tmp_path)
    replanned.load_state(tmp_path)
    assert same.limits == engine.limits
    assert replanned.limits.max_rows == 3


@pytest.mark.parametrize("name", ["weights.safetensors", "training.pt"])
def test_a_missing_file_is_named(llama_folder: Path, tmp_path: Path, name: str) -> None:
    """A-CKPT-01."""
    engine = _policy(llama_folder)
    engine.save_state(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DamagedCheckpointError) as stop:
        engine.load_state(tmp_path)
    assert str(tmp_path / name) in stop.value.message


def cut(content: bytes) -> bytes:
    return content[:100]


def flip(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("name", ["weights.safetensors", "training.pt"])
@pytest.mark.parametrize("damage", [cut, flip], ids=["cut", "one bit"])
def test_a_damaged_file_is_named_and_changes_nothing(
    llama_folder: Path, tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    engine = _policy(llama_folder)
    engine.save_state(tmp_path)
    _steps(engine, range(1))
    before = engine.model.model.norm.weight.clone()
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(DamagedCheckpointError) as stop:
        engine.load_state(tmp_path)
    assert name in stop.value.message and str(tmp_path) in stop.value.message
    assert torch.equal(engine.model.model.norm.weight, before)


def test_a_state_that_runs_code_when_read_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    engine = _policy(llama_folder)
    engine.save_state(tmp_path)
    torch.save({"optimizer": print, "progress": {}}, tmp_path / "training.pt")
    with pytest.raises(DamagedCheckpointError):
        engine.load_state(tmp_path)


def test_the_state_of_another_model_is_refused(llama_folder: Path, qwen2_folder: Path, tmp_path: Path) -> None:
    """CKPTD-05"""
    _policy(qwen2_folder).save_state(tmp_path)
    with pytest.raises(CheckpointError, match="k_proj"):
        _policy(llama_folder).load_state(tmp_path)


@pytest.mark.parametrize(("saved", "has", "named"), [(2, 3, "model.layers.2."), (2, 1, "model.layers.1.")])
def test_the_state_of_a_model_with_other_layers_is_refused_with_the_first_one(
    saved: int, has: int, named: str, llama_folder: Path, tmp_path: Path
) -> None:
    """CKPTD-05"""
    other = save_random_model(tmp_path / "other", family="llama", num_layers=has)
    _policy(llama_folder).save_state(tmp_path)
    engine = _policy(other)
    before = engine.model.model.norm.weight.clone()
    with pytest.raises(CheckpointError) as error:
        engine.load_state(tmp_path)
    assert f"`{named}" in error.value.message
    assert torch.equal(engine.model.model.norm.weight, before)


def test_a_state_in_another_dtype_is_converted(llama_folder: Path, tmp_path: Path) -> None:
    """CKPTD-05"""
    engine, half = _policy(llama_folder), _policy(llama_folder, storage_dtype="bf16", compute_dtype="bf16", seed=1)
    _steps(engine, range(1))
    engine.save_state(tmp_path)
    half.load_state(tmp_path)
    for name, parameter in engine.parameters.items():
        assert torch.equal(half.parameters[name], parameter.to(half.parameters[name].dtype))
    assert _steps(half, range(1, 2))[0]["lr"] == _steps(engine, range(1, 2))[0]["lr"]


def test_adapters_of_another_rank_are_refused(llama_folder: Path, tmp_path: Path) -> None:
    _policy(llama_folder, lora=lora_of(rank=4)).save_state(tmp_path)
    with pytest.raises(CheckpointError, match=r"\[4, 32\].*\[8, 32\]"):
        _policy(llama_folder, lora=lora_of(rank=8)).load_state(tmp_path)


def test_the_state_of_another_optimizer_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    _policy(llama_folder).save_state(tmp_path)
    with pytest.raises(CheckpointError, match=r"`adamw`.*`adamw8bit`"):
        _policy(llama_folder, optimizer="adamw8bit").load_state(tmp_path)


def test_an_8_bit_optimizer_resumes(llama_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    engine, resumed = _policy(llama_folder, optimizer="adamw8bit"), _policy(llama_folder, optimizer="adamw8bit")
    _steps(engine, range(1))
    engine.save_state(tmp_path)
    resumed.load_state(tmp_path)
    assert _steps(engine, range(1, 3)) == _steps(resumed, range(1, 3))


def state_of(engine: PolicyEngine, folder: Path) -> dict[str, object]:
    """What a checkpoint would hold, by name."""
    engine.save_state(folder)
    training = torch.load(folder / "training.pt", weights_only=True)
    found: dict[str, object] = dict(load_file(folder / "weights.safetensors")) | training["progress"]
    for number, values in training["optimizer"]["state"].items():
        found |= {f"optimizer {number} {name}": value for name, value in values.items()}
    return found


def assert_same_state(mine: dict[str, object], others: dict[str, object]) -> None:
    assert mine.keys() == others.keys()
    for name, value in mine.items():
        other = others[name]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name  # type: ignore


@pytest.mark.parametrize("before", [0, 2], ids=["before the first step", "after two steps"])
@pytest.mark.parametrize("lora", [None, lora_of(rank=4)], ids=["all weights", "adapters"])
@pytest.mark.parametrize(
    ("plan", "place"),
    [({}, "host"), ({"compute_dtype": "fp16", "loss_scaling": True}, "device")],
    ids=["fp32 to the host", "fp16 to the device"],
)
def test_a_kept_state_comes_back_whatever_happened_since(
    llama_folder: Path,
    tmp_path: Path,
    before: int,
    lora: LoraSettings | None,
    plan: dict,
    place: CopyPlace,
    monkeypatch,
) -> None:
    monkeypatch.setattr("rl_compat.training.state.BUFFER_BYTES", 1000)
    engine = _policy(llama_folder, lora=lora, **plan)
    _steps(engine, range(before))
    engine.limits = engine.limits.halved(5, 100)
    engine.keep_state(place)
    kept = state_of(engine, tmp_path)
    _steps(engine, range(before, before + 2))
    engine.limits = engine.limits.halved(2, 50)
    engine.put_back_state()
    assert_same_state(state_of(engine, tmp_path), kept)
    following = _steps(engine, range(5, 7))
    engine.put_back_state()
    assert _steps(engine, range(5, 7)) == following


def test_buffers_of_a_kept_state_are_allocated_once(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_compat.training.state.BUFFER_BYTES", 4096)
    engine = _policy(llama_folder)
    _steps(engine, range(1))
    engine.keep_state("host")
    assert engine.step is not None
    places = _places(engine)
    size = sum(parameter.nbytes for parameter in engine.parameters.values())
    steps = 4 * len(engine.parameters)
    assert sum(size for _, size in places) == 3 * size + steps
    _steps(engine, range(1, 2))
    engine.keep_state("host")
    assert _places(engine) == places


def _places(engine: PolicyEngine) -> list[tuple[int, int]]:
    """Address and bytes of the host memory that holds the kept state."""
    assert engine.step is not None
    return [(place.data_ptr(), place.nbytes) for places in engine.step._copy._places for place in places]


def test_a_marked_state_comes_back_until_a_weight_changes(llama_folder: Path, tmp_path: Path) -> None:
    engine = _policy(llama_folder)
    _steps(engine, range(1))
    engine.mark_state()
    marked = state_of(engine, tmp_path)
    engine.limits = engine.limits.halved(2, 50)
    for parameter in engine.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    engine.put_back_state()
    assert_same_state(state_of(engine, tmp_path), marked)
    assert all(parameter.grad is None for parameter in engine.parameters.values())
    _steps(engine, range(1))
    with pytest.raises(RLCompatError) as stop:
        engine.put_back_state()
    assert "`actor`" in stop.value.message
