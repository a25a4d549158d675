"""Writes the recordings in this folder: readings of the sources, joined by the probe's own code.

The H200's GPU facts were measured; the others are composed of the catalogue and of what public reports of such
machines show. Run as `python -m recordings.compose` in the folder above.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recordings import cards, drivers, groups, software, surroundings
from recordings.parts import cuda_device, host, nvml_device, p40

from rl_compat.hardware.recording import save_recording
from rl_compat.hardware.types import Hardware

__all__ = ["RECORDINGS", "cuda_device", "host", "nvml_device", "p40"]

RECORDINGS: dict[str, Callable[[], Hardware]] = {
    **cards.RECORDINGS,
    **groups.RECORDINGS,
    **surroundings.RECORDINGS,
    **drivers.RECORDINGS,
    **software.RECORDINGS,
}


def main() -> None:
    for name, compose in RECORDINGS.items():
        save_recording(compose(), Path(__file__).with_name(f"{name}.json"))


if __name__ == "__main__":
    main()
