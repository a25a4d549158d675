"""What differs between the nodes of a cluster, and whether they reach each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.doctor import machine
from fakes.facts import facts
from fakes.nodes import node

from rl_compat.doctor.checks.system.nodes import check_node_network, check_nodes
from rl_compat.doctor.diagnosis import diagnose
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.doctor.options import parse
from rl_compat.doctor.report.paper import Paper
from rl_compat.doctor.report.screen import render
from rl_compat.doctor.table import CHECKS
from rl_compat.errors import UsageError
from rl_compat.hardware.recording import save_recording
from rl_compat.hardware.types import Hardware, Node

HEAD = machine("server_no_gpu")
H100 = machine("h100")
NCCL = "nvidia-nccl-cu13"
FINE = {"nodes.alike", "node_network.reached"}


def cluster(*nodes: Node) -> Hardware:
    return replace(HEAD, nodes=nodes)


def found(*nodes: Node) -> dict[str, Finding]:
    hardware = cluster(*nodes)
    return {finding.id: finding for finding in (*check_nodes(hardware), *check_node_network(hardware))}


def with_packages(hardware: Hardware, **packages: str) -> Hardware:
    software = hardware.software
    return replace(hardware, software=replace(software, packages={**software.packages, **packages}))


def with_torch(hardware: Hardware, version: str, cuda: str) -> Hardware:
    assert hardware.software.torch is not None
    torch = replace(hardware.software.torch, version=version, cuda=cuda)
    return replace(hardware, software=replace(hardware.software, torch=torch))


def test_equal_nodes_are_fine_and_one_machine_is_no_cluster() -> None:
    assert set(found(node(2), node(3))) == FINE
    assert found(node(2)) == {}
    assert list(check_nodes(HEAD)) == list(check_node_network(HEAD)) == []


@pytest.mark.parametrize(
    ("other", "id", "severity", "values"),
    [
        (node(3, replace(H100, software=replace(H100.software, python="3.13.1"))), "python", "FAILURE", {"3.13"}),
        (node(3, with_torch(H100, "2.7.1+cu126", "12.6")), "torch", "FAILURE", {"2.7.1"}),
        (node(3, with_packages(H100, **{NCCL: "2.21.5"})), "nccl", "FAILURE", {"2.21.5"}),
        (node(3, version="0.0.9"), "rl_compat", "FAILURE", {"0.0.9", "0.1.0"}),
        (node(3, with_packages(H100, vllm="0.9.2")), "vllm", "WARNING", {"0.9.2"}),
        (node(3, replace(H100, driver=replace(H100.driver, version="550.1"))), "driver", "NOTE", {"550.1"}),
        (node(3, replace(H100, devices=machine("a100").devices)), "cards", "NOTE", {H100.devices[0].name}),
        (node(3, num_gpus=8), "fewer_gpus", "FAILURE", {"8", "1"}),
    ],
)
def test_a_difference_between_nodes_is_named_with_its_values(
    other: Node, id: str, severity: str, values: set[str]
) -> None:
    finding = found(node(2), other)[f"nodes.{id}"]
    assert finding.severity is Severity[severity]
    assert values <= facts(finding.what)
    assert "10.0.0.3" in finding.affects or "10.0.0.3" in finding.what
    assert finding.why and finding.where and finding.remedies


def test_a_node_without_the_package_is_told_from_one_that_does_not_answer() -> None:
    bare = Node(address="10.0.0.3", error="ModuleNotFoundError: No module named 'rl_compat'")
    assert set(found(node(2), bare)) == {"nodes.not_installed"}
    assert set(found(node(2), replace(bare, error="it does not answer"))) == {"nodes.unreadable"}


def test_a_host_name_at_loopback_is_a_warning_that_names_the_interface_of_each_node() -> None:
    """DIST-12: never the bridge that every node has with one address, and never loopback."""
    same = found(node(2, name_address="127.0.1.1"), node(3, name_address="127.0.1.1"))["node_network.name_is_loopback"]
    assert same.severity is Severity.WARNING
    assert "eth0" in facts(same.what)
    assert not {"lo", "docker0"} & facts(same.what)
    assert same.remedies[0].commands == ("export GLOO_SOCKET_IFNAME=eth0",)

    apart = found(node(2, name_address="127.0.1.1"), node(3, interface="ens5", name_address="127.0.1.1"))
    assert {"eth0", "ens5"} <= facts(apart["node_network.name_is_loopback"].what)
    assert found(node(2, name_address="127.0.1.1")) == {}


def chosen(name: str) -> Hardware:
    return replace(H100, environment={**H100.environment, "GLOO_SOCKET_IFNAME": name})


@pytest.mark.parametrize(
    ("other", "id", "values"),
    [
        (lambda: node(3, unreachable=("10.0.0.2",)), "unreachable", {"10.0.0.2"}),
        (lambda: node(3, clock_offset_seconds=-90.0), "clocks", {"90.0"}),
        (lambda: node(3, chosen("ib7")), "unknown_interface", {"GLOO_SOCKET_IFNAME=ib7", "eth0"}),
        (lambda: node(3, interfaces=(node(2).interfaces[0],)), "no_interface", set()),
    ],
)
def test_what_keeps_nodes_apart_is_found(other: Callable[[], Node], id: str, values: set[str]) -> None:
    finding = found(node(2), other())[f"node_network.{id}"]
    assert finding.severity >= Severity.WARNING
    assert values <= facts(finding.what) | set(finding.affects)
    assert finding.why and finding.where and finding.remedies


def test_a_cluster_is_diagnosed_node_by_node_and_nodes_share_what_they_have_in_common(tmp_path: Path) -> None:
    full = replace(H100, host=replace(H100.host, shm_total_bytes=64 << 20, shm_free_bytes=64 << 20))
    two = replace(full, devices=(*full.devices, replace(full.devices[0], index=1)))
    save_recording(cluster(node(2, two), node(3, two), node(4, version="0.0.9")), tmp_path / "cluster.json")
    diagnosis = diagnose(parse(["--hardware", str(tmp_path / "cluster.json")], "rlc doctor"), CHECKS)
    by_id = {finding.id: finding for finding in diagnosis.findings}
    assert by_id["shared_memory.small"].affects[:2] == ("10.0.0.2", "10.0.0.3")
    assert diagnosis.exit_code == 1
    shown = "\n".join(render(diagnosis, Paper()))
    assert shown.startswith("3 nodes")
    assert all(f"10.0.0.{number}" in shown for number in (2, 3, 4))


@pytest.mark.parametrize("more", [["--hardware", "p40.json"], ["--fix"]])
def test_options_for_one_machine_are_refused_for_a_cluster(more: list[str]) -> None:
    with pytest.raises(UsageError, match="--cluster"):
        parse(["--cluster", "auto", *more], "rlc doctor")
