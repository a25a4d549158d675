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


def broken(**changes: Any) -> dict[str, Any]:
    return {**to_json(RECORDINGS["p40"]()), **changes}


def with_device(**changes: Any) -> dict[str, Any]:
    values = to_json(RECORDINGS["p40"]())
    values["devices"][0].update(changes)
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "a recording is an object"),
        ({}, "schema `None`"),
        (broken(schema=99), "schema `99`, this version reads 1"),
        (broken(device=[]), "`hardware.device` is not a known field"),
        (with_device(memory_free_bytes="22 GiB"), "`hardware.devices[0].memory_free_bytes` is text"),
        (with_device(compute_capability=[6]), "`hardware.devices[0].compute_capability` has 1 entries instead of 2"),
        (with_device(memory_free_bytes=1 << 50), "bytes free of"),
        (with_device(bf16_native="no"), "`hardware.devices[0].bf16_native` is text instead of true or false"),
        (with_device(index=True), "instead of a whole number"),
        ({"schema": 1, "devices": []}, "`hardware` lacks `host`, `software`"),
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
    with pytest.raises(HardwareError, match="numbered"):
        from_json(to_json(swapped))


def test_a_missing_file_and_text_that_is_no_json_name_the_file(tmp_path: Path) -> None:
    text = tmp_path / "text.json"
    text.write_text("Tesla P40")
    for path, message in ((tmp_path / "none.json", "cannot read"), (text, "is not JSON"), (tmp_path, "cannot read")):
        with pytest.raises(HardwareError) as caught:
            load_recording(path)
        assert str(path) in caught.value.message
        assert message in caught.value.message


def test_a_wrong_recording_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(broken(schema=0)))
    with pytest.raises(HardwareError, match=r"old\.json`: the recording has schema `0`"):
        load_recording(path)


def test_a_folder_that_does_not_exist_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="cannot write"):
        save_recording(RECORDINGS["p40"](), tmp_path / "no" / "file.json")


def test_the_composed_p40_has_what_ecc_leaves() -> None:
    assert p40().memory_total_bytes == 23040 * 1024**2
