"""What ends a staged run, or a part of it. Not `Exception`s, so that the program's own handlers let them through."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Iterator

from smelt.capture.recording.spans import Site, is_smelts
from smelt.capture.staging import current
from smelt.capture.staging.flow.assumptions import Assumptions

EFFECT = "an effect on Python's objects is no part of a graph"
MEMBERS = "a set of dynamic values has a data-dependent size"
TAKEN_APART = "how many numbers it has is not known until run time"
NO_FORM = "it has no form in a graph"
ACTS = ("something that objects hold outside of containers, or a setting, is changed on one path only", EFFECT)
OUTSIDE_OF_PYTHON = "a run on fake tensors must not do what cannot be undone"
"""Reasons for which there is a way of their own out."""

PARTLY = "an attribute that is only written is written on some paths only"
"""What it held before a call matters then, as for state."""

TOO_LONG, TOO_MANY = "staging took too long", "the program has too many paths"
"""What ended a run that another one of the program would come to as well."""


class Stop(BaseException):
    """The run cannot go on as it stands."""


class CannotStage(Stop):
    """Nothing that this run could do differently would help; `what` and `why` are for the error."""

    def __init__(self, what: str, why: str, site: Site | None = None) -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why, self.site = what, why, site
        _note(self)


class Exhausted(CannotStage):
    """The run took too long, or too many ways."""


class CannotMerge(CannotStage):
    """Two outcomes have no common form; who knows another way than merging them takes it."""


class CannotGrow(CannotMerge):
    """The outcomes left other contents in a container; contents: containers of what it came to hold."""

    def __init__(self, what: str, why: str, site: Site | None, container: object, contents: tuple[object, ...]) -> None:
        super().__init__(what, why, site)
        self.container, self.contents = container, contents


class Again(Stop):
    """The run starts again; more: what it is to begin with besides what this one has found."""

    def __init__(self, more: Assumptions) -> None:
        super().__init__("again")
        self.more = more
        _note(self)


@contextlib.contextmanager
def letting_go() -> Iterator[None]:
    """What the program's frames hold is let go of where the block raises: a generator that is left unfinished acts as
    it ends (`finally`), and what it does then is put back with all else.
    """
    try:
        yield
    except BaseException as error:
        session = current.found()
        _let_go(error)
        _let_go(None if session is None else session.stopped)
        raise


def _let_go(error: BaseException | None) -> None:
    told, sys.unraisablehook = sys.unraisablehook, lambda of: None  # this is not the program's own run
    seen: set[int] = set()
    try:
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            for frame, _ in traceback.walk_tb(error.__traceback__):
                is_own = is_smelts(frame.f_code.co_filename)
                if not (is_own and frame.f_code.co_flags & inspect.CO_GENERATOR):  # those hold what is patched
                    with contextlib.suppress(RuntimeError):  # it runs
                        frame.clear()
                        _ = frame.f_locals  # a copy that somebody asked for is made anew, of nothing
            error = error.__cause__ or error.__context__
    finally:
        sys.unraisablehook = told


def _note(stop: Stop) -> None:
    """Remember a stop: a bare `except` of the program's may let it go under."""
    session = current.found()
    if session is not None and session.stopped is None and not isinstance(stop, CannotMerge):
        session.stopped = stop
