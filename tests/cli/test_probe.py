"""`rlc probe` shows a machine or writes its recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_compat.cli.app import main
from rl_compat.hardware.recording import from_json, load_recording

RECORDINGS = Path(__file__).parents[1] / "recordings"


def shown(capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> tuple[str, str]:
    code = main(["probe", "--hardware", str(RECORDINGS / f"{name}.json"), *arguments])
    captured = capsys.readouterr()
    assert code == 0
    return captured.out, captured.err


def test_a_p40_is_shown_with_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "p40")
    assert "Tesla P40" in out
    assert "22.4 GiB / 22.5 GiB" in out
    assert "emulated only" in out
    assert "535.274.02, runs CUDA up to 12.2, proprietary kernel module" in out
    assert "2.14.1+cu126, CUDA 12.6, sees the GPU, code for sm_50 sm_60" in out
    assert err == ""


def test_json_is_the_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    out, err = shown(capsys, "h200", "--json", "--output", str(path))
    assert from_json(json.loads(out)) == load_recording(path) == load_recording(RECORDINGS / "h200.json")
    assert str(path) in err


def test_the_order_of_a_mixed_machine_is_cudas_and_the_difference_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A-ENV-05."""
    out, err = shown(capsys, "mixed_t400_rtx4090")
    assert out.index("NVIDIA GeForce RTX 4090") < out.index("NVIDIA T400 4GB")
    assert "warning: nvidia-smi numbers the GPUs differently" in err


def test_wsl_without_nvml_shows_the_gpu_and_unknown_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """A-ENV-06."""
    out, _ = shown(capsys, "wsl_rtx3070")
    row = next(line for line in out.splitlines() if "RTX 3070" in line)
    assert "unknown" in row
    assert "WSL" in out


def test_somebody_elses_process_is_shown_with_pid_and_amount(capsys: pytest.CaptureFixture[str]) -> None:
    """A-ENV-14."""
    out, _ = shown(capsys, "rtx3090_shared")
    assert "3.0 GiB / 24.0 GiB" in out
    assert "4321 (20.5 GiB)" in out


def test_a_machine_without_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A-ENV-15."""
    out, _ = shown(capsys, "laptop_no_gpu")
    assert "none that CUDA programs can use" in out


def test_a_library_conflict_shows_the_error_and_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    """A-ENV-13."""
    out, _ = shown(capsys, "rtx3090_library_conflict")
    assert "does not import: ImportError: libcusparse.so.12: undefined symbol" in out
    assert "/usr/local/cuda-12.1/lib64" in out


def test_a_file_that_is_no_recording_is_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["probe", "--hardware", str(path)]) == 2
    assert "a recording is an object" in capsys.readouterr().err
