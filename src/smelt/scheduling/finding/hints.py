"""Why a search found nothing, where that can be told: a name that is nearly one, a number that was taken for a tensor.

s.find("atention")                      did you mean 'attention'?
s.find(lambda x, k: x * k)              k stands for a tensor; as a number (k: float) the pattern is there
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from smelt.diag import SmeltError
from smelt.scheduling.finding.finding import reader
from smelt.scheduling.finding.target import Target


def name_of(pattern: Any) -> str:
    """A pattern as a person calls it."""
    return repr(pattern) if isinstance(pattern, str) else str(getattr(pattern, "__name__", type(pattern).__name__))


def why_none(pattern: Any, targets: Iterable[Target], names: Iterable[str], escaping: bool) -> str:
    """What may be amiss with a pattern that is nowhere; "" where nothing is known to be.

    names: the paths of the modules that a name may stand for.
    """
    if isinstance(pattern, str):
        return _near(pattern, names)
    if isinstance(pattern, FunctionType):
        return _as_number(pattern, list(targets), escaping)
    return ""


def _near(name: str, paths: Iterable[str]) -> str:
    known = dict.fromkeys(part for path in paths if path for part in (path, path.rpartition(".")[2]))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return "no module has that name; print the schedule to see its modules"


def _as_number(pattern: FunctionType, targets: list[Target], escaping: bool) -> str:
    """Whether a parameter without a type, which is a tensor, would be there as a number."""
    untyped = [p.name for p in inspect.signature(pattern).parameters.values() if p.annotation is p.empty]
    for name in reversed(untyped):
        for kind in (float, int):
            try:
                find: Callable[[Target], list[Any]] = reader(_annotated(pattern, name, kind), escaping)
                if any(find(target) for target in targets):
                    return (
                        f"{name} is a tensor, since it has no type; as a number ({name}: {kind.__name__}) "
                        "the pattern is there"
                    )
            except SmeltError:
                continue
    return ""


def _annotated(pattern: FunctionType, name: str, kind: type) -> FunctionType:
    made = FunctionType(
        pattern.__code__, pattern.__globals__, pattern.__name__, pattern.__defaults__, pattern.__closure__
    )
    made.__kwdefaults__ = pattern.__kwdefaults__
    made.__annotations__ = {**pattern.__annotations__, name: kind}
    made.__qualname__ = pattern.__qualname__
    return made
