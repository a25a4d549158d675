"""What the doctor says: findings, what mends them, and the checks that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from rl_compat.hardware.types import Hardware


class Severity(IntEnum):
    """How bad a finding is; only a failure makes the exit code 1."""

    OK = 0
    "looked at and fine"
    NOTE = 1
    "worth knowing, nothing to mend"
    WARNING = 2
    "training works, worse or less safely than it could"
    FAILURE = 3
    "training on what this machine has does not work"


class Step(IntEnum):
    """What a remedy changes, in the order in which a machine is mended."""

    DRIVER = 0
    SYSTEM = 1
    "packages, limits or mounts of the operating system"
    CONTAINER = 2
    "how the container is started"
    SHELL = 3
    "variables of this shell"
    PYTHON = 4
    "another Python or virtual environment"
    TORCH = 5
    PACKAGE = 6
    "other packages of the current virtual environment"
    SETTING = 7
    "a setting of the run"


class Sureness(IntEnum):
    """How far a command can be trusted."""

    PASTE = 0
    "runs as it stands on this machine"
    PLACEHOLDER = 1
    "has a part in capitals or angle brackets to fill in"
    UNSURE = 2
    "may be wrong here; the prose says why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way to mend a finding."""

    what: str
    "one instruction in prose"
    step: Step
    commands: tuple[str, ...] = ()
    "lines of a POSIX shell; none when there is nothing to run"
    sure: Sureness = Sureness.PASTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    id: str
    "the check's id, a dot, the case: `torch.cpu_build`"
    severity: Severity
    what: str
    "the fact, with its values"
    why: str = ""
    "what it means for training here"
    where: tuple[str, ...] = ()
    "the readings it rests on: `nvml`, `torch`, `/proc/meminfo`, `CUDA_VISIBLE_DEVICES` …"
    affects: tuple[str, ...] = ()
    "devices (`cuda:0`) and parts (`training`, `rollout`, `installation`, `several GPUs` …)"
    remedies: tuple[Remedy, ...] = ()
    "best first; the first one goes into the block of commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A question about a machine, answered from its description alone."""

    id: str
    "a noun: `driver`, `shared_memory`"
    question: str
    "`does the driver run what torch was built for?`"
    run: Callable[[Hardware], Iterable[Finding]]
    needs_torch: bool = False
    "whether torch has to be imported in a child process first"
    needs_network: bool = False
    wants_imports: bool = False
    "whether it also looks at what importing the packages beside torch says; it is asked without that too"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found and how long it took. A check that broke has one finding, `<id>.broken`."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.OK)
