"""The report as JSON: its keys are a promise."""

from __future__ import annotations

import json

import pytest
from fakes.doctor import RECORDINGS, ROOT, check, finding, remedy

from rl_compat.doctor.command import run
from rl_compat.doctor.findings import Certainty, Severity, Step
from rl_compat.hardware.recording import from_json

CHECKS = (
    check("fine", finding("fine.x", Severity.OK)),
    check(
        "broken",
        finding("broken.x", Severity.FAILURE, remedy(Step.TORCH, "pip install A", certainty=Certainty.UNCERTAIN)),
    ),
)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> dict:
    assert run(["--hardware", str(RECORDINGS / "rtx4090.json"), "--json"], "doctor", CHECKS) == 1
    return json.loads(capsys.readouterr().out)


def test_the_keys_of_the_schema(shown: dict) -> None:
    assert shown["schema"] == "rlc.doctor/2"
    assert list(shown) == [
        "schema",
        "version",
        "exit_code",
        "seconds",
        "torch_seconds",
        "verdict",
        "once_fixed",
        "counts",
        "findings",
        "checks",
        "commands",
        "hardware",
    ]
    verdict = ["works", "problem", "device", "profile", "summary", "torch", "visible", "methods"]
    assert list(shown["verdict"]) == list(shown["once_fixed"]) == verdict
    assert list(shown["verdict"]["methods"][0]) == [
        "method",
        "settings",
        "model",
        "parameters",
        "peak_bytes",
        "available_bytes",
        "host_bytes",
        "compute_dtype",
        "rollout_engine",
        "rollout_dtype",
        "micro_batch_tokens",
        "problem",
    ]
    assert list(shown["findings"][0]) == ["id", "severity", "what", "why", "where", "affects", "remedies"]
    assert list(shown["findings"][0]["remedies"][0]) == ["what", "step", "commands", "certainty"]
    assert list(shown["checks"][0]) == ["id", "question", "severity", "findings", "seconds", "skipped"]


def test_every_key_of_the_schema_is_documented(shown: dict) -> None:
    documented = (ROOT / "docs" / "doctor.md").read_text()

    keys = {*shown, *shown["verdict"], *shown["verdict"]["methods"][0], *shown["checks"][0], *shown["findings"][0]}
    assert [key for key in sorted(keys) if key not in documented] == []


def test_the_values_are_names_and_numbers(shown: dict) -> None:
    worst = shown["findings"][0]

    assert (worst["id"], worst["severity"], shown["exit_code"]) == ("broken.x", "failure", 1)
    assert worst["remedies"][0] == {
        "what": "fix it",
        "step": "torch",
        "commands": ["pip install A"],
        "certainty": "uncertain",
    }
    assert shown["counts"] == {"ok": 1, "note": 0, "warning": 0, "failure": 1}
    assert shown["verdict"]["problem"] == "the fact of broken.x"
    assert shown["once_fixed"]["works"] is True
    assert shown["once_fixed"]["methods"][0]["peak_bytes"] > 2**30
    assert shown["commands"][1:] == ["pip install A"] and shown["commands"][0].startswith("# fix it; ")


def test_the_hardware_in_it_is_a_recording(shown: dict) -> None:
    recorded = json.loads((RECORDINGS / "rtx4090.json").read_text())

    assert from_json(shown["hardware"]) == from_json(recorded)
