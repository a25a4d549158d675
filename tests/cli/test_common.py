"""Settings and hardware from the arguments of a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.facts import facts

from rl_compat.cli.common import is_file_argument, load_hardware, read_settings
from rl_compat.errors import UsageError
from rl_compat.hardware.recording import save_recording
from rl_compat.hardware.types import Hardware, Host, Software

HOST = Host(
    platform="Linux",
    kernel="6.1",
    cpu_name="cpu",
    num_cores=2,
    ram_total_bytes=2**34,
    ram_limit_bytes=2**34,
    ram_available_bytes=2**33,
)


def test_a_file_may_stand_anywhere_among_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[trainer]\nnum_steps = 5\n", encoding="utf-8")

    config = read_settings(["trainer.seed=3", str(path)]).config

    assert (config.trainer.num_steps, config.trainer.seed) == (5, 3)


@pytest.mark.parametrize("arguments", [[], ["trainer.num_steps=5"]])
def test_the_first_line_names_the_built_in_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert read_settings(arguments).report == ()
    (line,) = capsys.readouterr().err.splitlines()
    assert facts(line) == {"gsm8k", *(argument.partition("=")[0] for argument in arguments)}


@pytest.mark.parametrize(
    ("text", "is_file"),
    [
        ("run.toml", True),
        ("a/run", True),
        ("~/run.toml", True),
        ("a.b=c.toml", False),
        ("~a.b", False),
        ("trainer.seed", False),
    ],
)
def test_files_and_settings_are_told_apart(text: str, is_file: bool) -> None:
    assert is_file_argument(text) is is_file


def test_keys_of_verl_are_reported_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    read_settings(["data.train_batch_size=4", "algorithm.kl_ctrl.kl_coef=0.1"])

    shown = capsys.readouterr()
    assert shown.out == ""
    rows = [line.split() for line in shown.err.splitlines()]
    assert ["data.train_batch_size", "4", "honoured", "trainer.batch_size", "prompts"] in rows
    assert any(line.startswith("warning: `algorithm.kl_ctrl.kl_coef=0.1`") for line in shown.err.splitlines())


def test_a_setting_without_effect_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    read_settings(["model.lora_alpha=32"])

    _, line = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert {"model.lora_alpha=32.0", "model.lora_rank"} <= facts(line)


def test_a_recording_stands_for_the_machine(tmp_path: Path) -> None:
    hardware = Hardware(devices=(), host=HOST, software=Software(python="3.11"))
    save_recording(hardware, tmp_path / "machine.json")

    assert load_hardware(tmp_path / "machine.json").host == HOST


def test_another_card_is_put_into_the_machine(tmp_path: Path) -> None:
    save_recording(Hardware(devices=(), host=HOST, software=Software(python="3.11")), tmp_path / "machine.json")

    hardware = load_hardware(tmp_path / "machine.json", "Tesla P40")

    assert hardware.emulated == "Tesla P40"
    assert hardware.devices[0].compute_capability == (6, 1)


def test_a_missing_recording_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load_hardware(tmp_path / "nowhere.json")
    assert "nowhere.json" in error.value.message
