"""Cards and driver as nvidia-smi prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_compat.hardware.smi import Card, detect, only_visible, parse_smi

TWO = """NVIDIA T400 4GB, 7.5, 580.95.05, GPU-11111111-2222-3333-4444-555555555555
NVIDIA GeForce RTX 4090, 8.9, 580.95.05, GPU-21111111-2222-3333-4444-555555555555
"""


def names(text: str, **environment: str) -> list[str]:
    return [card.name for card in only_visible(parse_smi(text), environment).cards]


def test_lines_become_cards_and_a_driver() -> None:
    found = parse_smi(TWO)
    assert found.driver_version == "580.95.05"
    assert found.cards[1] == Card(
        name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), uuid="GPU-21111111-2222-3333-4444-555555555555"
    )


def test_a_driver_that_does_not_know_the_capability_is_helped_by_the_catalogue() -> None:
    found = parse_smi("Tesla P40,, 470.86, GPU-1\nTesla K80, [N/A], 470.86, GPU-2\n")
    assert [card.compute_capability for card in found.cards] == [(6, 1), (3, 7)]


def test_an_unknown_card_of_an_old_driver_is_left_out_and_said() -> None:
    found = parse_smi("Mystery 9000,, 470.86, GPU-1\n")
    assert found.cards == ()
    assert "`Mystery 9000` is not in the catalogue" in found.notes[0]


def test_text_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="No devices were found"):
        parse_smi("No devices were found\n")


def test_hidden_cards_do_not_count() -> None:
    """A-ENV-04."""
    assert names(TWO) == ["NVIDIA T400 4GB", "NVIDIA GeForce RTX 4090"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="GPU-3") == []
    assert names(TWO, CUDA_VISIBLE_DEVICES="GPU-2111") == ["NVIDIA GeForce RTX 4090"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="0") == ["NVIDIA GeForce RTX 4090"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["NVIDIA T400 4GB"]
    assert names(TWO, CUDA_VISIBLE_DEVICES="") == []


def test_a_mig_slice_counts_with_the_cards_it_may_be_of() -> None:
    text = "NVIDIA H100 80GB HBM3, 9.0, 580.95.05, GPU-1\n"
    assert names(text, CUDA_VISIBLE_DEVICES="MIG-1234") == ["NVIDIA H100 80GB HBM3"]


OLD_SMI = """#!/bin/sh
case "$1" in
  *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
  *) echo "Tesla P40, 470.86, GPU-11111111-2222-3333-4444-555555555555" ;;
esac
"""


def test_an_nvidia_smi_without_the_field_is_asked_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(OLD_SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = detect({})
    assert (found.cards[0].compute_capability, found.driver_version) == ((6, 1), "470.86")
