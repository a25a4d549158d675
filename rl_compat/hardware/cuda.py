"""CUDA's view of the GPUs, through torch in a child process that may hang or crash without harm."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_compat.hardware.nvml import cuda_version_text
from rl_compat.hardware.readings import CudaDevice, TorchReading
from rl_compat.hardware.torch_child import MARK
from rl_compat.hardware.types import TorchBuild

CHILD_PROGRAM = (sys.executable, "-P", str(Path(__file__).with_name("torch_child.py")))


def read_torch(
    *,
    environment: Mapping[str, str],
    timeout_seconds: float,
    command: Sequence[str] = CHILD_PROGRAM,
) -> TorchReading:
    """What torch says in a child process; a crash, a hang or a failed import becomes an error in the reading."""
    try:
        child = subprocess.run(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return parse_child_output(text, failure=f"no answer within {timeout_seconds:g} s")
    except OSError as error:
        return TorchReading(error=f"the child process could not be started: {error}")
    return parse_child_output(child.stdout, failure=_failure(child.returncode, child.stderr))


def parse_child_output(text: str, *, failure: str | None) -> TorchReading:
    """The stages that were reached; `failure` explains the first one that was not."""
    stages = _stages(text)
    if "absent" in stages:
        return TorchReading()
    if "torch" not in stages:
        return TorchReading(error=stages.get("import_error", {}).get("error") or failure or "said nothing")
    facts, cuda = stages["torch"], stages.get("cuda")
    build = TorchBuild(
        version=facts["version"],
        cuda=facts["cuda"],
        arch_list=tuple(facts["arch_list"]),
        cuda_available=bool(cuda and cuda["available"]),
    )
    if cuda is None:
        return TorchReading(build=build, cuda_error=failure or "said nothing")
    library = stages["bitsandbytes"]["library"] if "bitsandbytes" in stages else failure
    return TorchReading(
        build=build,
        cuda_error=cuda["error"],
        driver_cuda_version=cuda_version_text(cuda["driver"]) if cuda["driver"] else None,
        devices=tuple(_device(values) for values in cuda["devices"]),
        bitsandbytes_library=library,
    )


def _stages(text: str) -> dict[str, dict[str, Any]]:
    lines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    stages: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            stage = json.loads(line)
        except json.JSONDecodeError:
            continue
        stages[stage.pop("stage")] = stage
    return stages


def _device(values: dict[str, Any]) -> CudaDevice:
    major, minor = values.pop("compute_capability")
    return CudaDevice(compute_capability=(major, minor), **values)


def _failure(returncode: int, stderr: str) -> str | None:
    if returncode == 0:
        return None
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    if returncode < 0:
        return f"killed by {_signal_name(-returncode)}{last}"
    return f"exit code {returncode}{last}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
