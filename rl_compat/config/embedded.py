"""Settings files that ship with the package, by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

DEFAULT = "gsm8k"
"what a run is when nothing was asked for"


def embedded_runs() -> dict[str, Path]:
    """Path by name, such as `gsm8k`."""
    folder = Path(str(resources.files("rl_compat.config"))) / "runs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
