"""Keep the chatter of exporters and autotuners off the terminal; what fails still arrives as an exception."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallow prints, warnings and log records below ERROR for a block. Process-wide, so for one thread at a time."""
    before = logging.root.manager.disable
    sink = io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
