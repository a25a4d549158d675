"""`python3 doctor`: run the doctor in a bare checkout, with nothing installed.

This file must work in every Python from 3.6 on: a Python that is too old for rl_compat is a finding like any other.
"""

import sys
from pathlib import Path

NEEDED = (3, 11)
NEWER = ("python3.12", "python3.13", "python3.11", "python3.14")
"Pythons to look for, in the order in which torch's wheels support them best"


def main() -> int:
    """Diagnose, or report that this Python is too old, with exit code 1."""
    if sys.version_info < NEEDED:
        return refuse_python()
    if not __package__:
        find_package()
    from rl_compat.doctor.command import main as run

    return run(program="python3 doctor" if not __package__ else "python3 -m " + __package__)


def find_package() -> None:
    """Put the checkout on the path instead of this folder, even if it has lost its symbolic links."""
    root = Path(__file__).resolve().parent.parent
    sys.path[0] = str(root)
    if not (root / "rl_compat" / "doctor").is_dir():
        import rl_compat

        rl_compat.__path__.append(str(root))


def refuse_python() -> int:
    """Print one finding and the commands that fix it, as text or JSON."""
    import json

    found, needed = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, NEEDED))
    what = "this is Python " + found + ", rl_compat needs " + needed + " or newer"
    why = "rl_compat cannot be installed into this Python; no other check ran"
    remedies = list_remedies()
    if "--json" in sys.argv:
        print(json.dumps(as_report(what, why, remedies), indent=2))
        return 1
    print("failure: " + what)
    print("  " + why)
    print("  found in " + str(sys.executable))
    for number, (text, commands) in enumerate(remedies):
        print("")
        print(("# or " if number else "# ") + text)
        print("\n".join(commands))
    return 1


def as_report(what: str, why: str, remedies: list) -> dict:
    """The finding in the form that `report/as_json.py` describes."""
    finding = {
        "id": "python.too_old",
        "severity": "failure",
        "what": what,
        "why": why,
        "where": [sys.executable],
        "affects": ["installation"],
        "remedies": [
            {"what": text, "step": "python", "commands": commands, "certainty": "uncertain" if number else "ready"}
            for number, (text, commands) in enumerate(remedies)
        ],
    }
    return {
        "schema": "rlc.doctor/2",
        "version": None,
        "exit_code": 1,
        "seconds": 0.0,
        "torch_seconds": None,
        "verdict": None,
        "once_fixed": None,
        "counts": {"ok": 0, "note": 0, "warning": 0, "failure": 1},
        "findings": [finding],
        "checks": [],
        "commands": ["# " + remedies[0][0], *remedies[0][1]],
        "hardware": None,
    }


def list_remedies() -> list:
    """Ways to a newer Python, as text and commands: an installed one first, then those that need no root."""
    from shlex import quote

    doctor = quote(str(Path(__file__).resolve().parent))
    ready = [name for name in NEWER if is_new_enough(name)]
    installed = [("use `" + name + "`, which is installed", [name + " " + doctor]) for name in ready[:1]]
    return [
        *installed,
        (
            "install uv, which downloads a Python into the home folder, without root",
            [
                "curl -LsSf https://astral.sh/uv/install.sh | sh",
                '"$HOME/.local/bin/uv" venv --seed --python 3.12 .venv',
                ".venv/bin/python " + doctor,
            ],
        ),
        (
            "use conda, if it is installed",
            ["conda create --yes --name rlc python=3.12", "conda run --name rlc python " + doctor],
        ),
        (
            "use pyenv, if it is installed; it compiles for minutes and needs a C compiler",
            ["pyenv install 3.12", "PYENV_VERSION=3.12 pyenv exec python " + doctor],
        ),
        (
            "use the packages of the system, with root; new enough in Ubuntu 24.04, Debian 12 and later",
            ["sudo apt install python3 python3-venv", "/usr/bin/python3 " + doctor],
        ),
    ]


def is_new_enough(name: str) -> bool:
    """Whether the command exists and works; the shim of a version manager may not."""
    import subprocess

    ask = "import sys; sys.exit(sys.version_info < " + repr(NEEDED) + ")"
    try:
        return subprocess.call([name, "-c", ask], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
