"""`warnings.warn` in a staged run: a node of the graph, with the line that the warning points to.

Invariant: frames are counted as eager counts them: those of the runtime are none, and the pieces that a function was
converted to are one, comprehensions included where they have no frame of their own.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from smelt.capture.convert.names import is_inline
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.staging.fakes.symbols import is_staged

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

_PLAIN = (str, int, float, bool, type(None))
_CALL = "call"  # of the runtime: what calls functions of the program, where its others go on in one


def showing() -> tuple[Any, ...]:
    """What decides how warnings are shown; `warnings.catch_warnings` replaces it."""
    return warnings.filters, warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)


def record_warning(
    session: Session, message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None, **others: Any
) -> None:
    """Have the graph warn as `warnings.warn` of these arguments does, where it can. Raises: CannotStage."""
    kind = type(message) if isinstance(message, Warning) else UserWarning if category is None else category
    if not isinstance(kind, type) or not issubclass(kind, Warning) or type(stacklevel) is not int or others:
        session.cannot(
            "a warning is issued", "its class is no class of warnings, or its line is not known until run time"
        )
    values = message.args if isinstance(message, Warning) else (message,)
    is_plain = all(type(v) in _PLAIN or is_staged(v) for v in values) and not getattr(message, "__dict__", None)
    if _is_ignored(session, kind) or not (is_plain and _is_found_again(kind)):
        return
    frames = _frames(session, sys._getframe(1))
    name = f"{kind.__module__}.{kind.__name__}"
    if stacklevel > len(frames):
        session.statement("py.warn", name, "sys", 1, "sys", *values, above=stacklevel - len(frames))
        return
    file, line, module = frames[max(stacklevel, 1) - 1]
    session.statement("py.warn", name, file, line, module, *values)


def _is_ignored(session: Session, kind: type[Warning]) -> bool:
    """Whether the program itself asked not to be warned. Raises: CannotStage where it asked for anything else."""
    filters, *shown = showing()
    if filters is session.showing[0] and (*shown,) == session.showing[1:]:
        return False
    if (*shown,) == session.showing[1:] and filters:
        action, text, category, module, line = filters[0]
        if action == "ignore" and text is None and module is None and not line and issubclass(kind, category):
            return True
    session.cannot("a warning is issued", "the program decides there what becomes of its warnings")
    return True


def _is_found_again(kind: type[Warning]) -> bool:
    """Whether the graph can make one: by the name of its class, whose constructor is Python's."""
    own = isinstance(kind.__init__, FunctionType) or isinstance(kind.__new__, FunctionType)
    return not own and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _frames(session: Session, frame: FrameType | None) -> list[tuple[str, int, str]]:
    """File, line and module of the program's frames, the innermost first."""
    found: list[tuple[str, int, str]] = []
    last, below, inside = None, None, False  # below: the runtime's frame that the one at hand called
    while frame is not None and frame is not session.base_frame:
        code = frame.f_code
        if file_kind(code.co_filename) == "smelt":
            below = code.co_name
        else:
            this = code.co_filename, code.co_qualname
            if this != last or (below in (None, _CALL) and not inside):
                found.append((code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__", "<string>"))))
            last, below, inside = this, None, is_inline(code)
        frame = frame.f_back
    return found
