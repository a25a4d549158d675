"""`rlc cluster` as its user meets it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_compat.cli.app import main


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLC_CACHE", str(tmp_path / "cache"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def rlc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rl_compat", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_each_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", command, "--help"]) == 0
    assert f"Example: rlc cluster {command}" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster"]) == 0
    assert "status" in capsys.readouterr().out


def test_without_ray_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["cluster", "up"]) == 2
    assert "pip install 'rl_compat[cluster]'" in capsys.readouterr().err
    assert main(["cluster", "status", "127.0.0.1:1"]) == 2
    assert "`ray`" in capsys.readouterr().err


def test_a_wrong_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    port = free_port()
    assert main(["cluster", "status", f"127.0.0.1:{port}"]) == 2
    assert f"`127.0.0.1:{port}`" in capsys.readouterr().err


def test_down_ends_nothing_that_it_did_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "cache" / "cluster.json"
    record.parent.mkdir()
    record.write_text(json.dumps({"address": "127.0.0.1:1", "pid": os.getpid(), "log": ""}))
    assert main(["cluster", "down"]) == 1
    assert "`ray stop`" in capsys.readouterr().err


def test_a_port_in_use_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert main(["cluster", "up", "--port", str(port)]) == 1
    assert f"port {port}" in capsys.readouterr().err


@pytest.fixture
def running() -> Iterator[dict[str, object]]:
    started = rlc("cluster", "up", "--port", str(free_port()), "--num-cpus", "2", "--json")
    assert started.returncode == 0, started.stderr
    yield json.loads(started.stdout)
    rlc("cluster", "down")


@pytest.mark.slow
def test_a_cluster_starts_trains_and_ends(running: dict[str, object], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    address = str(running["address"])
    assert str(running["join"]).endswith(f"ray start --address={address}")
    (node,) = json.loads(rlc("cluster", "status", "--json").stdout)["nodes"]
    assert (node["is_head"], node["is_alive"], node["cpus"], node["cpus_free"], node["gpus"]) == (True, True, 2, 2, 0)
    again = rlc("cluster", "up")
    assert again.returncode == 1
    assert address in again.stderr

    options = ["plan.device=cpu", "plan.num_devices=2", "trainer.num_steps=1", f"trainer.output_dir={tmp_path / 'run'}"]
    trained = rlc("train", "sums", f"plan.address={address}", *options)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "run" / "metrics.jsonl").exists()

    assert rlc("cluster", "down").returncode == 0
    assert rlc("cluster", "down").returncode == 1
    assert rlc("cluster", "status", address).returncode == 2
