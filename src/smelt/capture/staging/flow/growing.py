"""Containers that data make longer: they become values of the graph before the loop or branch that does it, wherever
they are referred to.

    out = []                              %out = py.list()
    for i in range(n):            ==>     %1 = for ... with (%2 = %out) { %3 = if ... { py.append(%2, ...) } ... }
        if x[i] > 0: out.append(i)

Invariant: nobody still holds the container that was there before, which is none of the arguments'.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from types import CellType, FrameType
from typing import Any, NoReturn

from smelt.capture.convert.runtime import Variables
from smelt.capture.reads.reads_values import home_of
from smelt.capture.recording.spans import Site
from smelt.capture.staging.fakes.symbols import WORLDS, ScalarSlot, StagedObject, class_of, is_staged, slot_of
from smelt.capture.staging.flow.assumptions import Assumptions
from smelt.capture.staging.flow.stops import Again
from smelt.capture.staging.objects.carried_leaves import leaf_type
from smelt.capture.staging.objects.containers import contents, has_slots_only, refill
from smelt.capture.staging.objects.heap import Snapshot
from smelt.capture.staging.session import Session
from smelt.ir import ANY, NONE, DictType, ListType, TupleType, Type, join

# Where a walk finds what it holds, and what a run itself makes to look at things.
_OF_WALKS = (dict, list, tuple, CellType, FrameType)


class Grows(BaseException):
    """A container grows in a loop: it must be staged before it, as one of a type."""

    def __init__(self, grown: object, type_: Type, site: Site | None) -> None:
        super().__init__("a container grows")
        self.grown, self.type, self.site = grown, type_, site


def item_type(session: Session, item: object) -> Type | None:
    """The type of what a traced container holds; None for what none can hold."""
    if item is None:
        return NONE
    if class_of(item) is not None:
        return ANY
    if type(item) is tuple:
        parts = [item_type(session, part) for part in item]
        return None if None in parts else TupleType(tuple(parts))  # type: ignore[arg-type]
    if type(item) in (list, dict):
        return container_type(session, [item])
    return leaf_type(session, item)


def container_type(session: Session, containers: Sequence[Any]) -> Type | None:
    """The type of a container that holds what some containers of a kind hold; None where there is none."""
    if any(type(c) is dict for c in containers):
        return _dict_type(session, [k for c in containers for k in c], [v for c in containers for v in c.values()])
    types: list[Type | None] = []
    for container in containers:
        if is_staged(container):
            found = slot_of(container).type
            types += [found.element] if isinstance(found, ListType) else [None]
        else:
            types += [item_type(session, item) for item in container]
    return None if None in types else ListType(_joined(session, types))


def _dict_type(session: Session, keys: Sequence[object], values: Sequence[object]) -> Type | None:
    of_keys = [item_type(session, key) for key in keys]
    of_values = [item_type(session, value) for value in values]
    if None in of_keys or None in of_values:
        return None
    return DictType(_joined(session, of_keys), _joined(session, of_values))


def must_be_staged(session: Session, container: object, value: object, *key: object) -> NoReturn:
    """A value is put where only a run knows: into a list, or under a key. Raises: Grows, CannotStage."""
    if isinstance(container, dict):
        type_ = _dict_type(session, [*container, *key], [*container.values(), value])
    else:
        type_ = container_type(session, [container, [value]])
    if type_ is None:
        session.cannot(f"a {type(container).__name__} is written at an index that is not known until run time")
    raise Grows(container, type_, session.site())


def extends(session: Session, container: list[object], more: object) -> NoReturn:
    """A list takes in a traced one. Raises: Grows, CannotStage."""
    type_ = container_type(session, [container, more])
    if type_ is None:
        session.cannot("a list receives a value that no traced list can contain")
    raise Grows(container, type_, session.site())


def _joined(session: Session, types: Iterable[Type | None]) -> Type:
    found: Type | None = None
    for type_ in types:
        assert type_ is not None
        if found is None or found == type_:
            found = type_
        else:
            wider = session.domain.widened(found, type_)
            found = join(found, type_) if wider is None else wider
    return ANY if found is None else found


def _check_holders(session: Session, site: Site | None, grown: object, snapshot: Snapshot) -> None:
    """Nothing holds a container that no walk comes to: a generator's frame, a context manager, `itertools`' objects.

    All that Python's collector knows of is asked, which takes a while, so once for each place of a program.

    Raises: CannotStage.
    """
    place = (site, len(session.recorder.records))
    asked = session.budget.asked if session.budget is not None else set()
    if place in asked:
        return
    known_holders = snapshot.parents.get(id(grown), ())
    for holder in gc.get_referrers(grown):
        if isinstance(holder, _OF_WALKS) or any(holder is known for known in known_holders):
            continue
        if not home_of(type(holder)).startswith("smelt."):
            what = f"a {type(grown).__name__} that grows in a loop is contained in a {type(holder).__name__}"
            session.cannot(what, "it cannot be replaced there")
    asked.add(place)


def stage_container(
    session: Session,
    site: Site | None,
    grown: Any,
    type_: Type,
    variables: Variables,
    snapshot: Snapshot,
    *,
    is_carried: bool = False,
) -> StagedObject:
    """A staged container that stands for one of Python's from now on, wherever it is referred to.

    snapshot: of all that may refer to it. is_carried: a loop does, of which each turn but the first has it longer.
    """
    if id(grown) in session.heap.callers:
        session.cannot(f"a {type(grown).__name__} of an argument grows", "others hold it, and see it grow")
    for key, lists in session.heap.gone_over:
        if any(one is grown for one in lists):
            if key is not None:
                raise Again(Assumptions(lists={key: type_}))
            session.cannot("a list grows in a loop over it, in some runs", "Python goes over what is put in, too")
    _check_holders(session, site, grown, snapshot)
    is_dict = isinstance(grown, dict)
    items = [part for item in grown.items() for part in item] if is_dict else grown
    session.domain.note_held(items)
    operands = [
        session.encode(item if class_of(item) is None else session.domain.as_in_program(item)) for item in items
    ]
    examples: tuple[Any, ...] = ({},) * WORLDS if is_dict else tuple([None] * len(grown) for _ in range(WORLDS))
    if is_carried and not is_dict:
        # What a turn does with the list is looked at before it shows that the loop carries it.
        examples = session.examples.of(type_)
    slot = ScalarSlot(type_, examples)
    slot.length = None if is_dict else len(grown)
    session.append("py.dict" if is_dict else "py.list", operands, {}, [slot], site)
    staged = StagedObject(slot)
    kind = type(grown).__name__
    values = variables.get()
    for holder in snapshot.parents.get(id(grown), ()):
        if isinstance(holder, (tuple, frozenset, set)):
            session.cannot(f"a {kind} that grows in a loop is contained in a tuple or a set")
        if isinstance(holder, dict):
            for key in [k for k, v in holder.items() if v is grown]:
                holder[key] = staged
        elif isinstance(holder, list):
            holder[:] = [staged if item is grown else item for item in holder]
        elif isinstance(holder, CellType):
            holder.cell_contents = staged
        elif isinstance(holder, type):
            session.cannot(f"a {kind} that grows in a loop is an attribute of a class")
        elif has_slots_only(holder) and any(held is grown for held in contents(holder).values()):
            refill(holder, {name: staged if held is grown else held for name, held in contents(holder).items()})
        else:
            held_by = "a method that is bound to it" if callable(holder) else f"a {type(holder).__name__}"
            session.cannot(f"a {kind} that grows in a loop is contained in {held_by}", "it cannot be replaced there")
    variables.set(tuple(staged if value is grown else value for value in values))
    if session.heap.held_by_callers(grown):
        session.cannot(
            f"a {kind} that grows in a loop is contained in the caller", f"a traced {kind} cannot replace it there"
        )
    return staged
