"""What stands at a number or key that depends on data, where it is no value of a graph: modules, functions, classes.

    self.experts[i](x)         self.experts: ModuleList      an arm for each module that it may be

Whatever the program does with it is done for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.staging.fakes.symbols import slot_of

if TYPE_CHECKING:
    from smelt.capture.convert.runtime import Runtime
    from smelt.capture.staging.session import Session

_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def holds_code(table: Any) -> bool:
    """Whether what stands in a list, or at the plain keys of a dictionary, has no form in a graph."""
    if isinstance(table, (list, tuple)):
        return any(map(_is_code, table))
    known = all(type(key) in (str, int, bool) for key in table)
    return known and any(map(_is_code, table.values()))


def is_list_of_code(value: object) -> bool:
    """Whether this is a list, a tuple or a container of modules that gives what has no form in a graph by number."""
    if type(value) in (list, tuple):
        return holds_code(value)
    return any(_gives_as(value, kind) for kind in _LISTS)


def is_table_of_code(value: object) -> bool:
    """Whether this is a dictionary, or one of modules, that gives what has no form in a graph by key."""
    return (type(value) is dict or _gives_as(value, torch.nn.ModuleDict)) and holds_code(value)


def _is_equal(session: Session, number: object, i: int) -> Callable[[], object]:
    """A test of a staged number, as an operand of `or`."""
    return lambda: session.emit("py.eq", number, i)


def at_number(
    session: Session, runtime: Runtime, items: Sequence[object], number: object, error: Callable[[Exception], Any]
) -> object:
    """The item at a staged number. error: notes an exception of the program's. Raises: IndexError, in eager's words."""
    found = list(items)
    for i, item in enumerate(found):
        matches = runtime.or_(
            0,
            _is_equal(session, number, i),
            _is_equal(session, number, i - len(found)),
        )
        if session.paths.fork(slot_of(matches)):
            return item
    if isinstance(items, (list, tuple)):
        raise error(IndexError(f"{type(items).__name__} index out of range"))
    said = session.emit("py.join", "index ", session.emit("py.str", number), " is out of range")
    raise error(IndexError(said))


def at_key(session: Session, table: Mapping[object, object], key: object, error: Callable[[Exception], Any]) -> object:
    """The item at a staged key. error: notes an exception of the program's. Raises: KeyError."""
    for known in table:
        if session.paths.fork(slot_of(session.emit("py.eq", key, known))):
            return table[known]
    raise error(KeyError(key))


def _gives_as(value: Any, kind: Any) -> bool:
    """Whether this is of a kind, and gives its items as that does."""
    return isinstance(value, kind) and getattr(type(value), "__getitem__", None) is kind.__getitem__


def _is_code(value: object) -> bool:
    return callable(value) and not isinstance(value, torch.Tensor)


AS_PYTHON = (at_number, at_key, _is_equal)
"""What does for the program what Python does: what is raised there is the program's."""
