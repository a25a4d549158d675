"""The factor of the loss under fp16."""

from __future__ import annotations

from rl_compat.training.step import LossScaler


def test_the_scale_halves_on_overflow_and_doubles_after_good_steps() -> None:
    scaler = LossScaler(enabled=True, start=1024.0, growth_interval=2)
    scales = []
    for overflowed in (True, False, False, False, True):
        scaler.update(overflowed=overflowed)
        scales.append(scaler.scale)
    assert scales == [512.0, 512.0, 1024.0, 1024.0, 512.0]


def test_switched_off_it_stays_one() -> None:
    scaler = LossScaler(enabled=False)
    scaler.update(overflowed=True)
    assert scaler.scale == 1.0


def test_its_state_round_trips() -> None:
    scaler = LossScaler(enabled=True)
    scaler.update(overflowed=True)
    scaler.update(overflowed=False)
    other = LossScaler(enabled=True)
    other.load(scaler.state())
    assert (other.scale, other.good_steps) == (scaler.scale, 1)
