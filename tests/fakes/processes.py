"""The processes that a test has started, and no others of the machine."""

from __future__ import annotations

import psutil


def reward_processes() -> set[int]:
    """The processes of reward functions below this one. Ray and other programs start and end theirs meanwhile."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if "rl_compat.rewards.processes.worker" in " ".join(child.cmdline()):
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found
