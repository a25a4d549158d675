"""Progress bars of a library, held back while it reads files that are already here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No transformers progress bars inside; afterwards they are as before."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
