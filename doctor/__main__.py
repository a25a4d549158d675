"""`python3 doctor`: the doctor from a bare checkout, without anything installed.

Any Python 3 from 3.6 on must be able to read this file: one that is too old for rl_compat is a finding like any other.
"""

import sys
from pathlib import Path

NEEDED = (3, 11)
NEWER = ("python3.12", "python3.13", "python3.11", "python3.14")
"worth looking for, in the order in which torch's wheels suit them"


def main() -> int:
    """Diagnose, or say which Python is needed; the exit code is the command's, 1 for a Python that is too old."""
    if sys.version_info < NEEDED:
        return refuse_python()
    if not __package__:
        find_package()
    from rl_compat.doctor.command import main as run

    return run(program="python3 doctor" if not __package__ else "python3 -m " + __package__)


def find_package() -> None:
    """Put the checkout on the path instead of this folder; where links were not kept, its folders stand for them."""
    root = Path(__file__).resolve().parent.parent
    sys.path[0] = str(root)
    if not (root / "rl_compat" / "doctor").is_dir():
        import rl_compat

        rl_compat.__path__.append(str(root))


def refuse_python() -> int:
    """One finding and the commands that mend it, as text or JSON."""
    import json

    found, needed = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, NEEDED))
    what = "Python " + found + " runs this, rl_compat needs " + needed + " or newer"
    why = "nothing can be installed into this Python, and nothing else was looked at"
    remedies = list_remedies()
    if "--json" in sys.argv:
        print(json.dumps(as_report(what, why, remedies), indent=2))
        return 1
    print("failure: " + what)
    print("  " + why)
    print("  seen in " + str(sys.executable))
    for number, (words, commands) in enumerate(remedies):
        print("")
        print(("# or " if number else "# ") + words)
        print("\n".join(commands))
    return 1


def as_report(what: str, why: str, remedies: list) -> dict:
    """The one finding in the form that `report.py` describes."""
    finding = {
        "id": "python.too_old",
        "severity": "failure",
        "what": what,
        "why": why,
        "where": [sys.executable],
        "affects": ["installation"],
        "remedies": [
            {"what": words, "step": "python", "commands": commands, "sure": "unsure" if number else "paste"}
            for number, (words, commands) in enumerate(remedies)
        ],
    }
    return {
        "schema": "rlc.doctor/1",
        "version": None,
        "exit_code": 1,
        "seconds": 0.0,
        "torch_seconds": None,
        "verdict": None,
        "once_mended": None,
        "counts": {"ok": 0, "note": 0, "warning": 0, "failure": 1},
        "findings": [finding],
        "checks": [],
        "commands": ["# " + remedies[0][0], *remedies[0][1]],
        "hardware": None,
    }


def list_remedies() -> list:
    """Ways to a newer Python, each in words and commands: one that is here first, then those that need no root."""
    from shlex import quote

    doctor = quote(str(Path(__file__).resolve().parent))
    ready = [name for name in NEWER if is_new_enough(name)]
    here = [("use `" + name + "`, which is installed", [name + " " + doctor]) for name in ready[:1]]
    return [
        *here,
        (
            "uv brings a Python of its own into the home folder, without root",
            [
                "curl -LsSf https://astral.sh/uv/install.sh | sh",
                '"$HOME/.local/bin/uv" venv --seed --python 3.12 .venv',
                ".venv/bin/python " + doctor,
            ],
        ),
        (
            "conda, where it is installed",
            ["conda create --yes --name rlc python=3.12", "conda run --name rlc python " + doctor],
        ),
        (
            "pyenv, where it is installed: it compiles, which takes minutes and a C compiler",
            ["pyenv install 3.12", "PYENV_VERSION=3.12 pyenv exec python " + doctor],
        ),
        (
            "the system's packages, with root: new enough in Ubuntu 24.04, Debian 12 and later",
            ["sudo apt install python3 python3-venv", "/usr/bin/python3 " + doctor],
        ),
    ]


def is_new_enough(name: str) -> bool:
    """Whether the command is there and works: a version manager's stand-in may not."""
    import subprocess

    ask = "import sys; sys.exit(sys.version_info < " + repr(NEEDED) + ")"
    try:
        return subprocess.call([name, "-c", ask], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
