"""Lists and dictionaries that stand in others: values in the graph, in Python objects that each of their holders sees.

    bins[int(k)].append(v)             the list at %k is a value of its own, and %bins would not see the change
    row = [x]; rows.append(row)        %rows holds what `row` was; nobody may change `row` behind that

Invariant: nobody can tell a copy from the object: what stands in a container of the graph, or was copied into one, is
not changed from there on, and does not leave the program by two ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.fakes.symbols import is_staged, slot_of
from smelt.capture.staging.flow.iterables import StagedSequence
from smelt.capture.staging.objects.containers import are_the_same
from smelt.diag.records import record
from smelt.ir import DictType, ListType, OptionalType, TupleType, Type

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

_WHY = "containers of a graph are values, of which nobody else sees a change"
# Operators that put values into a container, from which operand on, and those that take one out.
_HOLDING = {"py.append": 1, "py.setitem": 1, "py.insert": 1, "py.list": 0, "py.tuple": 0, "py.dict": 0}
_STAYING = frozenset(("py.append", "py.setitem", "py.insert"))
_TAKING = frozenset(("py.getitem", "py.pop", "py.min", "py.max"))


@record
class _State:
    copied: dict[int, tuple[object, tuple[object, ...] | None]]
    put: set[int]


class Copies:
    """Of one staged run.

    held: values that stand in a container of the graph. copied: Python's own containers of which there is a copy in
    one, by id, with what was in them then (None: where ways have met since). put: those whose copy is to stay, rather
    than be asked for an item. has_moved: whether something that stands in a container was put into another one.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.held: set[Slot] = set()
        self.copied: dict[int, tuple[object, tuple[object, ...] | None]] = {}
        self.put: set[int] = set()
        self.has_moved = False

    # --- ways --------------------------------------------------------------------------------------------------------

    def state(self) -> _State:
        """What is known where a region begins."""
        return _State(dict(self.copied), set(self.put))

    def back(self, state: _State) -> None:
        """The region begins once more."""
        self.copied = {key: (container, _contents(container)) for key, (container, _) in state.copied.items()}
        self.put = set(state.put)

    def meet(self, other: _State) -> None:
        """Another way through the region ends where this one does."""
        self.put |= other.put
        for state in (dict(self.copied), other.copied):
            self.copied.update((key, (container, None)) for key, (container, _) in state.items())

    # --- what is recorded --------------------------------------------------------------------------------------------

    def note_operands(self, op: str, args: Sequence[object]) -> None:
        """An operator is about to put values into a container. Raises: CannotStage."""
        if op in _HOLDING:
            self.note(args[_HOLDING[op] :], op in _STAYING)

    def note_results(self, op: str, operands: Sequence[object], slots: Sequence[Slot]) -> None:
        """An operator gave values: those that it took out of a container stand in it still, for all that is known."""
        if op in _TAKING:
            self.held.update(slot for slot in slots[-1:] if _is_container(slot.type))
        elif op == "py.call" and slots and _is_container(slots[0].type):
            inside = [part for o in operands if isinstance(o, Slot) for part in _parts(o.type)]
            if slots[0].type in inside:
                self.held.add(slots[0])

    def note(self, items: Iterable[object], is_to_stay: bool = True) -> None:
        """Values are put into a container of the graph. Raises: CannotStage for one that is put there twice."""
        for item in items:
            if is_staged(item):
                slot = slot_of(item)
                self.has_moved |= is_to_stay and slot in self.held
                if _is_container(slot.type):
                    self.held.add(slot)
            elif type(item) in (list, dict):
                if is_to_stay:
                    self._put(item)
                self.copied.setdefault(id(item), (item, _contents(item)))
                self.note(_contents(item), is_to_stay)
            elif type(item) is tuple:
                self.note(item, is_to_stay)

    def _put(self, container: object) -> None:
        in_loop = any(loop.snapshot is not None and loop.snapshot.holds(container) for loop in self.session.loops)
        if in_loop or id(container) in self.put:
            self.session.cannot(f"a {type(container).__name__} is put into containers more than once", _WHY)
        self.put.add(id(container))

    def note_merged(self, parts: Sequence[Sequence[object]], results: Sequence[Slot]) -> None:
        """Values become those of an `if` or a loop."""
        for values in parts:
            for value, result in zip(values, results, strict=True):
                if isinstance(value, Slot) and value in self.held:
                    self.held.add(result)

    # --- what may not be ---------------------------------------------------------------------------------------------

    def check_change(self, container: object) -> None:
        """A container is going to be changed. Raises: CannotStage where others would have to see that."""
        if slot_of(container) in self.held if is_staged(container) else id(container) in self.copied:
            kind = str(slot_of(container).type) if is_staged(container) else type(container).__name__
            self.session.cannot(f"a {kind} is changed that stands in another container", _WHY)

    def check_unchanged(self) -> None:
        """At the end of a way: code that is not converted has changed none. Raises: CannotStage."""
        for container, before in self.copied.values():
            now = _contents(container)
            if before is not None and not are_the_same(now, before):
                self.session.cannot(f"a {type(container).__name__} is changed that stands in another container", _WHY)

    def calling(self, call: Callable[[], object], args: Iterable[object]) -> Any:
        """What a call of code that is not converted gives. Raises: CannotStage where it changes one of these."""
        given = [arg for arg in args if type(arg) in (list, dict) and id(arg) in self.copied]
        for one in given:
            self.copied[id(one)] = (one, _contents(one))
        found = call()
        if given:
            self.check_unchanged()
        return found

    def check_left(self, left: Iterable[object], was_there: Callable[[object], bool]) -> None:
        """What the program leaves holds no copy beside what it is one of. Raises: CannotStage."""
        if not self.held and not self.copied:
            return  # all that can be reached may be all that the process holds
        values, known = _walked(left)
        nested = {slot_of(value) for value in values if is_staged(value) and self._may_be_copied(slot_of(value))}
        if len(nested) > 1 and (self.has_moved or not nested.isdisjoint(self.held)):
            self.session.cannot("containers that contain each other leave the program on several access paths", _WHY)
        copied = [container for container, _ in self.copied.values()] if nested else []
        for container in copied:
            if id(container) in known or was_there(container):
                kind = type(container).__name__
                self.session.cannot(f"a {kind} leaves the program, and stands in another container that does", _WHY)

    def _may_be_copied(self, slot: Slot) -> bool:
        return slot in self.held or any(map(_is_container, _parts(slot.type)))


def _contents(container: Any) -> tuple[object, ...]:
    if type(container) is dict:
        return tuple(part for item in container.items() for part in item)
    return tuple(container)


def _is_container(type_: object) -> bool:
    """Whether values of a type can be changed, and are no tensors."""
    return isinstance(type_, (ListType, DictType))


def _parts(type_: object) -> list[Type]:
    """The types of all that a value of a type holds, at any depth."""
    match type_:
        case ListType(element=element) | OptionalType(element=element):
            inner = [element]
        case DictType(key=key, value=value):
            inner = [key, value]
        case TupleType(elements=elements):
            inner = list(elements)
        case _:
            return []
    return [*inner, *(part for one in inner for part in _parts(one))]


def _walked(values: Iterable[object]) -> tuple[list[object], set[int]]:
    """All that nested containers and objects hold, and the ids of the containers."""
    found, seen, waiting = [], set(), list(values)
    while waiting:
        value = waiting.pop()
        if is_staged(value):
            found.append(value)
            continue
        if id(value) in seen:
            continue
        if isinstance(value, (list, tuple, set, frozenset)):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(_contents(value) if type(value) is dict else [*value.keys(), *value.values()])
        elif isinstance(value, StagedSequence):
            waiting.extend(part for name, part in vars(value).items() if name != "session")
        elif not isinstance(value, (type, ModuleType)) and hasattr(value, "__dict__") and not callable(value):
            waiting.extend(vars(value).values())
        else:
            continue
        seen.add(id(value))
    return found, seen
