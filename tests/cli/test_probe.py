"""`rlc probe` shows a machine or writes its recording."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rl_compat.cli.app import main
from rl_compat.hardware.recording import from_json, load_recording, save_recording
from rl_compat.hardware.types import Endpoint, Folder, Hardware, Link, PciGpu

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


def with_facts(tmp_path: Path, machine: Hardware, capsys: pytest.CaptureFixture[str]) -> list[str]:
    path = tmp_path / "machine.json"
    save_recording(machine, path)
    assert main(["probe", "--hardware", str(path)]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_links_lanes_and_modes_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    known = load_recording(RECORDINGS / "mixed_p40_a100.json")
    devices = (
        replace(known.devices[0], pcie_width=4, pcie_width_max=16, compute_mode="prohibited"),
        *known.devices[1:],
    )
    links = (Link(first=0, second=1, kind="pcie_host_bridge", peer_access=False),)
    lines = with_facts(tmp_path, replace(known, devices=devices, links=links), capsys)
    assert any("4 of 16" in line for line in lines)
    assert "compute mode cuda:0 prohibited" in lines
    assert "links pcie host bridge without peer access: 0-1" in lines


def test_a_card_without_a_driver_is_shown_by_its_place_on_the_bus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A-ENV-15."""
    known = load_recording(RECORDINGS / "laptop_no_gpu.json")
    cards = (PciGpu(bus_id="0000:01:00.0", device_id="1b38", kernel_driver="nouveau"),)
    driver = replace(known.driver, closed_device_nodes=("/dev/nvidia0",))
    lines = with_facts(tmp_path, replace(known, pci_gpus=cards, driver=driver), capsys)
    assert "on the PCI bus 0000:01:00.0 10de:1b38, served by `nouveau`" in lines
    assert "closed to us /dev/nvidia0" in lines
    assert "NVML NVML Shared Library Not Found" in lines


def test_the_module_that_is_loaded_is_shown_when_it_is_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known = load_recording(RECORDINGS / "p40.json")
    lines = with_facts(tmp_path, replace(known, driver=replace(known.driver, module_version="470.86")), capsys)
    assert any("535.274.02, runs CUDA up to 12.2, proprietary kernel module 470.86" in line for line in lines)


def test_software_folders_and_servers_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    known = load_recording(RECORDINGS / "p40.json")
    software = replace(
        known.software,
        packages={"torch": "2.14.1+cu126", "flash-attn": "2.6.3"},
        import_errors={"flash-attn": "ImportError: undefined symbol: x"},
        executable="/usr/bin/python3",
        environment_kind="system",
        externally_managed=True,
        locations={"torch": ("/a", "/b")},
        shadowing_libraries=("/cuda/libcudart.so.12",),
        torch_seconds=2.5,
    )
    folder = Folder(role="hub_cache", path="/hf", writable=False, free_bytes=0, file_system="nfs4", error="Disk full")
    network = (
        Endpoint(role="hub", url="https://hub.example", reachable=False, error="no answer within 5 s"),
        Endpoint(role="package_index", url="https://pypi.org/simple", reachable=True, seconds=0.25),
    )
    host = replace(known.host, locale_encoding="ascii", folders=(folder,))
    lines = with_facts(tmp_path, replace(known, software=software, host=host, network=network), capsys)
    assert f"python {known.software.python}, of the system, /usr/bin/python3, pip may not install here" in lines
    assert "flash-attn 2.6.3, does not import: ImportError: undefined symbol: x" in lines
    assert "torch in /a, /b" in lines
    assert "before torch's /cuda/libcudart.so.12" in lines
    assert "encoding ascii" in lines
    assert "hub https://hub.example does not answer: no answer within 5 s" in lines
    assert "package index https://pypi.org/simple answers after 0.25 s" in lines
    assert "hub cache 0 B nfs4 no: Disk full /hf" in lines
    assert any(line.endswith("imported in 2.5 s") for line in lines)


def test_a_recordings_network_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--network", "--hardware", str(RECORDINGS / "p40.json")]) == 2
    assert "`--network`" in capsys.readouterr().err


def test_a_file_that_is_no_recording_is_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["probe", "--hardware", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
