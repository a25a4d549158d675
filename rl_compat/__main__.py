"""`python -m rl_compat` is `rlc`."""

from __future__ import annotations

import sys

from rl_compat.cli.app import main

if __name__ == "__main__":
    sys.exit(main(program="python -m rl_compat"))
