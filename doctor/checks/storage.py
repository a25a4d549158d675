"""Checks of the disks: room and permission where a run, its temporary files, models and packages are written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rl_compat.capability.optimizers import STATE_BYTES
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.install_torch import DISK_BYTES
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Folder, Hardware, Host
from rl_compat.planning.memory.activations import FP32_BYTES
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.units import GIB, MIB, format_bytes

NOTHING_BYTES = MIB
"less is no room at all"
TEMPORARY_BYTES = GIB
"sockets and logs of workers, compiled kernels"
MODEL_BYTES = 4 * GIB
"weights of two billion parameters in half precision"
CHECKPOINT_BYTES = FP32_BYTES + STATE_BYTES["adamw"]
"per trained parameter"
CHECKPOINTS = 2
"the newest stays until the next is complete"
ROLES = {
    "run": "run folder",
    "temporary": "temporary folder",
    "hub_cache": "cache of the hub",
    "model_cache": "cache of prepared models",
    "packages": "packages folder",
}
PURPOSES = {
    "run": f"{CHECKPOINTS} checkpoints of SmolLM2-135M with its optimizer: a run stops that cannot write one",
    "temporary": "workers, compiled kernels and installations unpack there",
    "packages": "torch and what it needs take as much while they are installed",
    "hub_cache": "a model of two billion parameters in half precision takes as much",
    "model_cache": "a model of two billion parameters in half precision takes as much",
}
MOVABLE = {
    "temporary": ("TMPDIR", "tmp", "temporary files"),
    "hub_cache": ("HF_HOME", "huggingface", "models of the hub"),
    "model_cache": ("RLC_CACHE", "rl_compat", "prepared models"),
}
"by role: the variable that names the folder, the name for it, and what it holds"
OVERRIDES = {"hub_cache": ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")}
"variables that are asked before, and so have to be changed where they are set"
FREE_ROOM = "free room there, or "
WINDOWS_FILE_SYSTEMS = ("9p", "drvfs", "v9fs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a folder cannot be written, read from the error of a test file."""

    case: str
    pattern: str
    why: str
    look: str
    "a command that shows more; `{}` is the folder"


NO_SPACE = r"no space left"
FULL = Fault(case="full", pattern="", why="the file system is full", look="df -h {}")
FAULTS = (
    Fault(
        case="hangs",
        pattern=r"no answer within",
        why="the file system does not answer: a server of the network that is gone, or a dying disk",
        look="findmnt --types nfs,nfs4,cifs,fuse.sshfs,ceph,lustre",
    ),
    Fault(
        case="gone",
        pattern=r"does not exist",
        why="it was deleted, or the disk that it is on is not mounted",
        look="ls -ld {}",
    ),
    Fault(
        case="quota",
        pattern=r"quota exceeded",
        why="the administrator's limit for this user or group is used up",
        look="quota -s",
    ),
    Fault(
        case="inodes",
        pattern=NO_SPACE,
        why="bytes are free and the file system takes no further file: its inodes are used up, or room is reserved",
        look="df -i {}",
    ),
    Fault(
        case="read_only",
        pattern=r"read-only file system",
        why="it is mounted without the right to write, or was after a disk error",
        look="findmnt -T {}",
    ),
    Fault(
        case="not_writable",
        pattern="",
        why="it belongs to another user, or to the system",
        look="ls -ld {}",
    ),
)


def check_disk(hardware: Hardware) -> Iterator[Finding]:
    """Whether the run, its temporary files and, where torch is missing, its packages find room."""
    needed = _needed_bytes(hardware)
    roles = ("run", "temporary", "packages") if needed["packages"] else ("run", "temporary")
    yield from _look("disk", hardware, {role: needed[role] for role in roles})


def check_caches(hardware: Hardware) -> Iterator[Finding]:
    """Whether models can be downloaded and prepared."""
    yield from _look("caches", hardware, {"hub_cache": MODEL_BYTES, "model_cache": MODEL_BYTES})


def _look(check: str, hardware: Hardware, needed: Mapping[str, int]) -> Iterator[Finding]:
    """Folders that cannot be written, then of the others their room and whether they are slow."""
    folders = [folder for folder in folders_of(hardware.host) if folder.role in needed]
    yield from _faults(check, folders, hardware)
    for folder in folders:
        if folder.writable and not _is_full(folder):
            yield _room(check, folder, needed[folder.role], hardware)
            yield from _slow(check, folder, hardware)


def folders_of(host: Host) -> tuple[Folder, ...]:
    """The folders; of an older recording only the run's, by the room in the working directory."""
    if host.folders or host.disk_free_bytes is None:
        return host.folders
    return (Folder(role="run", path=".", writable=True, free_bytes=host.disk_free_bytes),)


def must_install_torch(hardware: Hardware) -> str | None:
    """`cuda` or `cpu` where a build of torch has yet to be installed, None where one is there."""
    build, version = hardware.software.torch, hardware.software.packages.get("torch")
    if not hardware.devices:
        return None if build or version else "cpu"
    has_cuda = build.cuda is not None if build else version is not None and "+cpu" not in version
    return None if has_cuda else "cuda"


def _needed_bytes(hardware: Hardware) -> dict[str, int]:
    kind = must_install_torch(hardware)
    install = DISK_BYTES[kind] if kind else 0
    return {
        "run": CHECKPOINTS * SMOLLM2_135M.num_parameters * CHECKPOINT_BYTES,
        "temporary": max(TEMPORARY_BYTES, install // 2),
        "packages": install,
    }


def _is_full(folder: Folder) -> bool:
    """Whether room is what is lacking; a file system like /proc has none and says something else."""
    told_otherwise = not folder.writable and folder.error and not re.search(NO_SPACE, folder.error, re.IGNORECASE)
    return folder.free_bytes is not None and folder.free_bytes < NOTHING_BYTES and not told_otherwise


def _faults(check: str, folders: Sequence[Folder], hardware: Hardware) -> Iterator[Finding]:
    """One finding for all folders of one fault."""
    found = [(folder, _fault_of(folder)) for folder in folders if _is_full(folder) or not folder.writable]
    for fault in dict.fromkeys(fault for _, fault in found):
        yield _cannot_write(check, fault, [folder for folder, its in found if its == fault], hardware)


def _fault_of(folder: Folder) -> Fault:
    if _is_full(folder):
        return FULL
    return next(fault for fault in FAULTS if re.search(fault.pattern, folder.error or "", re.IGNORECASE))


def _cannot_write(check: str, fault: Fault, folders: Sequence[Folder], hardware: Hardware) -> Finding:
    """A run stops without its own folders; without a cache it still takes what is there already."""
    lost = "a run stops when it writes there"
    if check == "caches":
        lost = "models that are not there yet can be neither downloaded nor prepared"
    roles = tuple(dict.fromkeys(folder.role for folder in folders))
    first = FREE_ROOM if fault == FULL else ""
    looks = dict.fromkeys(fault.look.format(shlex.quote(folder.path)) for folder in folders)
    return Finding(
        id=f"{check}.{fault.case}",
        severity=Severity.WARNING if check == "caches" else Severity.FAILURE,
        what="; ".join(_state(folder) for folder in folders),
        why=f"{lost}: {fault.why}",
        where=tuple(dict.fromkeys(folder.path for folder in folders)),
        affects=roles,
        remedies=(*_elsewhere(roles, hardware, first), shell("see why", *looks)),
    )


def _state(folder: Folder) -> str:
    name = f"{ROLES[folder.role]} `{folder.path}`"
    free = f"{format_bytes(folder.free_bytes)} free" if folder.free_bytes is not None else ""
    if _is_full(folder):
        return f"{name} has {free}"
    return f"{name} cannot be written{f' ({free})' if free else ''}: {folder.error or 'the reason is not known'}"


def _room(check: str, folder: Folder, needed: int, hardware: Hardware) -> Finding:
    free = folder.free_bytes
    kind = f" ({folder.file_system})" if folder.file_system else ""
    name = f"{ROLES[folder.role]} `{folder.path}`{kind}"
    if free is None or free >= needed:
        what = f"{name} can be written" if free is None else f"{name} has {format_bytes(free)} free"
        return Finding(id=f"{check}.enough", severity=Severity.OK, what=what, where=(folder.path,))
    return Finding(
        id=f"{check}.small",
        severity=Severity.FAILURE if folder.role == "packages" else Severity.WARNING,
        what=f"{name} has {format_bytes(free)} free, {format_bytes(needed)} should be",
        why=PURPOSES[folder.role],
        where=(folder.path,),
        affects=(folder.role,),
        remedies=tuple(_elsewhere([folder.role], hardware, FREE_ROOM)),
    )


def _slow(check: str, folder: Folder, hardware: Hardware) -> Iterator[Finding]:
    """A folder of WSL on a disk of Windows."""
    if not hardware.host.wsl:
        return
    if folder.file_system not in WINDOWS_FILE_SYSTEMS and not re.match(r"/mnt/[a-z](/|$)", folder.path):
        return
    yield Finding(
        id=f"{check}.windows_disk",
        severity=Severity.WARNING,
        what=f"{ROLES[folder.role]} `{folder.path}` lies on a disk of Windows",
        why="WSL reads and writes there many times slower than on its own disk: models and checkpoints take minutes",
        where=(folder.path,),
        affects=(folder.role,),
        remedies=tuple(_elsewhere([folder.role], hardware, parent="$HOME")),
    )


def _elsewhere(
    roles: Iterable[str], hardware: Hardware, first: str = "", *, parent: str | None = None
) -> Iterator[Remedy]:
    """Have the same written to another place: to `parent`, else to one that the reader names."""
    sure = Sureness.PASTE if parent else Sureness.PLACEHOLDER
    parent, wanted = parent or "/PATH/WITH/SPACE", set(roles)
    held, commands = [], []
    for role, (variable, name, what) in MOVABLE.items():
        if role in wanted:
            variable = next((it for it in OVERRIDES.get(role, ()) if it in hardware.environment), variable)
            held.append(what)
            commands += [f'mkdir -p "{parent}/{name}"', f'export {variable}="{parent}/{name}"']
    if "run" in wanted:
        held.append("runs (`trainer.output_dir` names their folder too)")
        commands.append(f'cd "{parent}"')
    if held:
        yield shell(f"{first}keep {' and '.join(held)} elsewhere", *commands, sure=sure)
    if "packages" in wanted:
        lines = (f'python3 -m venv "{parent}/venv"', f'. "{parent}/venv/bin/activate"')
        what = f"{first}make a virtual environment elsewhere and install there"
        yield Remedy(what=what, step=Step.PYTHON, commands=lines, sure=sure)


CHECKS: tuple[Check, ...] = (
    Check(id="disk", question="is there room for a run, its temporary files and packages?", run=check_disk),
    Check(id="caches", question="can models be downloaded and prepared?", run=check_caches),
)
