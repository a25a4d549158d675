"""The order of ranks does not depend on the order in which a cluster gives its devices."""

from __future__ import annotations

import random

import pytest

from rl_compat.distributed.placement import Bundle, rank_order
from rl_compat.errors import HardwareError

GIVEN = [
    Bundle("10.0.0.10", 1),
    Bundle("10.0.0.2", 3),
    Bundle("10.0.0.10", 0),
    Bundle("10.0.0.2", 0),
    Bundle("10.0.0.2", 2),
    Bundle("10.0.0.10", 3),
    Bundle("10.0.0.2", 1),
    Bundle("10.0.0.10", 2),
]
RANKS = [*(Bundle("10.0.0.2", device) for device in range(4)), *(Bundle("10.0.0.10", device) for device in range(4))]


def test_ranks_follow_the_number_of_the_node_and_of_the_device() -> None:
    """DIST-04."""
    bundles, generator = list(GIVEN), random.Random(3)
    for _ in range(20):
        assert [bundles[position] for position in rank_order(bundles)] == RANKS
        generator.shuffle(bundles)


def test_consecutive_ranks_share_a_node() -> None:
    """DIST-04."""
    order = [GIVEN[position] for position in rank_order(GIVEN)]

    assert [order[rank].address == order[rank + 1].address for rank in (0, 2, 4, 6)] == [True] * 4
    assert [bundle.device for bundle in order] == [0, 1, 2, 3] * 2


def test_a_device_that_is_given_twice_is_refused_with_both_bundles() -> None:
    """DIST-04."""
    with pytest.raises(HardwareError) as caught:
        rank_order([*GIVEN, Bundle("10.0.0.2", 0)])

    assert all(part in caught.value.message for part in ("bundles 3 and 8", "device 0", "`10.0.0.2`"))


@pytest.mark.parametrize(
    "addresses", [["node2", "node10"], ["10.0.0.9", "fd00::2", "fd00::10"], ["10.0.0.10", "a", "b1", "b1x", "b2"]]
)
def test_names_and_addresses_of_any_kind_have_an_order(addresses: list[str]) -> None:
    bundles = [Bundle(address, 0) for address in reversed(addresses)]

    assert [bundles[position].address for position in rank_order(bundles)] == addresses
