"""Draws of Python's and NumPy's global generator in a staged run: each is one `py.draw` of the graph.

    p = random.random()         ==>         %p: float = py.draw("random.random")
    if p < 0.1: return x                    %c: bool = py.lt(%p, 0.1)   if %c { ... }

Invariant: the run itself draws nothing; a draw that has no such form ends it.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from smelt._torch.seen.dispatch import is_live
from smelt._torch.seen.record_patches import Patches
from smelt.capture.dynamic.values import is_sized
from smelt.capture.staging import current
from smelt.capture.staging.fakes.symbols import is_staged, slot_of
from smelt.capture.staging.flow.ranges import range_of_draw
from smelt.ir import BOOL, FLOAT, INT
from smelt.ops.python.python_draws import DRAWS, KEYWORDS, draw_name, gives_a_number

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

_MOST_ITEMS = 1024
_NUMBERS = (bool, int, float)
_patches = Patches()


class Draw:
    """What stands for a function that draws, while programs are staged."""

    __slots__ = ("__wrapped__",)

    def __init__(self, function: Callable[..., object]) -> None:
        self.__wrapped__ = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        session = current.found()
        if session is None or not is_live():
            return self.__wrapped__(*args, **kwargs)
        return drawn(session, draw_name(self.__wrapped__), args, kwargs)


def drawn(session: Session, name: str | None, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    """What a draw gives in the graph. name: one of `DRAWS`. Raises: CannotStage for what no graph draws."""
    kwargs = {key: value for key, value in kwargs.items() if value is not None or key != "size"}
    if name is None or not gives_a_number(name, args) or kwargs.keys() - KEYWORDS:
        session.cannot("more than a number is drawn", "a graph draws one number at a time")
    if DRAWS[str(name)] is not list:
        if not all(map(_is_number, (*args, *kwargs.values()))):
            session.cannot(f"{name} receives an argument that is not a number")
        found = session.emit("py.draw", name, *args, **kwargs)
        slot_of(found).within = range_of_draw(str(name), args, kwargs)
        return found
    items: Any = args[0] if args else None
    if type(items) not in (list, tuple, range) or not 0 < len(items) <= _MOST_ITEMS:
        return session.cannot(f"{name} draws from what is no list, or an empty or a long one")
    rest = args[1:]
    count = kwargs.get("k", rest[0] if rest and name == "random.sample" else 1)
    if type(count) is not int or kwargs.keys() - {"k"} or len(rest) > (name == "random.sample"):
        return session.cannot(f"{name} receives a parameter that is not a plain number")
    numbers = items if all(type(item) is type(items[0]) and _is_number(item) for item in items) else range(len(items))
    if name == "random.choice":
        found = session.emit("py.draw", name, list(numbers))
        return found if numbers is items else session.getitem(session.container(items), found)
    if numbers is not items:
        return session.cannot(f"{name} draws several of what are no numbers of one kind")
    drawn_ = session.emit("py.draw", name, list(numbers), k=count)
    return [session.emit("py.getitem", drawn_, i) for i in range(count)]


def _is_number(value: object) -> bool:
    return (
        type(value) in _NUMBERS or is_sized(value) or (is_staged(value) and slot_of(value).type in (INT, FLOAT, BOOL))
    )


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Functions that draw, where they are looked up in their modules, do so for the session of this thread."""
    with contextlib.ExitStack() as stack:
        for module in (random, sys.modules.get("numpy.random")):
            for name, function in list(vars(module).items()) if module is not None else ():
                if draw_name(function) is not None:
                    stack.enter_context(_patches.replaced(module, name, Draw))
        yield
