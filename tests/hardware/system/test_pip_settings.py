"""Where pip would look for packages."""

from __future__ import annotations

import os
from pathlib import Path

from rl_compat.hardware.system.network import pip_files, read_pip_settings


def conf(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_later_files_and_the_install_section_win_and_variables_go_before_all(tmp_path: Path) -> None:
    machine = conf(tmp_path / "a", "[global]\nindex_url = https://one/simple\nno-index = true\n")
    user = conf(tmp_path / "b", "[install]\nindex-url = https://two/%(x)s\n[global]\nindex-url = https://three\n")
    files = [machine, user, tmp_path / "missing"]
    assert read_pip_settings({}, files=files) == {"index-url": "https://two/%(x)s", "no-index": "true"}
    assert read_pip_settings({"PIP_INDEX_URL": "https://four"}, files=files)["index-url"] == "https://four"


def test_a_file_that_is_no_settings_file_counts_for_nothing(tmp_path: Path) -> None:
    bad = conf(tmp_path / "bad", "index-url = https://one\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe[global]")
    assert read_pip_settings({}, files=[bad, binary, tmp_path]) == {}


def test_the_usual_files_and_the_named_one_are_read(tmp_path: Path) -> None:
    named = conf(tmp_path / "pip.ini", "[global]\nindex-url = https://named\n")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_CONFIG_FILE": str(named)}
    assert read_pip_settings(environment)["index-url"] == "https://named"
    assert tmp_path / ".config/pip/pip.conf" in pip_files(environment)
    assert pip_files({"PIP_CONFIG_FILE": os.devnull}) == []
