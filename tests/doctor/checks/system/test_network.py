"""The checks of the network."""

from __future__ import annotations

import pytest
from fakes.machines import P40, host

from rl_compat.doctor.checks.system.network import check_hub, check_package_index
from rl_compat.doctor.diagnosis import select_checks
from rl_compat.doctor.findings import Certainty, Finding, Needs, Severity
from rl_compat.doctor.table import CHECKS as EVERY_CHECK
from rl_compat.doctor.tables.rows import required
from rl_compat.hardware.types import Endpoint, Hardware, Software, TorchBuild

CHECKS = select_checks(EVERY_CHECK, ("hub", "package_index"))

HUB = "https://huggingface.co"
COMPLETE: dict[str, str | None] = {row["package"]: "99.0" for row in required()}
CUDA = TorchBuild(version="2.14.1+cu126", cuda="12.6")


def reaching(
    *endpoints: Endpoint,
    packages: dict[str, str | None] | None = None,
    torch: TorchBuild | None = CUDA,
    looked: bool = True,
    environment: dict[str, str] | None = None,
) -> Hardware:
    installed = {name: version for name, version in (packages or COMPLETE).items() if version is not None}
    software = Software(python="3.12.8", packages=installed, torch=torch)
    return Hardware(
        devices=(P40,),
        host=host(),
        software=software,
        network=endpoints if looked else None,
        environment=environment or {},
    )


def hub(url: str = HUB, *, error: str | None = None, seconds: float | None = 0.2) -> Endpoint:
    return Endpoint(role="hub", url=url, reachable=error is None, error=error, seconds=seconds)


def index(role: str = "package_index", *, error: str | None = None) -> Endpoint:
    return Endpoint(role=role, url="https://pypi.org/simple", reachable=error is None, error=error)


def only(hardware: Hardware) -> Finding:
    (finding,) = check_hub(hardware)
    return finding


def first_commands(finding: Finding) -> tuple[str, ...]:
    return finding.remedies[0].commands


def test_a_network_that_was_not_looked_at_says_nothing() -> None:
    hardware = reaching(looked=False)
    assert not list(check_hub(hardware))
    assert not list(check_package_index(hardware))


def test_checks_that_ask_servers_say_so() -> None:
    assert all(check.needs is Needs.NETWORK for check in CHECKS)


def test_a_hub_that_answers_is_fine_and_a_slow_one_is_noted() -> None:
    quick, slow = only(reaching(hub())), only(reaching(hub(seconds=9.0)))
    assert (quick.id, quick.severity) == ("hub.reachable", Severity.OK)
    assert (slow.id, slow.severity) == ("hub.slow", Severity.NOTE)
    assert "9.0 s" in slow.what


def test_a_mirror_is_named_with_its_address() -> None:
    finding = only(reaching(hub("https://hf-mirror.com"), environment={"HF_ENDPOINT": "https://hf-mirror.com"}))
    assert (finding.id, finding.severity, finding.where) == ("hub.mirror", Severity.OK, ("HF_ENDPOINT",))
    assert "https://hf-mirror.com" in finding.what


def test_a_slash_at_the_end_makes_no_mirror() -> None:
    assert only(reaching(hub(HUB + "/"))).id == "hub.reachable"


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "true", "YES", "On"])
def test_offline_mode_is_a_note_whatever_the_network_says(variable: str, value: str) -> None:
    for hardware in (
        reaching(hub(error="timed out"), environment={variable: value}),
        reaching(looked=False, environment={variable: value}),
    ):
        finding = only(hardware)
        assert (finding.id, finding.severity, finding.where) == ("hub.offline", Severity.NOTE, (variable,))


def test_offline_mode_that_is_switched_off_is_off() -> None:
    assert only(reaching(hub(), environment={"HF_HUB_OFFLINE": "0"})).id == "hub.reachable"


def test_a_hub_out_of_reach_is_a_warning_with_every_way_around_it() -> None:
    finding = only(reaching(hub(error="[Errno -2] Name or service not known")))
    assert (finding.id, finding.severity) == ("hub.unreachable", Severity.WARNING)
    assert "Name or service not known" in finding.what
    lines = [line for remedy in finding.remedies for line in remedy.commands]
    assert lines == [
        "export HF_ENDPOINT=https://MIRROR",
        "export HF_HUB_OFFLINE=1",
        "export HTTPS_PROXY=http://PROXY:PORT",
    ]
    assert any("model.path" in remedy.what for remedy in finding.remedies)
    assert finding.remedies[0].certainty is Certainty.PLACEHOLDER


def test_without_any_network_nobody_is_sent_to_another_server() -> None:
    dead = "Network is unreachable"
    hardware = reaching(
        hub(error=dead), index("torch_index", error=dead), index(error=dead), packages={"torch": "2.14.1"}
    )
    finding, (_, packages) = only(hardware), check_package_index(hardware)
    assert first_commands(finding) == ("export HF_HUB_OFFLINE=1",)
    assert first_commands(packages) == ("export PIP_NO_INDEX=1 PIP_FIND_LINKS=/PATH/TO/WHEELS",)
    assert "package index" not in finding.why
    assert "MIRROR" not in str([*finding.remedies, *packages.remedies])


def test_a_mirror_out_of_reach_is_taken_out_first() -> None:
    finding = only(
        reaching(
            hub("https://mirror.example", error="timed out"), environment={"HF_ENDPOINT": "https://mirror.example"}
        )
    )
    assert finding.id == "hub.mirror_unreachable"
    assert first_commands(finding) == ("unset HF_ENDPOINT",)


def test_an_address_without_its_scheme_is_completed() -> None:
    finding = only(reaching(hub("mirror.example", error="ValueError: unknown url type: 'mirror.example'")))
    assert first_commands(finding) == ("export HF_ENDPOINT=https://mirror.example",)


def test_an_untrusted_certificate_asks_for_the_proxys() -> None:
    finding = only(
        reaching(
            hub(error="[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"), environment={"HTTPS_PROXY": "(set)"}
        )
    )
    assert "SSL_CERT_FILE" in first_commands(finding)[0]


def test_a_proxy_that_is_set_is_suspected_before_another_is_asked_for() -> None:
    finding = only(reaching(hub(error="407 Proxy Authentication Required"), environment={"HTTPS_PROXY": "(set)"}))
    assert first_commands(finding) == ("export HTTPS_PROXY=http://USER:PASSWORD@PROXY:PORT",)
    assert not any("PROXY:PORT" in line for remedy in finding.remedies[1:] for line in remedy.commands)


def test_an_index_out_of_reach_matters_only_where_something_is_missing() -> None:
    dead = index(error="timed out")
    complete = list(check_package_index(reaching(dead)))
    without = list(check_package_index(reaching(dead, packages={**COMPLETE, "transformers": None})))
    assert [(item.id, item.severity) for item in complete] == [("package_index.not_needed", Severity.OK)]
    assert [(item.id, item.severity) for item in without] == [("package_index.unreachable", Severity.WARNING)]
    assert "transformers" in without[0].why


def test_the_index_of_torch_matters_only_for_torch() -> None:
    dead = index("torch_index", error="timed out")
    (without_transformers,) = check_package_index(reaching(dead, packages={**COMPLETE, "transformers": None}))
    (with_cpu_torch,) = list(check_package_index(reaching(dead, index(), torch=TorchBuild(version="2.14.1+cpu"))))[:1]
    assert without_transformers.severity == Severity.OK
    assert (with_cpu_torch.id, with_cpu_torch.severity) == ("package_index.torch_unreachable", Severity.WARNING)
    assert "torch for the GPU" in with_cpu_torch.why
    assert first_commands(with_cpu_torch) == ("python -m rl_compat.doctor.install_torch",)


def test_indexes_that_answer_are_fine() -> None:
    found = list(check_package_index(reaching(index(), index("torch_index"), hub(), packages={"torch": "2.14.1"})))
    assert [item.severity for item in found] == [Severity.OK, Severity.OK]
