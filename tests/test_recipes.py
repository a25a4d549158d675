"""The recipes for SLURM and Kubernetes: they parse, agree with the settings, and the commands of one run here."""

from __future__ import annotations

import os
import re
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_compat.config.load import load_config

ROOT = Path(__file__).parents[1]
SLURM = ROOT / "examples" / "slurm.sbatch"
KUBERAY = ROOT / "examples" / "kuberay.yaml"


def test_the_slurm_script_is_valid_and_names_known_settings() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True, timeout=30)
    text = SLURM.read_text()
    given = {"plan.address": "10.0.0.1:20001", "plan.num_nodes": "2", "plan.num_devices": "8"}
    assert given.keys() <= set(re.findall(r" (plan\.\w+)=", text))
    load_config(None, [f"{key}={value}" for key, value in given.items()])
    assert "#SBATCH --signal=B:USR1@" in text
    assert re.search(r"^exec rlc train", text, re.MULTILINE), "the signal reaches rlc and not the shell"


def test_the_kuberay_job_has_the_nodes_and_devices_that_its_command_asks_for() -> None:
    yaml = pytest.importorskip("yaml")
    job: dict[str, Any] = yaml.safe_load(KUBERAY.read_text())
    cluster = job["spec"]["rayClusterSpec"]
    groups = [(cluster["headGroupSpec"], 1), *((group, group["replicas"]) for group in cluster["workerGroupSpecs"])]
    limits = [
        container["resources"]["limits"] for group, _ in groups for container in group["template"]["spec"]["containers"]
    ]
    command, train, file, *settings = shlex.split(job["spec"]["entrypoint"])
    plan = load_config(None, settings).config.plan

    assert (command, train, file) == ("rlc", "train", "/runs/run.toml")
    assert plan.num_nodes == sum(count for _, count in groups)
    assert {limit["nvidia.com/gpu"] for limit in limits} == {str(plan.num_devices)}
    assert plan.address == "auto"


@pytest.mark.slow
def test_the_slurm_script_trains_with_the_commands_of_slurm_run_here(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    tools = {
        "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
        "scontrol": "echo here",
        "hostname": "echo 127.0.0.1",
        "ray": f'exec {sys.executable} -m ray.scripts.scripts "$@"',
        "rlc": f'exec {sys.executable} -m rl_compat "$@"',
    }
    for name, body in tools.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    with socket.socket() as listener:
        listener.bind(("", 0))
        job = listener.getsockname()[1]
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": "here",
        "SLURM_GPUS_ON_NODE": "2",
    }
    run = ["sums", "plan.device=cpu", "trainer.num_steps=1", f"trainer.output_dir={tmp_path / 'run'}"]
    log = tmp_path / "log"  # a pipe would stay open as long as Ray runs
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", str(SLURM), *run], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        assert process.wait(timeout=280) == 0, log.read_text()
        assert (tmp_path / "run" / "metrics.jsonl").exists()
    finally:  # SLURM ends the steps with the job
        os.killpg(process.pid, 15)
