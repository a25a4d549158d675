"""What a run decides before it starts."""

from __future__ import annotations

import pytest

from rl_compat.planning.types import PhaseBudget, PoolPlan
from rl_compat.trainer.recipe import place_of_copies


def _pool(device: str, *, peak: int, available: int, host_bytes: int = 0) -> PoolPlan:
    return PoolPlan(
        devices=(device,),
        device_name=device,
        profile="pascal",
        budgets=(
            PhaseBudget(phase="rollout", items={"actor weights": 5}),
            PhaseBudget(phase="actor_update", items={"actor weights": 5, "gradients": peak - 5}),
        ),
        memory_available_bytes=available,
        host_bytes=host_bytes,
    )


@pytest.mark.parametrize(
    ("device", "available", "host_in_use", "place"),
    [
        ("cuda:0", 40, 0, "device"),
        ("cuda:0", 39, 0, "host"),
        ("cuda:0", 39, 90, "host"),
        ("cuda:0", 39, 91, None),
        ("cpu", 1000, 20, "host"),
        ("cpu", 1000, 91, None),
    ],
)
def test_a_copy_of_ten_bytes_goes_where_the_plan_leaves_room(
    device: str, available: int, host_in_use: int, place: str | None
) -> None:
    pool = _pool(device, peak=20, available=available, host_bytes=host_in_use)
    assert place_of_copies([pool], size=10, host_bytes=100) == place


def test_every_pool_must_have_room_for_a_copy_on_its_device() -> None:
    pools = [_pool("cuda:0", peak=20, available=40), _pool("cuda:1", peak=20, available=30)]
    assert place_of_copies(pools, size=10, host_bytes=100) == "host"
