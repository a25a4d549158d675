"""`rlc profiles` as its user meets it."""

from __future__ import annotations

import json

import pytest

from rl_compat.cli.app import main

NAMES = ["cpu", "maxwell", "pascal", "volta", "turing", "turing16", "ampere", "ada", "hopper", "blackwell"]


def test_all_profiles_are_listed_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.split() and line.split()[0] in NAMES] == NAMES


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "--json"]) == 0

    assert [profile["name"] for profile in json.loads(capsys.readouterr().out)] == NAMES


def test_one_profile_is_shown_with_reasons_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "pascal"]) == 0

    text = capsys.readouterr().out
    assert text.startswith("pascal: Compute capability 6.0 to 6.2")
    assert "compute_dtype" in text and "1/64" in text
    assert "max_tokens_per_micro_batch" in text


def test_one_profile_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "turing16", "--json"]) == 0

    profile = json.loads(capsys.readouterr().out)
    assert profile["match"] == {
        "device": "cuda",
        "min_capability": "7.5",
        "max_capability": "7.5",
        "tensor_cores": False,
    }


def test_an_unknown_profile_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "pascl"]) == 2

    assert capsys.readouterr().err == "error: there is no profile `pascl`\nhint: did you mean `pascal`\n"
