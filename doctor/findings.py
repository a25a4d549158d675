"""Findings, the remedies that fix them, and the checks that report them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from functools import cache
from typing import Any

from rl_compat.hardware.gpu.catalogue import read_table
from rl_compat.hardware.types import Hardware


class Severity(IntEnum):
    """How bad a finding is; only a failure makes the exit code 1."""

    OK = 0
    "checked and fine"
    NOTE = 1
    "worth knowing, nothing to fix"
    WARNING = 2
    "training works, but slower or less reliably than it could"
    FAILURE = 3
    "training does not work on the hardware of this machine"


class Step(IntEnum):
    """What a remedy changes, in the order in which to apply remedies."""

    DRIVER = 0
    SYSTEM = 1
    "packages, limits or mounts of the operating system"
    CONTAINER = 2
    "how the container is started"
    SHELL = 3
    "environment variables of this shell"
    PYTHON = 4
    "another Python or virtual environment"
    TORCH = 5
    PACKAGE = 6
    "other packages of the current virtual environment"
    SETTING = 7
    "a setting of the run"


class Certainty(IntEnum):
    """How far a command can be trusted."""

    READY = 0
    "runs unchanged on this machine"
    PLACEHOLDER = 1
    "contains a part in capitals or angle brackets to fill in"
    UNCERTAIN = 2
    "may be wrong here; the text says why"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to fix a finding."""

    what: str
    "one instruction in prose"
    step: Step
    commands: tuple[str, ...] = ()
    "lines of a POSIX shell; empty when there is nothing to run"
    certainty: Certainty = Certainty.READY


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one question about the machine."""

    id: str
    "the check's id, a dot, the case: `torch.cpu_build`"
    severity: Severity
    what: str
    "the fact, with its values"
    why: str = ""
    "what it means for training on this machine"
    where: tuple[str, ...] = ()
    "the sources of the fact: `nvml`, `torch`, `/proc/meminfo`, `CUDA_VISIBLE_DEVICES` …"
    affects: tuple[str, ...] = ()
    "devices (`cuda:0`), nodes (`10.0.0.2`) and parts (`training`, `rollout`, `installation`, `several GPUs` …)"
    remedies: tuple[Remedy, ...] = ()
    "best first; the first one goes into the block of commands"


class Needs(Flag):
    """What has to be read for a check, besides what is always read."""

    NOTHING = 0
    TORCH = auto()
    "torch, which a child process imports"
    IMPORTS = auto()
    "the import errors of other packages; the check runs without them too"
    NETWORK = auto()


@dataclass(frozen=True, slots=True)
class Check:
    """A question about a machine, answered from its description alone."""

    id: str
    "a noun: `driver`, `shared_memory`"
    question: str
    "`does the driver support the CUDA version of torch?`"
    run: Callable[[Hardware], Iterable[Finding]]
    needs: Needs = Needs.NOTHING
    of_cluster: bool = False
    "compares the nodes of a cluster; the other checks run for each of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found and how long it took. A check that raises has one finding, `<id>.broken`."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.OK)


def finding(
    id: str,
    what: str,
    *remedies: Remedy,
    severity: Severity | None = None,
    why: str | None = None,
    where: tuple[str, ...] | None = None,
    affects: tuple[str, ...] | None = None,
) -> Finding:
    """A finding of `knowledge/findings.json`, which has the fields that are not given."""
    row = _rows("findings")[id]
    return Finding(
        id,
        Severity[row["severity"].upper()] if severity is None else severity,
        what,
        row.get("why", "") if why is None else why,
        tuple(row.get("where", ())) if where is None else where,
        tuple(row.get("affects", ())) if affects is None else affects,
        remedies,
    )


def remedy(id: str, **values: object) -> Remedy:
    """A remedy of `knowledge/findings.json`, with the values that its text and commands name in braces."""
    row = _rows("remedies")[id]
    return Remedy(
        row["what"].format(**values),
        Step[row["step"].upper()],
        tuple(command.format(**values) for command in row.get("commands", ())),
        Certainty[row.get("certainty", "ready").upper()],
    )


@cache
def _rows(section: str) -> Mapping[str, Mapping[str, Any]]:
    return {row["id"]: row for row in read_table("findings")[section]}


def ok(id: str, what: str, *where: str, why: str = "", affects: tuple[str, ...] = ()) -> Finding:
    """A finding that everything is fine."""
    return Finding(id, Severity.OK, what, why, where, affects)
