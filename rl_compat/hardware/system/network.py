"""Whether the servers for packages and models answer, queried in parallel with a timeout."""

from __future__ import annotations

import configparser
import http.client
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from rl_compat.hardware.system.software import without_credentials
from rl_compat.hardware.system.timeouts import Background, no_answer
from rl_compat.hardware.types import Endpoint

HUB = "https://huggingface.co"
TORCH_INDEX = "https://download.pytorch.org/whl"
PACKAGE_INDEX = "https://pypi.org/simple"
TRUE = ("1", "on", "yes", "true")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
"certificate files that pip or the hub's client trusts"
PROXY_NEEDS_LOGIN = 407
PIP_SECTIONS = ("global", "install")
"read by `pip install`; later ones take precedence"
PIP_SETTINGS = ("index-url", "no-index")


def read_network(
    environment: Mapping[str, str], *, timeout_seconds: float, pip_files: Sequence[Path] | None = None
) -> tuple[Endpoint, ...]:
    """The hub, PyTorch's index and the package index, except those disabled by the environment or behind a SOCKS proxy.

    Each gets a HEAD request without credentials through the proxy of the environment. Every status below 500 counts as
    reachable, except a refusal by the proxy. After `timeout_seconds` in total, including name resolution, the remaining
    servers count as unreachable. `pip_files` replaces pip's usual settings files.
    """
    places = endpoint_places(environment, pip_files=pip_files)
    deadline = time.monotonic() + timeout_seconds
    asked = {
        role: Background(partial(ask, role, url, environment, timeout_seconds=timeout_seconds))
        for role, url in places.items()
    }
    return tuple(
        _answer(role, places[role], background, max(0.0, deadline - time.monotonic()), timeout_seconds)
        for role, background in asked.items()
    )


def endpoint_places(environment: Mapping[str, str], *, pip_files: Sequence[Path] | None = None) -> dict[str, str]:
    """The URL of each server that can be queried, without credentials and query."""
    pip = read_pip_settings(environment, files=pip_files)
    places = {}
    if not any(_is_true(environment.get(name)) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        places["hub"] = environment.get("HF_ENDPOINT") or HUB
    if not _is_true(pip.get("no-index")):
        places["torch_index"] = TORCH_INDEX
        places["package_index"] = pip.get("index-url") or PACKAGE_INDEX
    shown = {role: without_credentials(url.strip()).rstrip("/") for role, url in places.items()}
    return {role: url for role, url in shown.items() if not _behind_socks(url, environment)}


def read_pip_settings(environment: Mapping[str, str], *, files: Sequence[Path] | None = None) -> dict[str, str]:
    """`index-url` and `no-index`, if set. Variables take precedence over files, and later files over earlier ones."""
    found: dict[str, str] = {}
    for file in pip_files(environment) if files is None else files:
        found |= _read_pip_file(file)
    for name in PIP_SETTINGS:
        value = environment.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            found[name] = value
    return found


def pip_files(environment: Mapping[str, str]) -> list[Path]:
    """Pip's settings files: of the machine, the user and this Python, and the one in `PIP_CONFIG_FILE`."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111
    machine = [
        Path(folder) / "pip" for folder in reversed((environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))
    ]
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    folders = [*machine, Path("/etc"), home / ".pip", user, Path(sys.prefix)]
    return [*(folder / "pip.conf" for folder in folders), *([Path(named)] if named else [])]


def _read_pip_file(file: Path) -> dict[str, str]:
    """The settings of one file; empty if it is missing or malformed."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    values = {
        name.replace("_", "-"): value
        for section in PIP_SECTIONS
        if parser.has_section(section)
        for name, value in parser.items(section)
    }
    return {name: values[name] for name in PIP_SETTINGS if values.get(name)}


def ask(role: str, url: str, environment: Mapping[str, str], *, timeout_seconds: float) -> Endpoint:
    """One server's answer; a failure is recorded in `error`."""
    started = time.perf_counter()
    try:
        error = _file_error(url) if url.startswith("file:") else _request_error(url, environment, timeout_seconds)
    except urllib.error.URLError as failure:
        error = _text(failure.reason, timeout_seconds)
    except (OSError, ValueError, http.client.HTTPException) as failure:
        error = _text(failure, timeout_seconds)
    seconds = round(time.perf_counter() - started, 3)
    return Endpoint(role=role, url=url, reachable=error is None, seconds=None if error else seconds, error=error)


def _request_error(url: str, environment: Mapping[str, str], timeout_seconds: float) -> str | None:
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "rl_compat"})
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies_for(url, environment)),
        urllib.request.HTTPSHandler(context=_trust(environment)),
        _NoRedirect(),
    )
    try:
        with opener.open(request, timeout=timeout_seconds):
            return None
    except urllib.error.HTTPError as answer:
        with answer:
            refused = answer.code >= 500 or answer.code == PROXY_NEEDS_LOGIN
            return f"HTTP {answer.code} {answer.reason}".strip() if refused else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def proxies_for(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The proxy for the scheme of a URL; none if NO_PROXY excludes the host. Lower-case variables take precedence."""
    parts = urlsplit(url)
    outside = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if outside and proxy_bypass_environment(parts.netloc, {"no": outside}):
        return {}
    names = (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    proxy = next((environment[name] for name in names if environment.get(name)), None)
    return {parts.scheme: proxy} if proxy else {}


def _behind_socks(url: str, environment: Mapping[str, str]) -> bool:
    """Whether the standard library cannot query a server that pip and the hub's client may reach."""
    try:
        return any(proxy.lower().startswith("socks") for proxy in proxies_for(url, environment).values())
    except ValueError:
        return False


def _trust(environment: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in CERTIFICATES:
        file = environment.get(name)
        if file and os.path.isfile(file):  # noqa: PTH113
            with suppress(OSError):
                context.load_verify_locations(cafile=file)
    return context


def _file_error(url: str) -> str | None:
    path = Path(unquote(urlsplit(url).path))
    return None if path.exists() else f"`{path}` does not exist"


def _answer(role: str, url: str, background: Background[Endpoint], left: float, total: float) -> Endpoint:
    try:
        return background.result(left)
    except TimeoutError:
        return Endpoint(role=role, url=url, reachable=False, error=no_answer(total))


def _text(reason: object, timeout_seconds: float) -> str:
    """`Name or service not known`, `Connection refused`, `ValueError: unknown url type …`, without credentials."""
    if isinstance(reason, TimeoutError):
        return no_answer(timeout_seconds)
    if isinstance(reason, OSError):
        said = reason.strerror or str(reason)
    else:
        said = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
    return without_credentials(" ".join(said.split()))[:300]


def _is_true(value: str | None) -> bool:
    return (value or "").strip().lower() in TRUE
