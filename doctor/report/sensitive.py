"""Patterns of secrets, addresses and names of people in texts."""

from __future__ import annotations

import re

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
