"""The words of `torch.compile` that `smelt.compile` and the backend take: a mode and a backend.

Invariant: a mode changes no answer. What it asks of torch's compiler is done by Smelt anyway, or stands among its
options; an option that the caller gives comes before what a mode says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from smelt.diag import Options, SmeltError

MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": {},
        "lite": {},
        "reduce-overhead": {},  # a call is one native function already
        "max-autotune": {"measure": True, "deterministic": False},
        "max-autotune-no-cudagraphs": {"measure": True, "deterministic": False},
    }
)
"""What each mode of torch's means here, as options."""


def with_mode(mode: str | None, options: Mapping[str, Any] | Options | None) -> Options:
    """The options of a call to `compile`, with what a mode of torch's asks for. Raises: SmeltError (S0301)."""
    if mode is None or isinstance(options, Options):
        return Options.make(options)
    if not isinstance(mode, str) or mode not in MODES:
        raise SmeltError(
            f"there is no mode {mode!r}",
            why=f"the modes are those of torch.compile: {', '.join(MODES)}",
            fix="leave it out, or say what you want with options= (help(smelt.Options) lists them)",
            code="S0301",
        )
    given = {} if options is None else options
    return Options.make({**MODES[mode], **given} if isinstance(given, Mapping) else given)


def check_backend(backend: Any) -> None:
    """Raises: SmeltError (S0301) for another backend than Smelt, with what to write for it."""
    if backend is None or backend == "smelt":
        return
    name = repr(backend) if isinstance(backend, str) else getattr(backend, "__name__", "my_backend")
    raise SmeltError(
        f"smelt.compile has no backend {name}",
        why="it makes native code of its own",
        fix=f"leave backend= out, or write torch.compile(f, backend={name})",
        code="S0301",
    )
