"""The servers that models and packages come from, and how to work without them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from rl_compat.doctor.checks.system.storage import must_install_torch
from rl_compat.doctor.findings import Certainty, Finding, Remedy, Step, finding, ok, remedy
from rl_compat.doctor.remedies import shell
from rl_compat.doctor.tables.rows import required
from rl_compat.hardware.system.software import recorded_packages
from rl_compat.hardware.types import Endpoint, Hardware

PUBLIC_HUB = "https://huggingface.co"
SLOW_SECONDS = 5.0
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TRUE = ("1", "on", "yes", "true")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def check_hub(hardware: Hardware) -> Iterator[Finding]:
    """Whether models can be downloaded from a hub, and from which."""
    values = hardware.environment
    switch = next((name for name in OFFLINE_VARIABLES if values.get(name, "").lower() in TRUE), None)
    if switch is not None:
        yield finding(
            "hub.offline",
            f"`{switch}={values[switch]}` forbids access to the hub",
            shell("allow access again to download a model", f"unset {switch}"),
            where=(switch,),
        )
        return
    for endpoint in hardware.network or ():
        if endpoint.role == "hub":
            yield _answers(endpoint) if endpoint.reachable else _no_hub(endpoint, hardware)


def _answers(endpoint: Endpoint) -> Finding:
    mirror = endpoint.url.rstrip("/") != PUBLIC_HUB
    where = "HF_ENDPOINT" if mirror else "network"
    took = f" after {endpoint.seconds:.1f} s" if endpoint.seconds is not None else ""
    what = f"the {'hub mirror' if mirror else 'hub'} {endpoint.url} answers{took}"
    if endpoint.seconds is None or endpoint.seconds <= SLOW_SECONDS:
        return ok("hub.mirror" if mirror else "hub.reachable", what, where)
    return finding("hub.slow", what, remedy("cached_only"), where=(where,))


def _no_hub(endpoint: Endpoint, hardware: Hardware) -> Finding:
    mirror = endpoint.url.rstrip("/") != PUBLIC_HUB
    index = any(other.role == "package_index" and other.reachable for other in hardware.network or ())
    instead = "; `smollm2-135m` comes from the package index instead" if index else ""
    return finding(
        "hub.mirror_unreachable" if mirror else "hub.unreachable",
        f"the {'hub mirror' if mirror else 'hub'} {endpoint.url} does not answer: {endpoint.error or 'reason unknown'}",
        *_ways_out(endpoint, hardware, mirror=mirror),
        why=f"models that are not cached cannot be downloaded{instead}",
        where=("HF_ENDPOINT", "network") if mirror else ("network",),
    )


def _ways_out(endpoint: Endpoint, hardware: Hardware, *, mirror: bool) -> Iterator[Remedy]:
    """First what the error suggests, last what may help."""
    yield from _by_cause(endpoint, hardware)
    if _nothing_answers(hardware):
        yield remedy("work_offline")
    else:
        yield remedy("public_hub" if mirror else "set_mirror")
        yield remedy("cached_only")
    yield remedy("copy_model")
    yield from _set_proxy(hardware)


def _nothing_answers(hardware: Hardware) -> bool:
    """Whether several servers were contacted and none answered, so that another one is unlikely to."""
    contacted = hardware.network or ()
    return len(contacted) > 1 and not any(endpoint.reachable for endpoint in contacted)


def _by_cause(endpoint: Endpoint, hardware: Hardware) -> Iterator[Remedy]:
    """An address without its scheme, the certificate of a proxy, or the proxy that is set."""
    proxy = _proxy(hardware)
    if endpoint.role == "hub" and "://" not in endpoint.url:
        address = shlex.quote("https://" + endpoint.url)
        yield shell("write the address with its scheme", f"export HF_ENDPOINT={address}")
    elif re.search(r"certificate|\bSSL|\bTLS", endpoint.error or "", re.IGNORECASE):
        yield remedy("trust_certificate")
    elif proxy is not None:
        yield remedy("check_proxy", proxy=proxy)


def _set_proxy(hardware: Hardware) -> Iterator[Remedy]:
    if _proxy(hardware) is None:
        yield remedy("set_proxy")


def _proxy(hardware: Hardware) -> str | None:
    return next((name for name in PROXIES if hardware.environment.get(name)), None)


def check_package_index(hardware: Hardware) -> Iterator[Finding]:
    """Whether packages can be installed; it matters only if something is missing."""
    kind, installed = must_install_torch(hardware), hardware.software.packages
    torch = [f"torch for {'the GPU' if kind == 'cuda' else 'the CPU'}"] if kind else []
    names = [row["package"] for row in required() if row["package"] in recorded_packages()]
    missing = [name for name in names if name != "torch" and name not in installed]
    for endpoint in hardware.network or ():
        if endpoint.role == "torch_index":
            yield _index(endpoint, torch, hardware)
        elif endpoint.role == "package_index":
            yield _index(endpoint, [*torch, *missing], hardware)


def _index(endpoint: Endpoint, wanted: list[str], hardware: Hardware) -> Finding:
    of_torch = endpoint.role == "torch_index"
    name = f"the {'torch index' if of_torch else 'package index'} {endpoint.url}"
    if endpoint.reachable:
        return ok("package_index.reachable", f"{name} answers", "network")
    if not wanted:
        return ok("package_index.not_needed", f"{name} does not answer, but nothing is missing from it", "network")
    return finding(
        "package_index.torch_unreachable" if of_torch else "package_index.unreachable",
        f"{name} does not answer: {endpoint.error or 'reason unknown'}",
        *_other_sources(endpoint, hardware),
        why=f"still to be installed: {', '.join(wanted)}",
    )


def _other_sources(endpoint: Endpoint, hardware: Hardware) -> Iterator[Remedy]:
    yield from _by_cause(endpoint, hardware)
    others = [other for other in hardware.network or () if other.role == "package_index" and other.reachable]
    if not _nothing_answers(hardware):
        if endpoint.role == "torch_index" and others:
            program = [hardware.software.executable or "python", "-m", "rl_compat.doctor.install_torch"]
            what = f"install the matching torch build from {others[0].url}, if it has it"
            yield Remedy(what, Step.TORCH, (shlex.join(program),), Certainty.UNCERTAIN)
        elif endpoint.role == "package_index":
            yield remedy("set_index")
    yield remedy("bring_wheels")
    yield from _set_proxy(hardware)
