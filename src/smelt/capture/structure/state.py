"""State of a program outside its arguments, which it reads and leaves changed, as one more argument of the program.

    self.n += 1                     place self.n            read before the call, put after it
    counter["calls"] += 1           place counter           its items are compared and put like those of an argument

A compiled program that changes such places is called with one more keyword, `STATE`: a tuple of what they hold. All
that is true of arguments is true of these: tensors and numbers among them are inputs of the graph, containers are
compared part by part, what the run leaves in them is put there after each call (`capture.structure.puts`).

Invariant: nothing of the user's is called; places are read and put past `__getattr__`, `__setattr__` and their kin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_values import cell_contents
from smelt.diag.records import distinct_record

if TYPE_CHECKING:
    from smelt.capture.reads.reads_facts import Site

STATE = "<state>"
"""The keyword; no name that Python code can write."""

Kind = Literal["entry", "cell", "slot", "class", "object"]


@distinct_record
class Place:
    """One place. kind: what `space` is, and how `key` is looked up there.

    "entry": a dict (an object's attributes, a module's buffers, globals); "cell": a closure cell; "slot": the
    descriptor is `key`, and `space` the object; "class": an attribute that the class `space` holds itself; "object":
    `space` itself, a container that is known by identity, and by its contents.
    owner: the object whose attribute it is, None for other places. name: as code, for people; key_name: a cell's name.
    is_appended: it holds a list that the program appends to, and does nothing else with; its contents are no argument.
    """

    kind: Kind
    space: Any
    key: Any
    name: str
    owner: Any = None
    site: Site | None = None
    key_name: str = ""
    is_appended: bool = False

    def read(self) -> Any:
        """What it holds now, MISSING for nothing."""
        match self.kind:
            case "entry":
                return dict.get(self.space, self.key, MISSING)
            case "cell":
                return cell_contents(self.space)
            case "slot":
                try:
                    return self.key.__get__(self.space)
                except AttributeError:
                    return MISSING
            case "class":
                return self.space.__dict__.get(self.key, MISSING)
        return self.space

    def put(self, value: object) -> None:
        """Have it hold a value, or nothing (MISSING)."""
        match self.kind:
            case "entry" if value is MISSING:
                self.space.pop(self.key, None)
            case "entry":
                self.space[self.key] = value
            case "cell" if value is MISSING:
                del self.space.cell_contents
            case "cell":
                self.space.cell_contents = value
            case "slot" if value is MISSING:
                self.key.__delete__(self.space)
            case "slot":
                self.key.__set__(self.space, value)
            case "class" if value is MISSING:
                type.__delattr__(self.space, self.key)
            case "class":
                type.__setattr__(self.space, self.key, value)

    def is_at(self, container: object, key: object) -> bool:
        """Whether it is this entry of a container."""
        if container is not self.space:
            return False
        name = self.key.__name__ if self.kind == "slot" else self.key
        return self.kind == "cell" or (self.kind in ("entry", "class", "slot") and type(key) is str and key == name)

    @property
    def attribute(self) -> tuple[int, str] | None:
        """Its owner and name, where it is an attribute."""
        if self.owner is None:
            return None
        return id(self.owner), self.key.__name__ if self.kind == "slot" else self.key

    @property
    def spot(self) -> tuple[int, object]:
        """What tells it from others, while what holds it lives."""
        return id(self.space), self.key if self.kind in ("entry", "slot", "class") else None


def held_at(place: Place) -> Any:
    """What a place holds; of a list that is appended to, its items as a tuple."""
    held = place.read()
    return tuple(held) if place.is_appended and type(held) is list else held


def reader(places: Sequence[Place]) -> Callable[[], tuple[object, ...]]:
    """Straight code for what those that are arguments hold. It raises LookupError, ValueError or AttributeError for
    nothing, and where one that is appended to holds no list, or one that is an argument.
    """
    scope: dict[str, object] = {"no_list": _no_list}
    parts: list[str] = []
    lists: list[str] = []
    for i, place in enumerate(places):
        scope[f"s{i}"], scope[f"k{i}"] = place.space, place.key
        code = {
            "entry": "s{i}[k{i}]",
            "cell": "s{i}.cell_contents",
            "slot": "k{i}.__get__(s{i})",
            "class": "s{i}.__dict__[k{i}]",
            "object": "s{i}",
        }[place.kind]
        if place.is_appended:
            lists.append(code.format(i=i))
        else:
            parts.append(code.format(i=i))
    tests = [f"type({code}) is list" for code in lists]
    tests += [f"{one} is not {other}" for one, other in combinations((*lists, *parts), 2) if lists and one in lists]
    text = f"({', '.join(parts)},)" if parts else "()"
    if tests:
        text = f"{text} if {' and '.join(tests)} else no_list()"
    found: Callable[[], tuple[Any, ...]] = eval(f"lambda: {text}", scope)
    return found


def _no_list() -> object:
    raise ValueError


def without_state(kwargs: Mapping[str, object]) -> Mapping[str, object]:
    """The keywords that the program itself is called with."""
    return {k: v for k, v in kwargs.items() if k != STATE} if STATE in kwargs else kwargs


def argument(number: int) -> str:
    """Where a place stands among the arguments."""
    return f"kwargs[{STATE!r}][{number}]"


def in_names(text: str, places: Sequence[Place]) -> str:
    """A text about the arguments with the names of places."""
    for number in range(len(places) - 1, -1, -1):
        text = text.replace(argument(number), places[number].name)
    return text.replace(f"kwargs[{STATE!r}]", "its state")


@contextmanager
def holding(
    places: Sequence[Place], kwargs: Mapping[str, Any], put_contents: Callable[[object, object], None]
) -> Iterator[dict[str, object]]:
    """The keywords of a call whose places hold what these say, for the time of the block.

    put_contents: has a container hold what another one holds; a container that is known by identity stays itself.
    """
    if not places:
        yield dict(kwargs)
        return
    places = [place for place in places if not place.is_appended]
    before = [place.read() for place in places]
    given = list(kwargs[STATE])
    kept: list[tuple[object, object]] = []
    try:
        for i, place in enumerate(places):
            if given[i] is before[i]:
                continue
            if place.kind == "object":
                kept.append((place.space, _copied(place.space)))
                put_contents(place.space, given[i])
                given[i] = place.space
            else:
                place.put(given[i])
        yield {**kwargs, STATE: tuple(given)}
    finally:
        for place, value in zip(places, before, strict=True):
            if place.kind != "object" and place.read() is not value:
                place.put(value)
        for container, copy in kept:
            put_contents(container, copy)


def _copied(container: object) -> Any:
    return type(container)(container) if isinstance(container, (list, dict)) else container


__all__ = ["STATE", "Place", "argument", "held_at", "holding", "in_names", "reader", "without_state"]
