"""Whether W&B can be used, decided without prompting the user or waiting for a network."""

from __future__ import annotations

import configparser
import netrc
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

API_HOST = "api.wandb.ai"
CONNECT_SECONDS = 3.0

_MODES = {"dryrun": "offline", "offline": "offline", "disabled": "disabled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbMode:
    """The mode of W&B in this run."""

    name: Literal["online", "offline", "disabled"]
    reason: str = ""
    "why it is not online"


def can_connect(
    host: str,
    port: int,
    *,
    seconds: float = CONNECT_SECONDS,
    connect: Callable[..., socket.socket] = socket.create_connection,
) -> bool:
    """Whether a TCP connection opens within that time, including name resolution."""
    opened = threading.Event()

    def attempt() -> None:
        try:
            connect((host, port), timeout=seconds).close()
            opened.set()
        except OSError:
            return

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return opened.is_set()


def choose_mode(
    environ: Mapping[str, str],
    *,
    default_url: str,
    working_folder: Path,
    connects: Callable[[str, int], bool] = can_connect,
) -> WandbMode:
    """Online if W&B is enabled, an API key exists, and the server (or the proxy in front of it) can be reached.

    Reads what the wandb package reads: `WANDB_*` variables, its settings files and the netrc file.
    """
    settings = _settings(environ, working_folder)
    asked = _MODES.get(settings.get("mode", ""))
    if asked == "disabled" or settings.get("disabled", "").lower() in ("true", "1"):
        return WandbMode(name="disabled", reason="it is disabled by `WANDB_MODE` or `wandb disabled`")
    if asked == "offline":
        return WandbMode(name="offline", reason="it is set offline by `WANDB_MODE` or `wandb offline`")
    url = urlsplit(settings.get("base_url") or default_url)
    names = {url.netloc} if settings.get("base_url") else {url.netloc, API_HOST}
    if not (settings.get("api_key") or settings.get("identity_token_file") or _in_netrc(environ, names)):
        return WandbMode(name="offline", reason="it has no API key (`wandb login` sets one)")
    host, port = _first_hop(environ, url)
    if not connects(host, port):
        return WandbMode(name="offline", reason=f"`{host}` cannot be reached")
    return WandbMode(name="online")


def _first_hop(environ: Mapping[str, str], url: SplitResult) -> tuple[str, int]:
    """The host and port to which a request to the server connects first."""
    proxy = environ.get("HTTPS_PROXY") or environ.get("https_proxy")
    if proxy:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return url.hostname or "", url.port or (80 if url.scheme == "http" else 443)


def _settings(environ: Mapping[str, str], working_folder: Path) -> dict[str, str]:
    """The package's settings by name. Variables override the working folder's file, which overrides the user's file."""
    config = Path(environ.get("WANDB_CONFIG_DIR") or _home(environ) / ".config" / "wandb")
    settings: dict[str, str] = {}
    for path in (config / "settings", working_folder / "wandb" / "settings"):
        settings |= dict(_read_settings(path))
    return settings | {
        name.removeprefix("WANDB_").lower(): value
        for name, value in environ.items()
        if name.startswith("WANDB_") and value
    }


def _read_settings(path: Path) -> Iterator[tuple[str, str]]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return
    if parser.has_section("default"):
        yield from parser.items("default")


def _in_netrc(environ: Mapping[str, str], hosts: set[str]) -> bool:
    home = _home(environ)
    paths = [Path(environ["NETRC"]).expanduser()] if environ.get("NETRC") else [home / ".netrc", home / "_netrc"]
    return any(_has_password(path, hosts) for path in paths)


def _has_password(path: Path, hosts: set[str]) -> bool:
    try:
        entries = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return any(entries[host][2] for host in hosts & entries.keys())


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
