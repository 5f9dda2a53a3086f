"""What Smelt tells while it works, by kind, through Python's `logging`; SMELT_LOGS shows kinds of it on standard error.

    SMELT_LOGS=recompiles,breaks python model.py
    SMELT_LOGS=help python model.py

Invariant: without SMELT_LOGS nothing is shown, and nothing is put together that no logger wants. The loggers are
`smelt.recompiles` and so on, so that a program may have them by `logging.getLogger("smelt").setLevel("INFO")`.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping
from types import MappingProxyType

from smelt.diag.errors import SmeltWarning
from smelt.diag.frames import user_level

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "recompiles": "why a call was compiled anew: the guard that failed, the value before and now",
        "breaks": "what runs in eager mode or as partitions, and why",
        "guards": "all that a compiled entry checks at each call, with the line that read it",
        "passes": "each pass that changed a graph, with its time and the nodes before and after",
        "kernels": "each kernel that was made: what it computes, its bytes and operations",
    }
)
_ROOT = logging.getLogger("smelt")
_ROOT.addHandler(logging.NullHandler())  # or logging's last resort would show what nobody asked for
_LOGGERS = {kind: logging.getLogger(f"smelt.{kind}") for kind in KINDS}


def wants(kind: str) -> bool:
    """Whether anybody listens to this kind."""
    return _LOGGERS[kind].isEnabledFor(logging.INFO)


def tell(kind: str, text: str) -> None:
    """Log a message of this kind. Ask `wants` first where the text takes time to make."""
    _LOGGERS[kind].info("%s", text)


def show_kinds(wanted: str | None = None) -> None:
    """Show the kinds that SMELT_LOGS names, separated by commas: `all` for each, `help` for the list of them.

    A sign in front of a name is as in TORCH_LOGS: `+` is no more than the name, `-` takes it out. Unknown names are
    told in one warning that says what there is.
    """
    names = [name.strip() for name in (os.environ.get("SMELT_LOGS", "") if wanted is None else wanted).split(",")]
    chosen: dict[str, None] = {}
    unknown: list[str] = []
    for name in filter(None, names):
        bare = name.lstrip("+-").lower()
        these = list(KINDS) if bare == "all" else [bare] if bare in KINDS else []
        if name.startswith("-"):
            chosen = {kind: None for kind in chosen if kind not in these}
        else:
            chosen.update(dict.fromkeys(these))
        if bare == "help":
            print(help_text(), file=sys.stderr)
        elif not these:
            unknown.append(name)
    if unknown:
        text = f"SMELT_LOGS: unknown {', '.join(map(repr, unknown))}; known are {', '.join(KINDS)}, all and help"
        warnings.warn(text, SmeltWarning, stacklevel=user_level())
    if chosen:
        _listen(chosen)


def help_text() -> str:
    """The kinds and what each shows."""
    lines = [f"  {kind:<12}{what}" for kind, what in KINDS.items()]
    return "\n".join(["SMELT_LOGS takes names separated by commas:", *lines, "  all         each of these"])


def _listen(kinds: Mapping[str, None]) -> None:
    handler = next((one for one in _ROOT.handlers if isinstance(one, _Shown)), None)
    if handler is None:
        handler = _Shown()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        _ROOT.addHandler(handler)
    handler.kinds |= {f"smelt.{kind}" for kind in kinds}
    _ROOT.propagate = False  # or a program that logs to its terminal would have each message twice
    for kind in kinds:
        _LOGGERS[kind].setLevel(logging.INFO)


class _Shown(logging.Handler):
    """Writes the kinds that were asked for to standard error, as it is at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: frozenset[str] = frozenset()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name in self.kinds:
            sys.stderr.write(self.format(record) + "\n")
