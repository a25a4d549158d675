from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.gguf import save_gguf

from rl_compat.cli.app import run_command
from rl_compat.errors import ModelError
from rl_compat.models.files.registry import BUILTIN, PACKAGED


def run(*arguments: str) -> int:
    return run_command("rl_compat.cli.models", list(arguments), "rlc models")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_list_shows_size_licence_and_whether_a_model_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    tiny = next(line for line in lines if line.split()[:1] == ["tiny"])
    small = next(line for line in lines if "SmolLM2-135M-Instruct" in line)
    assert "built in" in tiny
    assert "88.6 MiB to download" in small
    assert "Apache-2.0" in small
    assert any("dequantized" in line for line in lines)


def test_the_list_as_json_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    run("--json")
    known = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in known] == [model.name for model in (*BUILTIN, *PACKAGED)]
    assert known[0]["folder"] == str(BUILTIN[0].folder)
    assert (known[1]["folder"], known[1]["download_bytes"]) == (None, 92_871_040)


def test_path_prints_the_folder_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run("path", "tiny")
    assert capsys.readouterr().out == f"{BUILTIN[0].folder}\n"


def test_path_downloads_nothing(cache: Path) -> None:
    with pytest.raises(ModelError) as error:
        run("path", "smollm2-135m")
    assert "smollm2-135m" in error.value.message
    assert not cache.exists()


def test_get_converts_and_answers_in_json_on_stdout(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_gguf(tmp_path / "small.gguf", quantized=True)
    capsys.readouterr()
    assert run("get", str(tmp_path / "small.gguf"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["name"]) == ("gguf", "small")
    assert Path(found["folder"]).is_relative_to(cache)
    assert "dequantized" in found["notes"][0]


def test_get_of_a_misspelled_name_is_a_usage_error() -> None:
    with pytest.raises(ModelError) as error:
        run("get", "tinny")
    assert "`tinny`" in error.value.message
    assert "`tiny`" in (error.value.hint or "")
    assert error.value.exit_code == 2
