"""Metrics for W&B, online or as files for `wandb sync`, decided without a prompt and without waiting for a network."""

from __future__ import annotations

import configparser
import importlib
import netrc
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from rl_compat.tracking.types import Destination, Tracker

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
        parser = configparser.ConfigParser(interpolation=None)
        with suppress(configparser.Error, OSError, UnicodeDecodeError):
            parser.read(path, encoding="utf-8")
            settings |= dict(parser.items("default")) if parser.has_section("default") else {}
    return settings | {
        name.removeprefix("WANDB_").lower(): value
        for name, value in environ.items()
        if name.startswith("WANDB_") and value
    }


def _in_netrc(environ: Mapping[str, str], hosts: set[str]) -> bool:
    home = _home(environ)
    paths = [Path(environ["NETRC"]).expanduser()] if environ.get("NETRC") else [home / ".netrc", home / "_netrc"]
    for path in paths:
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            entries = netrc.netrc(path).hosts
            if any(entries[host][2] for host in hosts & entries.keys()):
                return True
    return False


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


WAIT_SECONDS = {"init_timeout": 20.0, "login_timeout": 1.0, "finish_timeout": 60.0}
"settings of the package that limit its waiting"
RUN_ID_FILE = "wandb_run_id.txt"


class WandbTracker:
    """Writes to a W&B run. Steps that the run has from before a resume are not changed."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step >= self._run.starting_step:
            self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(
    destination: Destination,
    *,
    environ: Mapping[str, str] = os.environ,
    package: str = "wandb",
    connects: Callable[[str, int], bool] = can_connect,
) -> Tracker | None:
    """A tracker of the W&B run of this folder: online if possible, else in files in the folder, with a warning.

    Returns None after a warning if the package is missing, disabled or does not start.
    """
    folder, warn = destination.folder, destination.warn
    try:
        wandb = importlib.import_module(package)
    except ImportError as error:
        warn(f"W&B is skipped because its package cannot be imported ({error}); `pip install wandb` provides it")
        return None
    mode = choose_mode(environ, default_url=wandb.Settings().base_url, working_folder=Path.cwd(), connects=connects)
    if mode.name == "disabled":
        warn(f"W&B is skipped because {mode.reason}")
        return None
    # timeouts that this version of the package has, so that no prompt blocks the run
    waits = {name: seconds for name, seconds in WAIT_SECONDS.items() if name in wandb.Settings.model_fields}
    try:
        run = wandb.init(
            project=destination.project,
            name=destination.experiment,
            dir=str(folder),
            id=_run_id(folder, new=destination.resume_step == 0),
            resume="allow",
            mode=mode.name,
            settings=wandb.Settings(silent=mode.name == "offline", **waits),
        )
    except (wandb.errors.Error, ValueError, OSError) as error:
        warn(f"W&B is skipped because it did not start: {str(error).strip().splitlines()[0]}")
        return None
    if mode.name == "offline":
        warn(f"W&B logs this run to `{folder / 'wandb'}` because {mode.reason}; `wandb sync` uploads it later")
    return WandbTracker(run)


def _run_id(folder: Path, *, new: bool) -> str:
    """The identity under which a resumed run continues, kept in the folder."""
    path = folder / RUN_ID_FILE
    if new or not path.exists():
        path.write_text(uuid.uuid4().hex[:8] + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
