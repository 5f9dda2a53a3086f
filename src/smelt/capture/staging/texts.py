"""Texts of what only a run knows: of data, and of sizes and numbers that are free.

    f"{x.shape[0]} rows"     ==>     %1 = py.format(%n, ""); %2 = py.join(%1, " rows")

A size is free in texts unless Python itself has to know one of them (the name of something): such a run ends, and in
the next one `fixes_texts` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.dynamic.values import is_sized
from smelt.capture.staging.fakes.symbols import is_staged
from smelt.capture.staging.flow.iterables import StagedSequence

if TYPE_CHECKING:
    from smelt.capture.convert.runtime import Runtime
    from smelt.capture.staging.session import Session


def is_data(session: Session, value: object) -> bool:
    """Whether a value depends on data."""
    if isinstance(value, torch.Tensor):
        return bool(session.recorder.slot_of(value).family.tainted)
    return is_staged(value) or isinstance(value, StagedSequence)


def holds_staged(value: object) -> bool:
    """Whether a value is a staged one, or a list or tuple that holds one."""
    return is_staged(value) or (isinstance(value, (list, tuple)) and any(map(holds_staged, value)))


def holds_sized(value: object) -> bool:
    """The same of sizes and numbers that are free."""
    return is_sized(value) or (isinstance(value, (list, tuple)) and any(map(holds_sized, value)))


def holds_data(session: Session, value: object) -> bool:
    """The same of what depends on data."""
    return is_data(session, value) or (
        isinstance(value, (list, tuple)) and any(holds_data(session, item) for item in value)
    )


def is_said(session: Session, value: object) -> bool:
    """Whether the text of a value is made by the graph."""
    if holds_data(session, value):
        return True
    if session.assumed.fixes_texts or not holds_sized(value):
        return False
    session.has_texts = True
    return True


def own_text(value: object, name: str) -> FunctionType | None:
    """The function of a value's class, written in Python, by which `str` or `repr` makes its text."""
    if isinstance(value, (torch.Tensor, StagedSequence)) or is_staged(value):
        return None
    found = getattr(type(value), f"__{name}__", None)
    if found is object.__str__:
        found = type(value).__repr__
    return found if isinstance(found, FunctionType) else None


def text_of(session: Session, runtime: Runtime, value: object, name: str) -> object:
    """`str(value)` or `repr(value)`, as a text of the graph where it is one."""
    plain: Callable[[object], str] = str if name == "str" else repr
    if not is_said(session, value):
        own = None if session.assumed.fixes_texts or is_sized(value) else own_text(value, name)
        return plain(value) if own is None else runtime.call(0, own, (value,), {})
    made = ("py.str",) if name == "str" else ("py.call", "builtins.repr")
    return text(session, value, plain, lambda said: session.emit(*made, said))


def text(session: Session, value: Any, plain: Callable[[Any], Any], emit: Callable[[Any], Any]) -> Any:
    """A text of data; the graph's sequences have no class of their own, so that of others is asked of their members."""
    if type(value) is torch.Size:
        return session.emit("py.join", "torch.Size(", session.emit("py.str", list(value)), ")")
    return emit(_as_said(session, value)) if _is_of_plain_sequences(value) else plain(value)


def formatted(session: Session, function: str, pattern: str, values: object) -> Any:
    """`pattern % values`, and `pattern.format(*values)`; NotImplemented where Python's own does it."""
    if not is_said(session, values) or not _is_of_plain_sequences(values):
        return NotImplemented
    if function == "str.__mod__":
        return session.emit("py.mod", pattern, values if type(values) is torch.Size else _as_said(session, values))
    return session.emit("py.call", function, pattern, *_as_said(session, values))


def _as_said(session: Session, value: Any) -> Any:
    """A value whose text in the graph is its own: shapes are shapes there, and no tuples."""
    if type(value) is torch.Size:
        return session.emit("py.call", "torch.Size", list(value))
    if type(value) in (list, tuple):
        return type(value)(_as_said(session, item) for item in value)
    return session.domain.as_in_program(value)


def _is_of_plain_sequences(value: object) -> bool:
    return not isinstance(value, (list, tuple)) or (
        type(value) in (list, tuple, torch.Size) and all(map(_is_of_plain_sequences, value))
    )
