"""`load_config` and `judge_config` that understand verl's files and keys, as the command line calls them."""

from __future__ import annotations

from functools import partial

from rl_compat import verl
from rl_compat.config import load

load_config = partial(load.load_config, dialect=verl)
judge_config = partial(load.judge_config, dialect=verl)
