"""`rlc cluster`: start, look at and stop a Ray cluster for runs on several machines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rl_compat.cli.options import AsJson, new_app
from rl_compat.cli.render import print_json, print_lines, print_note, print_table
from rl_compat.errors import HardwareError, RLCompatError
from rl_compat.hardware.cluster import RAY_ENVIRONMENT, TOKEN, NodeResources, import_ray, list_nodes
from rl_compat.hardware.system.folders import folder_places

app = new_app()

PORT = 6379
START_SECONDS = 60.0
"for the head node to answer"
JOIN_SECONDS = 300.0
"for the other nodes to join"
STOP_SECONDS = 20.0
"for Ray to end its processes"
RAY = (sys.executable, "-m", "ray.scripts.scripts")
"the command `ray` of this environment, which need not be on the path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head node that `rlc cluster up` started on this machine."""

    address: str
    pid: int
    log: str


@app.callback(invoke_without_command=True)
def cluster(context: typer.Context) -> None:
    """Start, look at and stop a Ray cluster for runs on several machines.

    Example: rlc cluster up
    """
    if context.invoked_subcommand is None:
        print_lines([context.get_help()])


@app.command()
def up(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the head node.")] = PORT,
    num_cpus: Annotated[
        int | None,
        typer.Option("--num-cpus", min=1, help="Processes that the node runs at most; default: its processors."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the head node of a cluster on this machine, and print the command for the other machines.

    Example: rlc cluster up --port 6379
    """
    known = _running()
    if known is not None:
        raise RLCompatError(
            f"a cluster runs at `{known.address}` already (process {known.pid})",
            hint="use it with `plan.address`, or end it with `rlc cluster down`",
        )
    import_ray()
    address = f"{_own_address()}:{port}"
    if _answers(address):
        raise RLCompatError(
            f"port {port} of this machine is in use", hint=f"choose another, such as `rlc cluster up --port {port + 1}`"
        )
    head = _start(address, num_cpus)
    try:
        nodes = _nodes(head.address)
    except BaseException:
        _stop(head)
        raise
    asks = os.environ.get("RAY_AUTH_MODE") == "token"
    join = f"{'RAY_AUTH_MODE=token ' if asks else ''}ray start --address={head.address}"
    if as_json:
        print_json(
            {"address": head.address, "pid": head.pid, "log": head.log, "join": join, "nodes": [*map(asdict, nodes)]}
        )
        return
    _print_nodes(nodes)
    print_lines(
        [
            "",
            f"on each other machine:  {join}",
            *([f"                        with a copy of `{TOKEN}` of this machine"] if asks else []),
            f"train on the cluster:   rlc train plan.address={head.address} plan.num_nodes=2 plan.num_devices=1",
            "end it:                 rlc cluster down",
        ]
    )


@app.command()
def status(
    address: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="Of the head node; default: the cluster of this machine.")
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option("--wait", metavar="NODES", min=1, help="Wait until this many nodes are alive, for 5 minutes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the nodes of a cluster, their devices, and how many of them are free.

    Example: rlc cluster status 10.0.0.1:6379
    """
    known = _running()
    where = address or (known.address if known is not None else os.environ.get("RAY_ADDRESS", "auto"))
    nodes = _nodes(where) if wait is None else _awaited(where, wait)
    if as_json:
        print_json({"address": where, "nodes": [*map(asdict, nodes)]})
        return
    _print_nodes(nodes)


@app.command()
def down(as_json: AsJson = False) -> None:
    """End the head node that `rlc cluster up` started. The other machines end theirs with `ray stop`.

    Example: rlc cluster down
    """
    known = _running()
    if known is None:
        raise RLCompatError(
            "no cluster runs that `rlc cluster up` started on this machine",
            hint="a node that `ray start` started ends with `ray stop`",
        )
    _stop(known)
    if as_json:
        print_json({"address": known.address, "stopped": True})
        return
    print_note(f"ended the cluster at `{known.address}`")


def _record() -> Path:
    return folder_places(os.environ)["model_cache"] / "cluster.json"


def _running() -> Head | None:
    """The head node of the record, if its process is alive."""
    try:
        head = Head(**json.loads(_record().read_text()))
        command = Path(f"/proc/{head.pid}/cmdline").read_text()
    except (OSError, ValueError, TypeError):
        return None
    return head if "ray.scripts.scripts" in command else None


def _own_address() -> str:
    """The address at which other machines reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine; chooses the interface and sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except (OSError, ValueError):
        return False
    return True


def _start(address: str, num_cpus: int | None) -> Head:
    """Start the head node, which outlives this process. Raises RLCompatError if it does not answer."""
    host, _, port = address.rpartition(":")
    _record().parent.mkdir(parents=True, exist_ok=True)
    log = _record().with_suffix(".log")
    command = [*RAY, "start", "--head", "--block", f"--node-ip-address={host}", f"--port={port}"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    command += [] if num_cpus is None else [f"--num-cpus={num_cpus}"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=RAY_ENVIRONMENT | dict(os.environ),
        )
    head = Head(address=address, pid=process.pid, log=str(log))
    _record().write_text(json.dumps(asdict(head)))
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if _answers(address) and "Ray runtime started" in log.read_text():
            return head
        time.sleep(0.2)
    _stop(head)
    said = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    last = said[-1] if said else "it wrote nothing"
    raise RLCompatError(f"Ray did not start at `{address}`: {last}", hint=f"its output is in `{log}`")


def _stop(head: Head) -> None:
    """End the process of a head node; Ray ends the others with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(head.pid, number)
        end = time.monotonic() + STOP_SECONDS
        while _is_alive(head.pid) and time.monotonic() < end:
            time.sleep(0.1)
    _record().unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _awaited(address: str, wanted: int) -> list[NodeResources]:
    """The nodes of a cluster when so many are alive. Raises HardwareError after `JOIN_SECONDS`."""
    end = time.monotonic() + JOIN_SECONDS
    while True:
        late = time.monotonic() > end
        try:
            nodes = _nodes(address)
        except HardwareError:
            if late:
                raise
        else:
            alive = sum(node.is_alive for node in nodes)
            if alive >= wanted:
                return nodes
            if late:
                raise HardwareError(
                    f"the cluster at `{address}` has {alive} nodes, expected {wanted}",
                    hint=f"run `ray start --address={address}` on the other machines, and look at its output",
                )
        time.sleep(1.0)


def _nodes(address: str) -> list[NodeResources]:
    """The nodes of a cluster, head node first. Raises HardwareError."""
    import_ray()
    if ":" in address and "://" not in address and not _answers(address):
        raise HardwareError(
            f"nothing answers at `{address}`", hint="`rlc cluster up` starts a cluster and prints its address"
        )
    return list_nodes(address)


def _print_nodes(nodes: list[NodeResources]) -> None:
    rows = [
        (
            f"{node.address}{' (head)' if node.is_head else ''}",
            node.name,
            "alive" if node.is_alive else "gone",
            f"{node.gpus_free} of {node.gpus}" + (f" {node.card}" if node.card else ""),
            f"{node.cpus_free} of {node.cpus}",
        )
        for node in nodes
    ]
    print_table("nodes", ("address", "name", "state", "GPUs free", "processors free"), rows)
