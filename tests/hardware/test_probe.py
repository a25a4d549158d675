"""The probe on the machine that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rl_compat.hardware.probe import probe
from rl_compat.hardware.recording import from_json, to_json


def test_this_machine_is_described_and_survives_json(tmp_path: Path) -> None:
    """A-ENV-15: also without any GPU."""
    import torch

    hardware = probe(folder=tmp_path)
    assert hardware.host.num_cores >= 1
    assert hardware.host.disk_free_bytes is not None
    assert hardware.software.torch is not None
    assert hardware.software.torch.version == hardware.software.packages["torch"] == str(torch.__version__)
    assert hardware.software.torch.cuda_available == torch.cuda.is_available()
    assert from_json(to_json(hardware)) == hardware


def test_torch_can_be_left_alone(tmp_path: Path) -> None:
    hardware = probe(torch_timeout_seconds=None, folder=tmp_path)
    assert hardware.software.torch is None
    assert hardware.software.torch_error is None
    assert "torch" in hardware.software.packages


def test_a_torch_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    """A-ENV-13: the probe does not crash and keeps what it knows."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcusparse.so.12: undefined symbol: __nvJitLink')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": "/usr/local/cuda-12.1/lib64"}
    hardware = probe(environment=environment)
    assert hardware.software.torch is None
    assert hardware.software.torch_error == "ImportError: libcusparse.so.12: undefined symbol: __nvJitLink"
    assert hardware.environment["LD_LIBRARY_PATH"] == "/usr/local/cuda-12.1/lib64"
    assert "torch could not be looked at" in hardware.warnings[-1]


def test_the_probe_does_not_import_torch_in_its_own_process(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('imported')\n")
    program = "import sys; from rl_compat.hardware.probe import probe; print(probe().software.torch_error)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ImportError: imported"


def test_variables_that_do_not_matter_are_not_recorded() -> None:
    hardware = probe(environment={"SECRET": "x", "CUDA_VISIBLE_DEVICES": ""}, torch_timeout_seconds=None)
    assert hardware.environment == {"CUDA_VISIBLE_DEVICES": ""}
