"""The processes that a test has started, and no others of the machine."""

from __future__ import annotations

import os
import time

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


def ended(process: int) -> bool:
    """Whether a process ends within ten seconds."""
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
