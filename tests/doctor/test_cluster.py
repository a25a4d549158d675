"""The doctor on a real cluster of two nodes."""

from __future__ import annotations

import json

import pytest
from fakes.cluster import two_nodes

from rl_compat import __version__
from rl_compat.doctor.command import main

pytest.importorskip("ray")


@pytest.mark.slow
def test_every_node_of_a_cluster_is_read_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with two_nodes(gpus=1) as address:
        code = main(["--cluster", address, "--no-network", "--no-torch", "--json"])
    report = json.loads(capsys.readouterr().out)
    nodes = report["hardware"]["nodes"]
    assert [(node["num_cpus"], node["num_gpus"], node["version"], node["error"]) for node in nodes] == [
        (2, 1, __version__, None)
    ] * 2
    assert all(abs(node["clock_offset_seconds"]) < 1.0 and node["unreachable"] == [] for node in nodes)
    assert {"lo", "127.0.0.1"} <= {value for node in nodes for found in node["interfaces"] for value in found.values()}
    assert "OMP_NUM_THREADS" not in nodes[0]["hardware"]["environment"], "Ray sets it, not the user"
    if not nodes[0]["hardware"]["devices"]:
        assert "nodes.fewer_gpus" in {finding["id"] for finding in report["findings"]}
        assert code == report["exit_code"] == 1
