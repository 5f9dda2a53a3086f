"""`register_primitive`: a primitive of the user's becomes a method of every schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from smelt.diag import ScheduleError
from smelt.scheduling.catalogue import registered
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.own_code import call_own
from smelt.scheduling.primitives import Primitive
from smelt.scheduling.schedule import Schedule


@overload
def register_primitive(primitive: type[Primitive]) -> type[Primitive]: ...
@overload
def register_primitive(primitive: Callable[..., None]) -> Callable[..., None]: ...
@overload
def register_primitive(
    primitive: None = None, *, name: str | None = None, keeps_meaning: bool = True
) -> Callable[[Any], Any]: ...
def register_primitive(primitive: Any = None, *, name: str | None = None, keeps_meaning: bool = True) -> Any:
    """Make a primitive of one's own a method of every schedule; used as a decorator, too.

    primitive: a subclass of `smelt.Primitive`, or a function `(draft, at, **arguments)`, whose name is the method's.
    name: another name. keeps_meaning: of a function, as of `Primitive`.
    Raises: ScheduleError (S0606) for what is neither, or where a schedule has something of this name already.
    """
    if primitive is None:
        return lambda given: _register(given, name, keeps_meaning)
    return _register(primitive, name, keeps_meaning)


def _register(given: Any, name: str | None, keeps_meaning: bool) -> Any:
    made = _as_class(given, name, keeps_meaning)
    if made.name in registered or hasattr(Schedule, made.name) or not made.name.isidentifier():
        raise ScheduleError(
            f"a primitive cannot be called {made.name!r}",
            why="a schedule has a method or attribute of this name" if made.name.isidentifier() else "it is no name",
            fix="give it another name", code="S0606",
        )  # fmt: skip
    registered[made.name] = made
    return given


def _as_class(given: Any, name: str | None, keeps_meaning: bool) -> type[Primitive]:
    if isinstance(given, type) and issubclass(given, Primitive):
        given.name = name or given.name or given.__name__
        return given
    if callable(given) and not isinstance(given, type):
        called = name or str(getattr(given, "__name__", type(given).__name__))

        def apply(self: Primitive, draft: Draft, at: Selected, **arguments: Any) -> None:
            call_own(called, given, draft, at, **arguments)

        members = {"name": called, "keeps_meaning": keeps_meaning, "apply": apply, "__doc__": given.__doc__}
        return type(called, (Primitive,), {**members, "__module__": getattr(given, "__module__", __name__)})
    raise ScheduleError(
        f"{given!r} is no primitive", why="it is neither a subclass of smelt.Primitive nor a function",
        fix="write class Mine(smelt.Primitive): name = 'mine'; def apply(self, draft, at): ...", code="S0606",
    )  # fmt: skip
