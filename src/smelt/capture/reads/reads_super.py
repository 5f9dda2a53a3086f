"""What a program reads of the bases of a class, past what is watched: `super()` asks no object for its attribute.

Invariant: what such a read finds follows from the bases' order and from what each holds under the name. That order is a
fact of the class; what they hold is noted before the first call of a function that asks for it, for each class of its
first argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_facts import Read, Site
from smelt.capture.reads.reads_scan import SuperRead, super_reads
from smelt.capture.reads.reads_values import is_special, is_user_class, own_attribute

if TYPE_CHECKING:
    from smelt.capture.reads.reads_roots import Roots


class Supers:
    """The functions that name `super`, and for what classes they have run."""

    def __init__(self) -> None:
        self._reads: dict[int, Sequence[SuperRead]] = {}
        self._entered: dict[tuple[int, int], type] = {}

    def __contains__(self, code: CodeType) -> bool:
        """Whether a function that has run names `super`."""
        return id(code) in self._reads

    def enter(self, roots: Roots, frame: FrameType) -> None:
        """A function of the user's is about to run."""
        code = frame.f_code
        reads = self._reads.get(id(code)) or [read for read in super_reads(code) if not is_special(read.name)]
        if not reads:
            return
        self._reads[id(code)] = reads
        own, start = frame.f_locals, frame.f_locals.get("__class__")
        names = code.co_varnames[: min(code.co_argcount, 1)]
        if any(read.is_explicit for read in reads):  # an inner function has the object of the one around it
            names += tuple(name for name in code.co_freevars if name != "__class__")
        for name in names:
            for cls in _asked(own.get(name, MISSING), start):
                if (id(code), id(cls)) not in self._entered:
                    self._entered[id(code), id(cls)] = cls
                    _hold_reads(roots, code, reads, cls.__mro__, start)


def _asked(value: object, start: object) -> Iterator[type]:
    """The classes whose bases `super()` may go through for an object: a class itself where it is one of them."""
    if isinstance(value, type) and (not isinstance(start, type) or any(base is start for base in value.__mro__)):
        yield value
    yield type(value)


def _hold_reads(roots: Roots, code: CodeType, reads: Iterable[SuperRead], mro: tuple[type, ...], start: object) -> None:
    after = mro[next((i for i, base in enumerate(mro) if base is start), len(mro)) + 1 :]
    for read in reads:
        site = Site(code, read.offset)
        if not read.is_explicit:
            _hold_first(roots, after, read.name, site)
        else:  # from any of them on
            for i in range(len(mro)):
                if is_user_class(mro[i]):
                    _hold_first(roots, mro[i + 1 :], read.name, site)


def _hold_first(roots: Roots, classes: Iterable[type], name: str, site: Site) -> None:
    """What the first of some classes that has a name holds under it is a fact; that those before have none, too."""
    for cls in classes:
        if (id(cls), name) in roots.state:
            return
        held, label = own_attribute(cls, name), f"{cls.__qualname__}.{name}"
        if held is not MISSING:
            roots.fact("static", cls, name, held, site, label)
            roots.reach(held, 0, label, site)
            return
        if is_user_class(cls):
            place = ("unset", id(cls), name)
            roots.facts.setdefault(place, Read("unset", cls, name, MISSING, site, label, cls, roots.name))
