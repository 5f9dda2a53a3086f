"""What a program reads and changes of annotations: of functions, where no hook sees it, and of classes.

Most programs read none. From the first code on that names them, those count of each function and class that the run
has reached, or will reach: the dictionary, what it holds and, from Python 3.14 on, the function that computes it.

Invariant: none is computed here. A dictionary that the run itself has computed is no change; what it held when it was
new is a fact, so that a later change of it is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from smelt._torch.annotations import ARE_COMPUTED, NAMES, annotate_held, annotations_held
from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.reads.reads_facts import Site
from smelt.capture.reads.reads_values import is_user_class
from smelt.diag.events import Returns

if TYPE_CHECKING:
    from types import FrameType

    from smelt.capture.reads.reads_roots import Roots

_HELD, _ANNOTATE = "__annotations__", "__annotate__"


class Annotations:
    """The functions and classes whose annotations count, and what was computed of them by the run."""

    def __init__(self) -> None:
        self._named: Site | None = None  # the code that named annotations first
        self._owners: dict[int, object] = {}
        self._annotates: dict[int, object] = {}  # by the id of the code that computes them, whose they are
        self._computed: dict[int, tuple[object, dict[object, object]]] = {}

    def enter(self, roots: Roots, code: CodeType, texts: Iterable[str]) -> None:
        """Code that runs for the first time. texts: what it may read with `getattr`."""
        if self._named is None and not NAMES.isdisjoint((*code.co_names, *texts)):
            self._named = Site(code, 0)
            for reached in list(roots.rooted.values()):
                self.meet(roots, reached.value)

    def enter_library(self, roots: Roots, code: CodeType) -> None:
        """The same for a library's code, as `inspect.signature`: it may name them in a text."""
        self.enter(roots, code, (text for text in code.co_consts if type(text) is str))

    def meet(self, roots: Roots, value: object) -> None:
        """A value that the run has reached."""
        if self._named is None:
            return
        if type(value) is FunctionType:
            if file_kind(value.__code__.co_filename) == "user":
                self._hold(roots, value)
        else:
            for base in (value if isinstance(value, type) else type(value)).__mro__:
                if is_user_class(base):
                    self._hold(roots, base)

    def _hold(self, roots: Roots, owner: object) -> None:
        if id(owner) in self._owners:
            return
        self._owners[id(owner)] = owner
        held, annotate = annotations_held(owner), annotate_held(owner)
        label = f"{owner.__qualname__}.{_HELD}" if isinstance(owner, type) else None
        kind = "annotation" if ARE_COMPUTED or label is not None else "attr"
        roots.fact(kind, owner, _HELD, held, self._named, label)
        if held is not MISSING:
            roots.reach(held, id(owner), f".{_HELD}", self._named)
        if ARE_COMPUTED:
            roots.fact("annotation", owner, _ANNOTATE, annotate, self._named)
            if type(annotate) is FunctionType:
                self._annotates.setdefault(id(annotate.__code__), owner)

    def expect(self, roots: Roots, code: CodeType, frame: FrameType, returns: Returns) -> bool:
        """A call begins: whether it computes annotations, which it gives out new."""
        owner = self._annotates.get(id(code))
        if owner is None:
            return False
        returns.expect(frame, partial(self._note, roots, owner))
        return True

    def _note(self, roots: Roots, owner: object, made: object) -> None:
        if type(made) is dict:
            self._computed[id(made)] = made, dict(made)
            for name, value in made.items():
                roots.reach(value, id(owner), f".{_HELD}[{name!r}]", self._named)

    def finish(self, roots: Roots) -> None:
        """The run has ended: what it computed counts as if it had been there."""
        for number, owner in self._owners.items():
            place = ("annotation", number, _HELD)
            fact = roots.facts.get(place)
            if fact is None or fact.value is not MISSING:
                continue
            now = annotations_held(owner)
            if now is MISSING:
                if not isinstance(owner, type):  # nobody has read them
                    del roots.facts[place]
                continue
            annotate = roots.facts.get(("annotation", number, _ANNOTATE))
            if annotate is not None and annotate.value is not annotate_held(owner):
                continue
            roots.facts[place] = fact._replace(value=now)
            is_made_empty = annotate is None or annotate.value is None  # by Python, for a class without any
            _, new = self._computed.get(id(now), (now, {} if is_made_empty else dict(now)))
            roots.hold_container(now, new, number, f".{_HELD}", self._named)
