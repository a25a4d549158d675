"""Hardware survives JSON, and a bad recording is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recordings.compose import RECORDINGS, p40

from rl_compat.errors import HardwareError
from rl_compat.hardware.recording import from_json, load_recording, save_recording, to_json
from rl_compat.hardware.types import (
    Device,
    Driver,
    Endpoint,
    Folder,
    Hardware,
    Host,
    Link,
    PciGpu,
    Software,
    TorchBuild,
)

FOLDER = Path(__file__).parents[1] / "recordings"


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_each_recording_is_what_the_probe_would_say_of_those_readings(name: str) -> None:
    assert load_recording(FOLDER / f"{name}.json") == RECORDINGS[name]()


def test_there_is_no_recording_without_readings() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RECORDINGS)


def test_a_saved_recording_loads_as_it_was(tmp_path: Path) -> None:
    hardware = RECORDINGS["mixed_p40_a100"]()
    save_recording(hardware, tmp_path / "machine.json")
    assert load_recording(tmp_path / "machine.json") == hardware


def test_every_fact_survives() -> None:
    hardware = complete()
    assert from_json(json.loads(json.dumps(to_json(hardware)))) == hardware


def test_a_recording_from_before_a_fact_was_read_has_its_default() -> None:
    hardware = complete()
    values = to_json(hardware)
    for record, kind in (
        (values, Hardware),
        (values["host"], Host),
        (values["software"], Software),
        (values["software"]["torch"], TorchBuild),
        (values["driver"], Driver),
        (values["devices"][0], Device),
    ):
        for name in NEW[kind]:
            del record[name]
    found = from_json(values)
    assert (found.links, found.pci_gpus, found.network, found.host.folders) == ((), None, None, ())
    assert (found.driver.device_nodes, found.software.import_errors, found.devices[0].pcie_width) == (None, {}, None)


NEW = {
    Hardware: ("links", "pci_gpus", "network"),
    Host: ("locale_encoding", "folders"),
    TorchBuild: ("cuda_error",),
    Driver: ("module_version", "device_nodes", "closed_device_nodes", "cuda_library"),
    Device: ("compute_mode", "pcie_width", "pcie_width_max", "bar1_total_bytes"),
    Software: (
        "import_errors",
        "executable",
        "environment_kind",
        "externally_managed",
        "locations",
        "shadowing_libraries",
        "torch_seconds",
    ),
}


def complete() -> Hardware:
    """A machine of which everything is known."""
    known = RECORDINGS["p40"]()
    assert known.software.torch is not None
    device = replace(
        known.devices[0], compute_mode="default", pcie_width=4, pcie_width_max=16, bar1_total_bytes=1 << 28
    )
    software = replace(
        known.software,
        torch=replace(known.software.torch, cuda_error="busy"),
        import_errors={"triton": "ImportError: no"},
        executable="/venv/bin/python",
        environment_kind="venv",
        externally_managed=True,
        locations={"torch": ("/a", "/b")},
        shadowing_libraries=("/cuda/libcudart.so.12",),
        torch_seconds=1.5,
    )
    folder = Folder(
        role="run", path="/runs", writable=False, free_bytes=0, file_system="nfs4", error="No space left on device"
    )
    return replace(
        known,
        devices=(device,),
        links=(Link(first=0, second=1, kind="nvlink", peer_access=True),),
        pci_gpus=(PciGpu(bus_id="0000:01:00.0", device_id="1b38", kernel_driver="nvidia"),),
        driver=replace(
            known.driver,
            module_version="535.274.02",
            device_nodes=("/dev/nvidia0",),
            closed_device_nodes=("/dev/nvidia1",),
            cuda_library="/usr/lib64/libcuda.so.1",
        ),
        host=replace(known.host, locale_encoding="utf-8", folders=(folder,)),
        software=software,
        network=(Endpoint(role="hub", url="https://hub.example", reachable=True, seconds=0.1),),
    )


def broken(**changes: Any) -> dict[str, Any]:
    return {**to_json(RECORDINGS["p40"]()), **changes}


def with_device(**changes: Any) -> dict[str, Any]:
    values = to_json(RECORDINGS["p40"]())
    values["devices"][0].update(changes)
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "`None`"),
        ({}, "`None`"),
        (broken(schema=99), "`99`"),
        (broken(device=[]), "`hardware.device`"),
        (with_device(memory_free_bytes="22 GiB"), '`hardware.devices[0].memory_free_bytes` is `"22 GiB"`'),
        (with_device(compute_capability=[6]), "`hardware.devices[0].compute_capability[1]`"),
        (with_device(memory_free_bytes=1 << 50), str(1 << 50)),
        (with_device(bf16_native="no"), '`hardware.devices[0].bf16_native` is `"no"`'),
        (with_device(index=True), "`hardware.devices[0].index` is `true`"),
        ({"schema": 1, "devices": []}, "`hardware.host`"),
    ],
)
def test_a_wrong_recording_names_what_is_wrong(values: Any, message: str) -> None:
    with pytest.raises(HardwareError) as caught:
        from_json(values)
    assert message in caught.value.message


def test_a_misspelled_field_names_the_nearest() -> None:
    with pytest.raises(HardwareError) as caught:
        from_json(broken(device=[]))
    assert caught.value.hint == "did you mean `devices`"


def test_devices_out_of_order_are_refused() -> None:
    hardware = RECORDINGS["mixed_p40_a100"]()
    swapped = replace(hardware, devices=hardware.devices[::-1])
    with pytest.raises(HardwareError, match=r"\[1, 0\]"):
        from_json(to_json(swapped))


def test_a_missing_file_and_text_that_is_no_json_name_the_file(tmp_path: Path) -> None:
    text = tmp_path / "text.json"
    text.write_text("Tesla P40")
    for path in (tmp_path / "none.json", text, tmp_path):
        with pytest.raises(HardwareError) as caught:
            load_recording(path)
        assert f"`{path}`" in caught.value.message


def test_a_wrong_recording_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(broken(schema=0)))
    with pytest.raises(HardwareError, match="`0`") as caught:
        load_recording(path)
    assert f"`{path}`" in caught.value.message


def test_a_folder_that_does_not_exist_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "no" / "file.json"
    with pytest.raises(HardwareError) as caught:
        save_recording(RECORDINGS["p40"](), path)
    assert f"`{path}`" in caught.value.message


def test_the_composed_p40_has_what_ecc_leaves() -> None:
    assert p40().memory_total_bytes == 23040 * 1024**2
