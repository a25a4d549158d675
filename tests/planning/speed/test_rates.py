"""Rates of links come from the facts of a machine, or are unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machines import A100, machine, recorded

from rl_compat.planning.speed.rates import UNKNOWN_NETWORK, card_rate, link_between, link_within, network_link, slower


@pytest.mark.parametrize(
    ("recording", "name", "gigabytes"),
    [
        ("h100_eight", "NVLink", 337.5),
        ("v100_four_nvlink", "NVLink", 112.5),
        ("p40_two", "PCIe x16", 11.82),
        ("rtx4090_two", "PCIe x16 through host memory", 11.814),
    ],
)
def test_the_slowest_link_of_a_pool_counts(recording: str, name: str, gigabytes: float) -> None:
    link = link_within(recorded(recording))

    assert (link.name, link.bytes_per_second) == (name, pytest.approx(gigabytes * 1e9))


def test_one_pair_without_nvlink_makes_the_pool_slow() -> None:
    four = recorded("v100_four_nvlink")
    links = tuple(replace(link, kind="system") if {link.first, link.second} == {0, 3} else link for link in four.links)

    assert link_within(replace(four, links=links)).name == "PCIe x16"
    assert link_within(replace(four, links=links, devices=four.devices[:3])).name == "NVLink"


def test_a_link_that_is_not_recorded_has_no_rate() -> None:
    link = link_within(machine(A100, A100))

    assert link.bytes_per_second is None and link.seconds(10) is None
    assert slower(link, link_within(recorded("p40_two"))) is link


def test_the_rate_of_processes_on_a_cpu_was_measured() -> None:
    assert link_within(machine()).bytes_per_second == 0.16e9


def test_pools_of_different_cards_are_linked_by_the_slower_card() -> None:
    mixed = recorded("mixed_p40_a100")
    first, second = (replace(mixed, devices=(device,)) for device in mixed.devices)

    assert link_between(first, second).bytes_per_second == pytest.approx(16 * 0.985e9 * 0.75 / 2)
    assert link_between(first, machine()).bytes_per_second is None


def test_a_network_has_the_rate_that_is_given() -> None:
    assert network_link(400).bytes_per_second == pytest.approx(400e9 / 8 * 0.75)
    assert UNKNOWN_NETWORK.bytes_per_second is None


def test_a_card_without_a_dtype_has_no_rate_in_it() -> None:
    p40 = card_rate(recorded("p40"), "fp32")

    assert p40 is not None and p40.flops == pytest.approx(0.4 * 11.76e12)
    assert card_rate(recorded("p40"), "bf16") is None
    assert card_rate(machine(), "fp32") is None
