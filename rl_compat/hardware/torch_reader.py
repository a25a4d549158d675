"""CUDA's view of the GPUs, through torch in a child process, so that a hang or crash does no harm."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_compat.hardware.gpu.nvml import cuda_version_text
from rl_compat.hardware.gpu.readings import CudaDevice, TorchReading
from rl_compat.hardware.system.timeouts import Background, Finished, no_answer, run_program
from rl_compat.hardware.torch_child import ALWAYS, BEGIN, MARK, PATIENCE_SECONDS, PLANNED, QUICK, SLOW
from rl_compat.hardware.types import TorchBuild

CHILD_PROGRAM = (sys.executable, "-P", str(Path(__file__).with_name("torch_child.py")))
SILENCE = "said nothing"
NOTHING_FETCHED = {"HF_HUB_OFFLINE": "1"}
"bitsandbytes looks for kernels on the hub when it is imported"
IMPORT = "import "


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The answers of the child process by stage, and the stage that started without an answer."""

    answered: Mapping[str, dict[str, Any]]
    open: str | None = None


def read_torch(
    *,
    environment: Mapping[str, str],
    timeout_seconds: float,
    packages: bool = True,
    command: Sequence[str] = CHILD_PROGRAM,
) -> TorchReading:
    """What torch reports in a child process. A crash, a hang or a failed import becomes an error in the reading.

    The child also checks bitsandbytes and, with `packages`, the other packages built on torch. A second child checks
    slow ones at the same time, without `packages` only those that a plan may use. The subjects are appended to the
    command.
    """

    def run(*subjects: str) -> Finished:
        return run_program(
            [*command, *subjects], environment={**environment, **NOTHING_FETCHED}, timeout_seconds=timeout_seconds
        )

    slow_parts = Background(lambda: run(*(SLOW if packages else PLANNED)))
    try:
        child = run(*ALWAYS, *(QUICK if packages else ()))
        reading = parse_child_output(child.stdout, failure=_failure(child, timeout_seconds))
        if reading.build is None:
            return reading
        other = slow_parts.result()
    except (OSError, ValueError) as error:
        return TorchReading(error=f"the child process could not be started: {error}")
    return with_packages(reading, other.stdout, failure=_failure(other, timeout_seconds))


def parse_child_output(text: str, *, failure: str | None) -> TorchReading:
    """The stages that were reached; `failure` is why the last one has no answer."""
    stages = _stages(text)
    answered, failure = stages.answered, failure or SILENCE
    if "absent" in answered:
        return TorchReading()
    facts, cuda = answered.get("torch"), answered.get("cuda")
    if facts is None or "error" in facts:
        return TorchReading(error=facts["error"] if facts else failure)
    cuda_error = failure if cuda is None else cuda.get("error")
    build = TorchBuild(
        version=facts["version"],
        cuda=facts["cuda"],
        arch_list=tuple(facts["arch_list"]),
        cuda_available=bool(cuda and cuda.get("available")),
        cuda_error=cuda_error,
    )
    driver = cuda.get("driver") if cuda else None
    return TorchReading(
        build=build,
        cuda_error=cuda_error,
        driver_cuda_version=cuda_version_text(driver) if driver else None,
        devices=tuple(
            CudaDevice(**values | {"compute_capability": tuple(values["compute_capability"])})
            for values in (cuda or {}).get("devices", ())
        ),
        peer_access={(first, second): yes for first, second, yes in answered.get("peers", {}).get("access", ())},
        bitsandbytes_library=_bitsandbytes(stages, failure),
        import_errors=_import_errors(stages, failure),
        seconds=facts.get("seconds"),
        stopped=_stopped(stages, failure) if cuda else None,
    )


def with_packages(reading: TorchReading, text: str, *, failure: str | None) -> TorchReading:
    """The reading with the results of a second child that imported packages."""
    stages = _stages(text)
    errors = _import_errors(stages, failure or SILENCE)
    return replace(
        reading,
        import_errors={**reading.import_errors, **errors},
        stopped=reading.stopped or _stopped(stages, failure or SILENCE),
    )


def _stages(text: str) -> Stages:
    answered: dict[str, dict[str, Any]] = {}
    begun = None
    for line in text.splitlines():
        if not line.startswith(MARK):
            continue
        try:
            facts = json.loads(line.removeprefix(MARK))
        except json.JSONDecodeError:
            continue
        name = facts.pop("stage")
        if name == BEGIN:
            begun = facts["of"]
        else:
            answered[name] = facts
    return Stages(answered=answered, open=begun if begun not in answered else None)


def _stopped(stages: Stages, failure: str) -> str | None:
    """The stage that ended the child process, or the peer-access stage if it failed; no other field holds these."""
    if stages.open is not None:
        return f"at `{stages.open}`: {failure}"
    error = stages.answered.get("peers", {}).get("error")
    return f"at `peers`: {error}" if error else None


def _bitsandbytes(stages: Stages, failure: str) -> str | None:
    if stages.open == "bitsandbytes":
        return failure
    said = stages.answered.get("bitsandbytes", {})
    return said.get("error") or said.get("library")


def _import_errors(stages: Stages, failure: str) -> dict[str, str]:
    """Why packages could not be imported, by distribution; packages after a crash are unknown and absent."""
    errors = {
        name.removeprefix(IMPORT): facts["error"]
        for name, facts in stages.answered.items()
        if name.startswith(IMPORT) and facts.get("error")
    }
    if stages.open is not None and stages.open.startswith(IMPORT):
        errors[stages.open.removeprefix(IMPORT)] = failure
    return errors


def _failure(child: Finished, timeout_seconds: float) -> str | None:
    if child.returncode is None:
        return no_answer(timeout_seconds)
    if child.returncode == 0:
        return None
    if child.returncode == -signal.SIGALRM:
        return no_answer(PATIENCE_SECONDS)
    lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    if child.returncode < 0:
        return f"killed by {_signal_name(-child.returncode)}{last}"
    return f"exit code {child.returncode}{last}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
