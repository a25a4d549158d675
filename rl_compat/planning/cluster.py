"""A cluster that a file describes, to plan for machines that are not there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rl_compat.errors import ConfigError, did_you_mean
from rl_compat.hardware.gpu.catalogue import choose_gpu, other_machine
from rl_compat.hardware.recording import load_recording
from rl_compat.hardware.types import Device, Hardware, Link
from rl_compat.planning.speed.rates import UNKNOWN_NETWORK, LinkRate, network_link
from rl_compat.units import parse_memory

FORM = 'a node has `gpus` such as `["8 x h100-sxm"]`, or a `recording` by `rlc probe --json`'
KEYS = ("count", "gpus", "recording", "host_memory", "num_cores", "nvlink")
BUS = 16
"PCIe lanes of a card in a described node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes, and the network between them."""

    nodes: tuple[Hardware, ...]
    network: LinkRate = UNKNOWN_NETWORK


def is_cluster(path: Path) -> bool:
    """Whether a file lists nodes, and is not a recording of one machine."""
    if path.suffix == ".toml":
        return True
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return bool(table.get("nodes")) or ("nodes" in table and "host" not in table)
    except (OSError, ValueError, AttributeError):
        return False


def cluster_of(machine: Hardware, *, num_nodes: int) -> Cluster:
    """The nodes of the Ray cluster that was asked, or as many machines like this one."""
    asked = tuple(node.hardware for node in machine.nodes if node.hardware is not None)
    return Cluster(nodes=asked or (machine,) * num_nodes)


def load_cluster(path: Path, base: Hardware) -> Cluster:
    """The cluster that a TOML or JSON file lists, or that `rlc doctor --cluster` recorded.

    Packages, and what a listed node does not say of its host, are those of `base`. Raises ConfigError for a file of
    another form and HardwareError for an unknown card.
    """
    table = _read(path)
    if "host" in table:
        recorded = load_recording(path).nodes
        return Cluster(nodes=tuple(node.hardware for node in recorded if node.hardware is not None))
    _check_keys(path, table, ("nodes", "network_gbits"))
    rows = table.get("nodes")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(f"`{path}` has no nodes", hint=f"list them as `[[nodes]]`; {FORM}")
    nodes = []
    for row in rows:
        _check_keys(path, row, KEYS)
        node = _node(path, row, base)
        nodes += [replace(node, host=replace(node.host)) for _ in range(int(_number(path, row, "count", 1)))]
    gigabits = _number(path, table, "network_gbits", 0)
    return Cluster(nodes=tuple(nodes), network=network_link(gigabits) if gigabits else UNKNOWN_NETWORK)


def _number(path: Path, table: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = table.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or (key in table and value < 1):
        raise ConfigError(f"`{path}`: `{key}` is {value!r}, expected a number from 1")
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"`{path}` is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"`{path}` has no nodes", hint=f"list them as `nodes`; {FORM}")
    return table


def _check_keys(path: Path, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(
                f"`{path}`: there is no `{key}`", hint=did_you_mean(key, known, f"keys are {', '.join(known)}")
            )


def _node(path: Path, row: Mapping[str, Any], base: Hardware) -> Hardware:
    if ("gpus" in row) == ("recording" in row):
        raise ConfigError(
            f"`{path}`: a node has {'both' if 'gpus' in row else 'neither'} `gpus` and `recording`", hint=FORM
        )
    node = load_recording(path.parent / str(row["recording"])) if "recording" in row else _described(path, row, base)
    host = node.host
    if "host_memory" in row:
        size = parse_memory(str(row["host_memory"]))
        host = replace(host, ram_total_bytes=size, ram_limit_bytes=size, ram_available_bytes=size)
    if "num_cores" in row:
        host = replace(host, num_cores=int(_number(path, row, "num_cores", 1)))
    return replace(node, host=host)


def _described(path: Path, row: Mapping[str, Any], base: Hardware) -> Hardware:
    """A node with cards of the catalogue, the newest first as CUDA numbers them, and a link between any two."""
    groups = [row["gpus"]] if isinstance(row["gpus"], str) else row["gpus"]
    machines, devices, forms = [], [], []
    for text in groups:
        match = re.fullmatch(r"\s*(?:(\d+)\s*x\s+)?(.+?)\s*", str(text))
        assert match is not None, "any text has a last part"
        machine = other_machine(match[2], base)
        machines.append(machine)
        devices += [machine.devices[0]] * int(match[1] or 1)
        forms.append(choose_gpu(match[2]))
    if not devices:
        raise ConfigError(f"`{path}`: a node has no `gpus`", hint=FORM)
    order = sorted(devices, key=lambda device: (device.compute_capability, device.memory_total_bytes), reverse=True)
    numbered = tuple(replace(device, index=index, pcie_width=BUS) for index, device in enumerate(order))
    nvlink = row.get("nvlink", all(form.form == "datacenter" and "sxm" in form.id for form in forms))
    direct = all(form.form != "consumer" for form in forms)
    return replace(machines[0], devices=numbered, links=tuple(_links(numbered, nvlink=bool(nvlink), direct=direct)))


def _links(devices: Sequence[Device], *, nvlink: bool, direct: bool) -> list[Link]:
    kind = "nvlink" if nvlink else "pcie_host_bridge"
    return [
        Link(first=first.index, second=second.index, kind=kind, peer_access=nvlink or direct)
        for first, second in combinations(devices, 2)
    ]
