"""The probe on the machine that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from rl_compat.hardware.probe import probe
from rl_compat.hardware.recording import from_json, to_json

ROOT = Path(__file__).parents[2]


def test_this_machine_is_described_and_survives_json(tmp_path: Path) -> None:
    """A-ENV-15: also without any GPU."""
    hardware = probe(folder=tmp_path)
    assert hardware.host.num_cores >= 1
    assert hardware.host.disk_free_bytes is not None
    assert hardware.software.torch is not None
    assert hardware.software.torch.version.startswith(version("torch"))
    assert hardware.software.packages["torch"] == version("torch")
    assert hardware.software.torch.cuda_available == any("cuda" in card.sources.values() for card in hardware.devices)
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
    assert hardware.software.torch_error in hardware.warnings[-1]


def test_the_probe_does_not_import_torch_in_its_own_process(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('imported')\n")
    program = "import sys; from rl_compat.hardware.probe import probe; print(probe().software.torch_error)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ImportError: imported"


def test_variables_that_do_not_matter_are_not_recorded() -> None:
    hardware = probe(environment={"SECRET": "x", "CUDA_VISIBLE_DEVICES": ""}, torch_timeout_seconds=None)
    assert hardware.environment == {"CUDA_VISIBLE_DEVICES": ""}


def test_without_torch_it_takes_as_long_as_starting_a_few_interpreters() -> None:
    probing = "from rl_compat.hardware.probe import probe; probe(torch_timeout_seconds=None)"
    seconds = (
        "import resource, time; used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
    )
    alone = min(float(run(f"import json, subprocess, importlib.metadata; {seconds}")) for _ in range(3))
    assert min(float(run(f"{probing}; {seconds}")) for _ in range(3)) < 15 * alone


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from rl_compat.hardware.probe import probe; "
        "found = probe(torch_timeout_seconds=None); "
        "print(found.software.packages, found.host.num_cores > 0, found.pci_gpus is None, found.warnings)"
    )
    said = run(program, "-I", "-S")
    assert said.split() == ["{}", "True", str(not Path("/sys/bus/pci/devices").is_dir()), "()"]


def test_the_network_is_looked_at_only_when_asked_for() -> None:
    offline = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    assert probe(environment=offline, torch_timeout_seconds=None).network is None
    assert probe(environment=offline, torch_timeout_seconds=None, network_timeout_seconds=1).network == ()


def test_what_cannot_be_read_is_a_warning() -> None:
    garbage = {
        "LD_LIBRARY_PATH": "/a\0b",
        "HOME": "\0",
        "TMPDIR": "\0",
        "HF_HOME": "\0",
        "RLC_CACHE": "~nobody-here/\0",
        "HF_ENDPOINT": "http://[::1",
        "CUDA_VISIBLE_DEVICES": "0,,-7,GPU-\0",
        "https_proxy": "http://[",
        "PIP_CONFIG_FILE": "\0",
    }
    found = probe(environment=garbage, torch_timeout_seconds=5, network_timeout_seconds=2)
    assert found.host.num_cores >= 1
    assert any("embedded null byte" in warning for warning in found.warnings)
    assert from_json(to_json(found)) == found


def test_a_working_directory_that_is_gone_is_no_obstacle(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        f"import os, shutil; os.chdir({str(gone)!r}); shutil.rmtree({str(gone)!r}); "
        "from rl_compat.hardware.probe import probe; found = probe(torch_timeout_seconds=None); "
        "print(found.host.folders[0].error, found.host.num_cores > 0, found.warnings)"
    )
    assert run(program).strip() == "the working directory does not exist any more True ()"


def test_a_hanging_torch_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    found = probe(environment={**os.environ, "PYTHONPATH": str(tmp_path)}, torch_timeout_seconds=1)
    assert found.software.torch_error == "no answer within 1 s"
    assert "torch" in found.software.packages


def run(program: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout
