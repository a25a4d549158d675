"""Space and write permission for a run, its temporary files, models and packages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rl_compat.capability.optimizers import STATE_BYTES
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Severity, Step, finding, ok
from rl_compat.doctor.remedies import shell
from rl_compat.hardware.types import Folder, Hardware, Host
from rl_compat.planning.memory.activations import FP32_BYTES
from rl_compat.planning.shapes.known import SMOLLM2_135M
from rl_compat.units import GIB, MIB, format_bytes

TORCH_BYTES = {"cpu": 2 * GIB, "cuda": 10 * GIB}
"space for the download of torch, its copy and the unpacked wheels"
NOTHING_BYTES = MIB
"less counts as no space at all"
TEMPORARY_BYTES = GIB
"sockets and logs of workers, compiled kernels"
MODEL_BYTES = 4 * GIB
"weights of two billion parameters in half precision"
CHECKPOINT_BYTES = FP32_BYTES + STATE_BYTES["adamw"]
"per trained parameter"
CHECKPOINTS = 2
"the newest one is kept until the next is complete"
ROLES = {
    "run": "run folder",
    "temporary": "temporary folder",
    "hub_cache": "hub cache",
    "model_cache": "cache of prepared models",
    "packages": "packages folder",
}
PURPOSES = {
    "run": f"{CHECKPOINTS} checkpoints of SmolLM2-135M with its optimizer need that much; a run stops without them",
    "temporary": "workers, compiled kernels and installations unpack there",
    "packages": "torch and its dependencies need that much during the installation",
}
"what the space is for; in a cache, a model of MODEL_BYTES"
MOVABLE = {
    "temporary": ("TMPDIR", "tmp", "temporary files"),
    "hub_cache": ("HF_HOME", "huggingface", "models of the hub"),
    "model_cache": ("RLC_CACHE", "rl_compat", "prepared models"),
}
"by role: the variable that names the folder, a folder name, and its content"
OVERRIDES = {"hub_cache": ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")}
"variables that take precedence, and so have to be changed if they are set"
FREE_SPACE = "free space there, or "
WINDOWS_FILE_SYSTEMS = ("9p", "drvfs", "v9fs")


NO_SPACE = r"no space left"
FAULTS = {
    "hangs": (r"no answer within", "findmnt --types nfs,nfs4,cifs,fuse.sshfs,ceph,lustre"),
    "gone": (r"does not exist", "ls -ld {}"),
    "quota": (r"quota exceeded", "quota -s"),
    "inodes": (NO_SPACE, "df -i {}"),
    "read_only": (r"read-only file system", "findmnt -T {}"),
    "not_writable": (r"", "ls -ld {}"),
    "full": (r"^$", "df -h {}"),
}
"why a folder cannot be written: the error of a test file, and a command that shows more about a folder"


def check_disk(hardware: Hardware) -> Iterator[Finding]:
    """Whether there is space for the run, its temporary files and, if torch is missing, its packages."""
    kind = must_install_torch(hardware)
    needed = {"run": CHECKPOINTS * SMOLLM2_135M.num_parameters * CHECKPOINT_BYTES, "temporary": TEMPORARY_BYTES}
    if kind:
        needed |= {"temporary": max(TEMPORARY_BYTES, TORCH_BYTES[kind] // 2), "packages": TORCH_BYTES[kind]}
    yield from _check_folders("disk", hardware, needed)


def check_caches(hardware: Hardware) -> Iterator[Finding]:
    """Whether models can be downloaded and prepared."""
    yield from _check_folders("caches", hardware, {"hub_cache": MODEL_BYTES, "model_cache": MODEL_BYTES})


def _check_folders(check: str, hardware: Hardware, needed: Mapping[str, int]) -> Iterator[Finding]:
    """First the folders that cannot be written, one finding per fault; then the space and speed of the others."""
    folders = [folder for folder in folders_of(hardware.host) if folder.role in needed]
    faulty = [(folder, _fault_of(folder)) for folder in folders if _is_full(folder) or not folder.writable]
    for fault in dict.fromkeys(fault for _, fault in faulty):
        yield _cannot_write(check, fault, [folder for folder, its in faulty if its == fault], hardware)
    for folder in folders:
        if folder.writable and not _is_full(folder):
            yield _space(check, folder, needed[folder.role], hardware)
            yield from _slow(check, folder, hardware)


def folders_of(host: Host) -> tuple[Folder, ...]:
    """The folders; for an older recording only the run folder, from the space in the working directory."""
    if host.folders or host.disk_free_bytes is None:
        return host.folders
    return (Folder(role="run", path=".", writable=True, free_bytes=host.disk_free_bytes),)


def must_install_torch(hardware: Hardware) -> str | None:
    """`cuda` or `cpu` if a build of torch has yet to be installed, None if one is installed."""
    build, version = hardware.software.torch, hardware.software.packages.get("torch")
    if not hardware.devices:
        return None if build or version else "cpu"
    has_cuda = build.cuda is not None if build else version is not None and "+cpu" not in version
    return None if has_cuda else "cuda"


def _is_full(folder: Folder) -> bool:
    """Whether space is missing; a file system like /proc has none either but reports another error."""
    other_error = not folder.writable and folder.error and not re.search(NO_SPACE, folder.error, re.IGNORECASE)
    return folder.free_bytes is not None and folder.free_bytes < NOTHING_BYTES and not other_error


def _fault_of(folder: Folder) -> str:
    if _is_full(folder):
        return "full"
    return next(case for case, (pattern, _) in FAULTS.items() if re.search(pattern, folder.error or "", re.IGNORECASE))


def _cannot_write(check: str, fault: str, folders: Sequence[Folder], hardware: Hardware) -> Finding:
    """A run stops without its own folders; without a cache it can still use cached models."""
    roles = tuple(dict.fromkeys(folder.role for folder in folders))
    looks = dict.fromkeys(FAULTS[fault][1].format(shlex.quote(folder.path)) for folder in folders)
    return finding(
        f"{check}.{fault}",
        "; ".join(_state(folder) for folder in folders),
        *_elsewhere(roles, hardware, FREE_SPACE if fault == "full" else ""),
        shell("see why", *looks),
        where=tuple(dict.fromkeys(folder.path for folder in folders)),
        affects=roles,
    )


def _state(folder: Folder) -> str:
    name = f"{ROLES[folder.role]} `{folder.path}`"
    free = f"{format_bytes(folder.free_bytes)} free" if folder.free_bytes is not None else ""
    if _is_full(folder):
        return f"{name} has {free}"
    return f"{name} cannot be written{f' ({free})' if free else ''}: {folder.error or 'reason unknown'}"


def _space(check: str, folder: Folder, needed: int, hardware: Hardware) -> Finding:
    free = folder.free_bytes
    kind = f" ({folder.file_system})" if folder.file_system else ""
    name = f"{ROLES[folder.role]} `{folder.path}`{kind}"
    if free is None or free >= needed:
        what = f"{name} can be written" if free is None else f"{name} has {format_bytes(free)} free"
        return ok(f"{check}.enough", what, folder.path)
    return finding(
        f"{check}.small",
        f"{name} has {format_bytes(free)} free and should have {format_bytes(needed)}",
        *_elsewhere([folder.role], hardware, FREE_SPACE),
        severity=Severity.FAILURE if folder.role == "packages" else Severity.WARNING,
        why=PURPOSES.get(folder.role),
        where=(folder.path,),
        affects=(folder.role,),
    )


def _slow(check: str, folder: Folder, hardware: Hardware) -> Iterator[Finding]:
    """A folder of WSL on a Windows disk."""
    if not hardware.host.wsl:
        return
    if folder.file_system not in WINDOWS_FILE_SYSTEMS and not re.match(r"/mnt/[a-z](/|$)", folder.path):
        return
    yield finding(
        f"{check}.windows_disk",
        f"{ROLES[folder.role]} `{folder.path}` is on a Windows disk",
        *_elsewhere([folder.role], hardware, parent="$HOME"),
        where=(folder.path,),
        affects=(folder.role,),
    )


def _elsewhere(
    roles: Iterable[str], hardware: Hardware, first: str = "", *, parent: str | None = None
) -> Iterator[Remedy]:
    """Use another place for the same content: `parent`, or one that the user fills in."""
    certainty = Certainty.READY if parent else Certainty.PLACEHOLDER
    parent, wanted = parent or "/PATH/WITH/SPACE", set(roles)
    moved, commands = [], []
    for role, (variable, name, content) in MOVABLE.items():
        if role in wanted:
            variable = next((it for it in OVERRIDES.get(role, ()) if it in hardware.environment), variable)
            moved.append(content)
            commands += [f'mkdir -p "{parent}/{name}"', f'export {variable}="{parent}/{name}"']
    if "run" in wanted:
        moved.append("runs (`trainer.output_dir` also sets their folder)")
        commands.append(f'cd "{parent}"')
    if moved:
        yield shell(f"{first}keep {' and '.join(moved)} elsewhere", *commands, certainty=certainty)
    if "packages" in wanted:
        lines = (f'python3 -m venv "{parent}/venv"', f'. "{parent}/venv/bin/activate"')
        what = f"{first}create a virtual environment elsewhere and install into it"
        yield Remedy(what, Step.PYTHON, lines, certainty)
