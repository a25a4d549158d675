"""Pieces of vLLM's memory that sleeps are mapped when they are freed, whatever happened to them before."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from rl_compat.rollout.vllm.shutdown import Pools

Handle = tuple[int, int, int, int]


@dataclass
class Piece:
    handle: Handle
    tag: str


class SmallAllocator:
    """What vLLM's does with its two callbacks, over pieces that are only counted. 0.24 does not know what sleeps."""

    def __init__(self) -> None:
        self.pointer_to_data: dict[int, Piece] = {}
        self.allocator_and_pools: dict[str, object] = {}
        self.mapped: set[int] = set()
        self.current_tag = "weights"
        self.python_malloc_callback = self._malloc
        self.python_free_callback = self._free

    def _malloc(self, handle: Handle) -> None:
        self.pointer_to_data[handle[2]] = Piece(handle, self.current_tag)

    def _free(self, pointer: int) -> Handle:
        return self.pointer_to_data.pop(pointer).handle

    def sleep(self) -> None:
        self.mapped.clear()

    def trim(self, pointer: int) -> None:
        self._free(pointer)
        self.mapped.remove(pointer)

    def allocate(self, pointer: int, tag: str) -> None:
        """As the C part does."""
        self.current_tag = tag
        self.python_malloc_callback((0, 2**21, pointer, 900 + pointer))
        self.mapped.add(pointer)

    def release(self, pointer: int) -> None:
        """As the C part does: it unmaps what the callback hands it."""
        _, _, place, _ = self.python_free_callback(pointer)
        self.mapped.remove(place)


@pytest.fixture
def allocator() -> SmallAllocator:
    return SmallAllocator()


@pytest.fixture
def pools(allocator: SmallAllocator) -> Pools:
    def create_and_map(handle: Handle) -> None:
        if handle[2] in allocator.mapped:
            raise RuntimeError("CUDA Error: invalid argument")
        allocator.mapped.add(handle[2])

    owner = SimpleNamespace(get_instance=lambda: allocator)
    pools = Pools(SimpleNamespace(CuMemAllocator=owner, create_and_map=create_and_map))
    allocator.allocate(10, "weights")
    allocator.allocate(20, "kv_cache")
    return pools


def test_what_is_awake_is_freed_as_ever(pools: Pools, allocator: SmallAllocator) -> None:
    allocator.release(10)
    assert (allocator.mapped, list(allocator.pointer_to_data)) == ({20}, [20])


def test_what_sleeps_is_mapped_to_be_freed(pools: Pools, allocator: SmallAllocator) -> None:
    allocator.sleep()
    pools.asleep |= {"weights", "kv_cache"}
    for pointer in (10, 20):
        allocator.release(pointer)
    assert (allocator.mapped, allocator.pointer_to_data) == (set(), {})


def test_what_has_woken_is_not_mapped_twice(pools: Pools, allocator: SmallAllocator) -> None:
    allocator.sleep()
    pools.asleep |= {"kv_cache"}
    allocator.mapped.add(10)
    for pointer in (10, 20):
        allocator.release(pointer)
    assert allocator.mapped == set()


def test_what_vllm_trimmed_away_is_mapped_to_be_freed(pools: Pools, allocator: SmallAllocator) -> None:
    allocator.trim(10)
    allocator.release(10)
    assert (allocator.mapped, list(allocator.pointer_to_data)) == ({20}, [20])


def test_what_is_left_at_the_end_no_longer_counts_and_can_be_freed_later(
    pools: Pools, allocator: SmallAllocator, caplog: pytest.LogCaptureFixture
) -> None:
    allocator.release(10)
    pools.disown()
    assert allocator.pointer_to_data == {}
    assert "2 MiB of vLLM's memory are still in use after it has ended" in caplog.text
    allocator.release(20)
    assert allocator.mapped == set()


def test_what_is_left_asleep_can_be_freed_later_too(pools: Pools, allocator: SmallAllocator) -> None:
    allocator.sleep()
    pools.asleep |= {"weights", "kv_cache"}
    pools.disown()
    assert pools.asleep == set()
    allocator.release(20)
    assert allocator.mapped == set()


def test_pools_are_let_go_and_their_allocators_kept_in_both_shapes_that_vllm_has(
    pools: Pools, allocator: SmallAllocator
) -> None:
    allocator.allocator_and_pools = {"weights": ("pool", "first"), "kv_cache": [("pool", "second"), ("pool", "third")]}
    pools.drop()
    assert allocator.allocator_and_pools == {}
    assert pools._kept == ["first", "second", "third"]
