"""Replace names of people and machines, and secrets, in texts and JSON.

The same value always gets the same placeholder, so that a reader can still see that two places mean the same thing.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

SECRET = (
    "(?:secret|passwd|password|passphrase|credentials?|signature|api[_-]?key|access[_-]?key(?:[_-]id)?|private[_-]?key)"
)
SECRET_NAME = re.compile(rf"(?i)(?:^|[^a-z])(?:{SECRET}|token)$")
"the name of a setting or a variable"

WHOLE = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^\s/\"'<>]+(?=@)"),
    re.compile(
        r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[opusr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
        r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{8,}|sk-[\w-]{16,}|xox[abeoprs]-[\w-]{8,}"
        r"|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|wandb_v1_\w{8,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"
        r"|[0-9a-f]{40}|[0-9a-f]{64})(?![A-Za-z0-9])"
    ),
)
"secrets recognised by their form: keys, credentials in a URL, tokens of known services, 40 hexadecimal digits"

AFTER_A_NAME = (
    re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:[a-z]+\s+)?)([^\s\"',]{4,})"),
    re.compile(r"(?i)(\bbearer\s+)([a-z0-9._~+/=-]{8,})"),
    re.compile(rf"(?i)((?<![a-z]){SECRET}[\"']?\s*[:=]\s*[\"']?)([^\s\"'<>&,;]{{4,}})"),
    re.compile(r"(?i)((?<![a-z])token[\"']?\s*[:=]\s*[\"']?)(?![\d.e+-]+(?![\w.]))([a-z0-9_./+=~!@#$%^*-]{6,})"),
    re.compile(rf"(?i)(--(?:[a-z-]+-)?(?:{SECRET}|token)(?:\s+|=)[\"']?)([^\s\"'<>]{{4,}})"),
)
"secrets recognised by the text before them"

SERIAL = re.compile(r"(?i)(\bserial(?:[ _-]?(?:number|no|num))?[\"']?\s*[:=]\s*[\"']?)([a-z0-9-]{6,})")
UUID = re.compile(
    r"(?i)(?<![0-9a-z])((?:GPU-|MIG-)[0-9a-f]{8}|[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-))(?:-[0-9a-f]+)+(?![0-9a-z])"
)
"of a GPU, a slice or anything else; the first group is kept"

EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
MAC = re.compile(r"(?i)(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])")
IPV6 = re.compile(r"(?i)(?<![\w:.])(?:[0-9a-f]{4}:[0-9a-f:]*[0-9a-f]|[0-9a-f]{4}::|::ffff:[0-9.]+)(?![\w:])")
IPV4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.[0-9])")
NAMED_BY_ADDRESS = re.compile(r"\bip-(?:[0-9]{1,3}-){3}[0-9]{1,3}\b")
BEFORE_A_VERSION = re.compile(r"(?i)(?:[=<>~]=|version|\bv|(?:cudnn|nccl|cublas)[\w-]*)[\s:=\"'`]*$")
LOCAL = frozenset({"127.0.0.1", "0.0.0.0", "255.255.255.255"})

HOMES = re.compile(r"((?:/home|/Users|[A-Za-z]:\\+Users|/mnt/[a-z]/Users)[/\\]+)([^/\\\s\"'`:;,<>()]+)")
"home folders, with the name of the user as the second group"

FIELD = re.compile(r"[a-z][a-z0-9_./]*")
"the name of a field or of a metric"

NOBODYS = frozenset(
    """root user users admin administrator ubuntu debian centos fedora rocky opc ec2-user azureuser runner jovyan nobody
    docker vagrant pi test guest gpu cuda torch nvidia python train trainer training data rl ml ai dev work home host
    localhost server node master main worker linux container token email path shared public linuxbrew""".split()  # noqa: SIM905
)
"names of users and hosts that identify nobody; most are common words in a report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The names to replace."""

    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def find_owner(environment: Mapping[str, str] = os.environ) -> Owner:
    """The user of this process and the names of this machine."""
    homes = _home_folders(environment)
    users = [environment.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")]
    try:
        users.append(getpass.getuser())
    except (KeyError, OSError):
        users.extend(Path(home).name for home in homes)
    host = socket.gethostname()
    hosts = (host, host.partition(".")[0], environment.get("HOSTNAME", ""))
    return Owner(homes=homes, users=_distinct(users), hosts=_distinct(hosts))


class Redactor:
    """Remembers what it replaced, so that the same value gets the same placeholder in every file."""

    def __init__(self, owner: Owner, *, keep: Collection[str] = ()) -> None:
        """`keep` contains texts that only look like addresses: versions with four parts."""
        self._keep = frozenset(keep)
        self._words: dict[str, dict[str, str]] = {}
        homes = [home.rstrip("/\\") for home in owner.homes]
        self._homes = _any_of(homes, before=r"(?<![\w.])", after=r"(?![\w.-])")
        self._users = _any_of(_telling(owner.users), before="(?<![A-Za-z0-9])", after="(?![A-Za-z0-9])")
        self._hosts = _any_of(_telling(owner.hosts), before="(?<![A-Za-z0-9])", after="(?![A-Za-z0-9])")
        self._own = frozenset(owner.users)

    def value(self, value: Any, name: str = "") -> Any:
        """JSON with every text redacted; numbers and field names stay."""
        if isinstance(value, Mapping):
            return {self._cleaned_key(key): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, name) for item in value]
        if not isinstance(value, str):
            return value
        if SECRET_NAME.search(name) and value not in ("", "(set)"):
            return self._word("secret", value)
        return self.text(value)

    def text(self, text: str) -> str:
        """The text without secrets, addresses and names."""
        text = self._without_places(self._without_secrets(text))
        text = self._users.sub("<user>", text) if self._users else text
        return self._hosts.sub("<host>", text) if self._hosts else text

    def _cleaned_key(self, key: Any) -> Any:
        """Field names stay unless they are the name of a user or host; anything else is redacted like a text."""
        if not isinstance(key, str):
            return key
        is_name = any(names and names.fullmatch(key) for names in (self._users, self._hosts))
        return self.text(key) if is_name or not FIELD.fullmatch(key) else key

    def _without_secrets(self, text: str) -> str:
        for pattern in WHOLE:
            text = pattern.sub(self._as_whole("secret"), text)
        for pattern in AFTER_A_NAME:
            text = pattern.sub(self._after_name("secret"), text)
        return text

    def _without_places(self, text: str) -> str:
        """Without addresses, serial numbers and home folders: the owner's becomes `~`, others are numbered."""
        text = EMAIL.sub(self._as_whole("email"), text)
        text = UUID.sub(lambda found: found.group(1), text)
        text = SERIAL.sub(self._after_name("serial"), text)
        for pattern in (MAC, NAMED_BY_ADDRESS):
            text = pattern.sub(self._as_whole("address"), text)
        for pattern in (IPV6, IPV4):
            text = pattern.sub(self._address, text)
        text = self._homes.sub("~", text) if self._homes else text
        return HOMES.sub(self._home, text)

    def _home(self, found: re.Match[str]) -> str:
        folder, name = found.groups()
        if name.lower() in NOBODYS:
            return found.group()
        return folder + ("<user>" if name in self._own else self._word("user", name))

    def _address(self, found: re.Match[str]) -> str:
        text = found.group()
        before = found.string[max(0, found.start() - 16) : found.start()]
        is_version = text in self._keep or (":" not in text and BEFORE_A_VERSION.search(before))
        if is_version or text in LOCAL or not _is_address(text):
            return text
        return self._word("address", text)

    def _as_whole(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda found: self._word(kind, found.group())

    def _after_name(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda found: found.group(1) + self._word(kind, found.group(2))

    def _word(self, kind: str, value: str) -> str:
        """`<kind-1>` for the first such value, `<kind-2>` for the second; an existing placeholder stays."""
        if re.fullmatch(r"<[a-z]+-[0-9]+>", value):
            return value
        known = self._words.setdefault(kind, {})
        return known.setdefault(value, f"<{kind}-{len(known) + 1}>")


def _home_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """From the environment and the user database, each also with links resolved."""
    folders = [environment.get("HOME", "")]
    try:
        import pwd

        folders.append(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):
        folders.append(environment.get("USERPROFILE", ""))
    return _distinct(name for folder in folders if folder for name in (folder, os.path.realpath(folder)))


def _distinct(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def _telling(names: Collection[str]) -> list[str]:
    return [name for name in names if name.lower() not in NOBODYS]


def _any_of(names: Collection[str], *, before: str, after: str) -> re.Pattern[str] | None:
    """Any of these names as a whole word, in any case, the longest first; None without names."""
    escaped = [re.escape(name) for name in sorted(names, key=len, reverse=True) if len(name) > 1]
    return re.compile(f"{before}(?:{'|'.join(escaped)}){after}", re.IGNORECASE) if escaped else None


def _is_address(text: str) -> bool:
    try:
        (IPv6Address if ":" in text else IPv4Address)(text)
    except AddressValueError:
        return False
    return True
