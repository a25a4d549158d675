"""Checks of the network: where models and packages come from, and what to do without it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from rl_compat.doctor.checks.storage import must_install_torch
from rl_compat.doctor.findings import Check, Finding, Remedy, Severity, Step, Sureness
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.rows import required
from rl_compat.hardware.system.software import PACKAGES
from rl_compat.hardware.types import Endpoint, Hardware

PUBLIC_HUB = "https://huggingface.co"
MIRROR = "https://MIRROR"
SLOW_SECONDS = 5.0
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TRUE = ("1", "on", "yes", "true")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def check_hub(hardware: Hardware) -> Iterator[Finding]:
    """Whether models can be fetched from a hub, and from which."""
    switch = offline_switch(hardware)
    if switch is not None:
        yield _offline(switch, hardware)
        return
    for endpoint in hardware.network or ():
        if endpoint.role == "hub":
            yield _answers(endpoint) if endpoint.reachable else _no_hub(endpoint, hardware)


def offline_switch(hardware: Hardware) -> str | None:
    """The variable that forbids asking the hub."""
    for name in OFFLINE_VARIABLES:
        if hardware.environment.get(name, "").lower() in TRUE:
            return name
    return None


def _offline(switch: str, hardware: Hardware) -> Finding:
    return Finding(
        id="hub.offline",
        severity=Severity.NOTE,
        what=f"`{switch}={hardware.environment[switch]}` forbids asking the hub",
        why="only models in its cache, local folders and GGUF files can be trained",
        where=(switch,),
        affects=("models",),
        remedies=(shell("allow it again where a model has to be fetched", f"unset {switch}"),),
    )


def _answers(endpoint: Endpoint) -> Finding:
    mirror = endpoint.url.rstrip("/") != PUBLIC_HUB
    name = f"the hub's mirror {endpoint.url}" if mirror else f"the hub {endpoint.url}"
    slow = endpoint.seconds is not None and endpoint.seconds > SLOW_SECONDS
    took = f" after {endpoint.seconds:.1f} s" if endpoint.seconds is not None else ""
    return Finding(
        id="hub.slow" if slow else "hub.mirror" if mirror else "hub.reachable",
        severity=Severity.NOTE if slow else Severity.OK,
        what=f"{name} answers{took}",
        why="each start of a run asks it whether the model changed" if slow else "",
        where=("HF_ENDPOINT",) if mirror else ("network",),
        affects=("models",) if slow else (),
        remedies=(_cached_only(),) if slow else (),
    )


def _no_hub(endpoint: Endpoint, hardware: Hardware) -> Finding:
    mirror = endpoint.url.rstrip("/") != PUBLIC_HUB
    name = "mirror of the hub" if mirror else "hub"
    index = any(other.role == "package_index" and other.reachable for other in hardware.network or ())
    instead = "; `smollm2-135m` comes from the package index instead" if index else ""
    return Finding(
        id="hub.mirror_unreachable" if mirror else "hub.unreachable",
        severity=Severity.WARNING,
        what=f"the {name} {endpoint.url} does not answer: {endpoint.error or 'the reason is not known'}",
        why=f"models that are not in the cache cannot be fetched{instead}",
        where=("HF_ENDPOINT", "network") if mirror else ("network",),
        affects=("models",),
        remedies=tuple(_ways_out(endpoint, hardware, mirror)),
    )


def _ways_out(endpoint: Endpoint, hardware: Hardware, mirror: bool) -> Iterator[Remedy]:
    """What the error calls for first, what only may help last."""
    yield from _by_cause(endpoint, hardware)
    if _nothing_answers(hardware):
        yield shell(
            "do without: models in the cache, local folders and GGUF files train, and no run waits for an answer",
            "export HF_HUB_OFFLINE=1",
        )
        yield _from_elsewhere()
        yield from _name_proxy(hardware)
        return
    if mirror:
        yield shell("ask the public hub", "unset HF_ENDPOINT")
    else:
        yield shell(
            "name a mirror that this network reaches", f"export HF_ENDPOINT={MIRROR}", sure=Sureness.PLACEHOLDER
        )
    yield _cached_only()
    yield _from_elsewhere()
    yield from _name_proxy(hardware)


def _nothing_answers(hardware: Hardware) -> bool:
    """Whether several servers were asked and none was reached, so that no other one is likely to be."""
    asked = hardware.network or ()
    return len(asked) > 1 and not any(endpoint.reachable for endpoint in asked)


def _from_elsewhere() -> Remedy:
    return Remedy(what="fetch the model elsewhere and name its folder: `model.path=/PATH/TO/MODEL`", step=Step.SETTING)


def _by_cause(endpoint: Endpoint, hardware: Hardware) -> Iterator[Remedy]:
    """An address without its scheme, the certificate of a proxy in between, or the proxy that is set."""
    proxy = _proxy(hardware)
    if endpoint.role == "hub" and "://" not in endpoint.url:
        yield shell("write the address with its scheme", f"export HF_ENDPOINT={shlex.quote('https://' + endpoint.url)}")
        return
    if re.search(r"certificate|\bSSL|\bTLS", endpoint.error or "", re.IGNORECASE):
        yield shell(
            "trust the certificate of the proxy in between, as the administrator gives it",
            "export SSL_CERT_FILE=/PATH/TO/CA.pem REQUESTS_CA_BUNDLE=/PATH/TO/CA.pem",
            sure=Sureness.PLACEHOLDER,
        )
    elif proxy is not None:
        yield shell(
            f"see that the proxy in {proxy} is the right one, with its password",
            f"export {proxy}=http://USER:PASSWORD@PROXY:PORT",
            sure=Sureness.PLACEHOLDER,
        )


def _name_proxy(hardware: Hardware) -> Iterator[Remedy]:
    if _proxy(hardware) is None:
        what = "name the proxy, where this network has one"
        yield shell(what, "export HTTPS_PROXY=http://PROXY:PORT", sure=Sureness.PLACEHOLDER)


def _proxy(hardware: Hardware) -> str | None:
    return next((name for name in PROXIES if hardware.environment.get(name)), None)


def _cached_only() -> Remedy:
    return shell("once the model is in the cache, do not ask at all", "export HF_HUB_OFFLINE=1")


def check_package_index(hardware: Hardware) -> Iterator[Finding]:
    """Whether packages can be installed; it matters only while something is missing."""
    torch = _wanted_torch(hardware)
    for endpoint in hardware.network or ():
        if endpoint.role == "torch_index":
            yield _index(endpoint, torch, hardware)
        elif endpoint.role == "package_index":
            yield _index(endpoint, [*torch, *_missing_packages(hardware)], hardware)


def _wanted_torch(hardware: Hardware) -> list[str]:
    kind = must_install_torch(hardware)
    return [f"torch for {'the GPU' if kind == 'cuda' else 'the CPU'}"] if kind else []


def _missing_packages(hardware: Hardware) -> list[str]:
    names = [row["package"] for row in required() if row["package"] in PACKAGES]
    return [name for name in names if name != "torch" and name not in hardware.software.packages]


def _index(endpoint: Endpoint, wanted: list[str], hardware: Hardware) -> Finding:
    of_torch = endpoint.role == "torch_index"
    name = f"{'index of torch' if of_torch else 'package index'} {endpoint.url}"
    if endpoint.reachable or not wanted:
        state = "answers" if endpoint.reachable else "does not answer, and nothing has to be installed from it"
        case = "reachable" if endpoint.reachable else "not_needed"
        what = f"the {name} {state}"
        return Finding(id=f"package_index.{case}", severity=Severity.OK, what=what, where=("network",))
    return Finding(
        id="package_index.torch_unreachable" if of_torch else "package_index.unreachable",
        severity=Severity.WARNING,
        what=f"the {name} does not answer: {endpoint.error or 'the reason is not known'}",
        why=f"to be installed here: {', '.join(wanted)}",
        where=("network",),
        affects=("installation",),
        remedies=tuple(_other_sources(endpoint, hardware)),
    )


def _other_sources(endpoint: Endpoint, hardware: Hardware) -> Iterator[Remedy]:
    yield from _by_cause(endpoint, hardware)
    others = [other for other in hardware.network or () if other.role == "package_index" and other.reachable]
    wheels = shell(
        "put the wheels, fetched elsewhere, into a folder and let pip look there alone",
        "export PIP_NO_INDEX=1 PIP_FIND_LINKS=/PATH/TO/WHEELS",
        sure=Sureness.PLACEHOLDER,
    )
    if _nothing_answers(hardware):
        yield wheels
        yield from _name_proxy(hardware)
        return
    if endpoint.role == "torch_index" and others:
        yield Remedy(
            what=f"install the build that suits this machine from {others[0].url}, if it has it",
            step=Step.TORCH,
            commands=(shlex.join([hardware.software.executable or "python", "-m", "rl_compat.doctor.install_torch"]),),
            sure=Sureness.UNSURE,
        )
    elif endpoint.role == "package_index":
        what = "name an index that this network reaches"
        yield shell(what, f"export PIP_INDEX_URL={MIRROR}/simple", sure=Sureness.PLACEHOLDER)
    yield wheels
    yield from _name_proxy(hardware)


CHECKS: tuple[Check, ...] = (
    Check(id="hub", question="can models be fetched?", run=check_hub, needs_network=True),
    Check(id="package_index", question="can packages be installed?", run=check_package_index, needs_network=True),
)
