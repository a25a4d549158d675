"""The nodes of a cluster: what all of them must have in common, and whether they reach each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rl_compat.doctor.findings import Finding, Remedy, finding, ok, remedy
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.cards import names
from rl_compat.hardware.system.interfaces import interface_between, is_loopback
from rl_compat.hardware.types import Hardware, Node

CLOCK_SECONDS = 1.0
"difference between two clocks from which it is reported"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True)
class Compared:
    """A fact in which nodes should agree. The finding `id` says whether they must, and why."""

    id: str
    name: str
    read: Callable[[Node, Hardware], str | None]
    "None if a node does not have it"
    remedy: str


def _package(name: str) -> Callable[[Node, Hardware], str | None]:
    return lambda node, hardware: hardware.software.packages.get(name)


def _torch(node: Node, hardware: Hardware) -> str | None:
    software = hardware.software
    version = software.torch.version if software.torch is not None else software.packages.get("torch")
    return None if version is None else version.partition("+")[0]


def _torch_build(node: Node, hardware: Hardware) -> str | None:
    torch = hardware.software.torch
    return None if torch is None else f"CUDA {torch.cuda}" if torch.cuda else "CPU"


def _nccl(node: Node, hardware: Hardware) -> str | None:
    torch = hardware.software.torch
    if torch is None or torch.cuda is None:
        return None
    return hardware.software.packages.get(f"nvidia-nccl-cu{torch.cuda.partition('.')[0]}")


COMPARED = (
    Compared("nodes.python", "Python", lambda node, its: ".".join(its.software.python.split(".")[:2]), "same_python"),
    Compared("nodes.rl_compat", "rl_compat", lambda node, hardware: node.version, "same_packages"),
    Compared("nodes.torch", "torch", _torch, "same_packages"),
    Compared("nodes.torch_build", "the build of torch", _torch_build, "pools_of_nodes"),
    Compared("nodes.nccl", "NCCL", _nccl, "same_packages"),
    Compared("nodes.transformers", "transformers", _package("transformers"), "same_packages"),
    Compared("nodes.vllm", "vLLM", _package("vllm"), "same_packages"),
    Compared("nodes.driver", "the driver", lambda node, hardware: hardware.driver.version, "same_driver"),
    Compared("nodes.cards", "the set of cards", lambda node, its: names(its.devices) or "no card", "pools_of_nodes"),
)
"whether nodes must agree: the severity of the finding in `knowledge/findings.json`"


def check_nodes(hardware: Hardware) -> Iterator[Finding]:
    """What differs between the nodes of a cluster; nothing on one machine."""
    if not hardware.nodes:
        return
    for node in hardware.nodes:
        if node.hardware is None:
            yield _unreadable(node)
        elif len(node.hardware.devices) < node.num_gpus:
            yield finding(
                "nodes.fewer_gpus",
                f"Ray gives out {node.num_gpus} GPUs of {node.address} and CUDA shows {len(node.hardware.devices)}",
                remedy("restart_ray", gpus=len(node.hardware.devices)),
                affects=(node.address,),
            )
    differences = list(_differences(hardware.nodes))
    yield from differences
    if not differences and len(hardware.nodes) > 1 and all(node.hardware for node in hardware.nodes):
        yield ok("nodes.alike", f"{len(hardware.nodes)} nodes have the same cards and software", "Ray")


def _unreadable(node: Node) -> Finding:
    missing = "No module named 'rl_compat'" in (node.error or "")
    return finding(
        "nodes.not_installed" if missing else "nodes.unreadable",
        f"the node {node.address} cannot be probed: {node.error}",
        remedy("same_packages") if missing else remedy("doctor_there"),
        affects=(node.address,),
    )


def _differences(nodes: Iterable[Node]) -> Iterator[Finding]:
    for fact in COMPARED:
        by_value: dict[str, list[str]] = {}
        for node in nodes:
            if node.hardware is not None:
                by_value.setdefault(fact.read(node, node.hardware) or "not installed", []).append(node.address)
        if len(by_value) > 1:
            yield finding(
                fact.id,
                f"{fact.name} differs between nodes: {_listed(by_value)}",
                remedy(fact.remedy),
                affects=tuple(address for addresses in by_value.values() for address in addresses),
            )


def _listed(by_value: Mapping[str, Iterable[str]]) -> str:
    """`2.8.0` on 10.0.0.2, 10.0.0.3; `2.7.1` on 10.0.0.4."""
    return "; ".join(f"`{value}` on {', '.join(addresses)}" for value, addresses in by_value.items())


def check_node_network(hardware: Hardware) -> Iterator[Finding]:
    """Whether the nodes of a cluster reach each other, and through which interface; nothing for one node."""
    nodes = [node for node in hardware.nodes if node.hardware is not None]
    if len({node.address for node in nodes}) < 2:
        return
    findings = [*_unreached(nodes), *_interfaces(nodes), *_clocks(nodes)]
    yield from findings
    if not findings:
        used = {found.name for node in nodes if (found := interface_between(node, nodes)) is not None}
        yield ok(
            "node_network.reached", f"{len(nodes)} nodes reach each other through {' and '.join(sorted(used))}", "Ray"
        )


def _unreached(nodes: Iterable[Node]) -> Iterator[Finding]:
    for node in nodes:
        if node.unreachable:
            yield finding(
                "node_network.unreachable",
                f"{node.address} cannot connect to a free port of {', '.join(node.unreachable)}",
                remedy("open_ports"),
                affects=(node.address, *node.unreachable),
            )


def _interfaces(nodes: list[Node]) -> Iterator[Finding]:
    """The interface of each node for the others, where gloo would not find it by the host name."""
    to_loopback: dict[str, str] = {}
    for node in nodes:
        found = interface_between(node, nodes)
        assert node.hardware is not None
        chosen = node.hardware.environment.get(GLOO_INTERFACE)
        if found is None:
            yield finding(
                "node_network.no_interface",
                f"no network interface of {node.address} has an address that the other nodes could use",
                remedy("set_interface", interface="NAME"),
                affects=(node.address,),
            )
        elif chosen is not None and chosen not in {interface.name for interface in node.interfaces}:
            yield finding(
                "node_network.unknown_interface",
                f"`{GLOO_INTERFACE}={chosen}` names no network interface of {node.address}; `{found.name}` reaches "
                "the other nodes",
                _set_interface(found.name),
                affects=(node.address,),
            )
        elif chosen is None and node.name_address is not None and is_loopback(node.name_address):
            to_loopback[node.address] = found.name
    if to_loopback:
        reached = ", ".join(f"`{interface}` on {address}" for address, interface in to_loopback.items())
        yield finding(
            "node_network.name_is_loopback",
            f"the host name resolves to a loopback address, and the other nodes are reached through {reached}",
            *(_set_interface(interface) for interface in dict.fromkeys(to_loopback.values())),
            affects=tuple(to_loopback),
        )


def _set_interface(name: str) -> Remedy:
    what = f"set it before `ray start` on the nodes whose interface is `{name}`"
    return shell(what, f"export {GLOO_INTERFACE}={name}")


def _clocks(nodes: Iterable[Node]) -> Iterator[Finding]:
    offsets = {node.address: node.clock_offset_seconds for node in nodes if node.clock_offset_seconds is not None}
    if not offsets:
        return
    earliest, latest = min(offsets, key=lambda key: offsets[key]), max(offsets, key=lambda key: offsets[key])
    apart = offsets[latest] - offsets[earliest]
    if apart > CLOCK_SECONDS:
        yield finding(
            "node_network.clocks",
            f"the clock of {latest} is {apart:.1f} s ahead of that of {earliest}",
            remedy("set_clocks"),
            affects=(earliest, latest),
        )
