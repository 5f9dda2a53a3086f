"""Loops whose test or bounds depend on data: one run of the body on fake tensors of what is carried from turn to turn.

What is carried is found by running the body: variables and places of containers that it changed. Types must be stable;
a size that changes becomes unknown. A list that grows becomes a staged list.

Invariant: a loop that never turns leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from smelt._torch.seen.dispatch import unseen
from smelt.capture.convert.runtime import HIDDEN, UNDEF, Variables
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import number_of
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, class_of, is_staged, slot_of, wrap_as
from smelt.capture.staging.flow.assumptions import LoopKind, loop_is, peeled
from smelt.capture.staging.flow.branches import check_genuine, own_cells, record_raise
from smelt.capture.staging.flow.growing import Grows, container_type, stage_container
from smelt.capture.staging.flow.merge import Pending, Poison, check_identities, flag_in, is_result
from smelt.capture.staging.flow.ordering import check_unchanged
from smelt.capture.staging.flow.paths import Outcome
from smelt.capture.staging.flow.stops import ACTS, Again, CannotStage
from smelt.capture.staging.objects.carried_leaves import (
    Unread,
    is_carried,
    leaf_type,
    same,
    shape_of,
    take_apart,
)
from smelt.capture.staging.objects.containers import MISSING, WHOLE
from smelt.capture.staging.objects.handlers import is_catchable
from smelt.capture.staging.objects.heap import Change, Snapshot
from smelt.capture.staging.records import RegionRecords, Structured, size_of
from smelt.capture.staging.session import Session
from smelt.ir import ANY, INT, ListType, TensorType, Type, UnknownDim, fits, join, type_of_arg

_MOST_TRIES = 12
_PEELED = 3


class Opens(BaseException):
    """A loop's variable (by number) is a tuple that gets longer: it must be one of any length before it."""

    def __init__(self, number: int, type_: ListType) -> None:
        super().__init__("a tuple gets longer")
        self.number, self.type = number, type_


@dataclass
class Place:
    """A variable (by number) or a place of a container; what is in it before the loop, and the types of its leaves.

    types: by position of the leaf; leaves without one stay what they were. numbers: leaves that are numbers at every
    turn, of a kind that only a run knows.
    """

    key: Any
    name: str
    init: Any
    change: Change | None = None
    types: dict[int, Type] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)


class Loop:
    """One loop being staged.

    test, body: run natively, they read and bind the variables. turns: how many iterations there are, where Python
    knows that. After `run`: size, the operators of its regions; is_known_after, whether Python knows behind it what it
    knew before.
    """

    def __init__(
        self, session: Session, key: object, variables: Variables,
        test: Callable[[], Any] | None, body: Callable[..., Any], bounds: Sequence[Any] | None,
        turns: int | None = None,
    ) -> None:  # fmt: skip
        self.turns, self.size, self.is_known_after = turns, 0, True
        self.session, self.key, self.names = session, key, variables.names
        self.variables, self.get, self.set = variables, variables.get, variables.set
        self.test, self.body, self.bounds = test, body, bounds
        self.places: dict[Any, Place] = {}
        # Sizes that are unknown in it, by what they were before: those of equal tensors are equal in each iteration,
        # unless they were found apart.
        self.alike: dict[int, tuple[int, ...]] = {}
        self.apart: set[int] = set()
        self.poisoned: set[int] = set()
        self.pending: set[int] = set()
        self.site = session.site()
        self.init: tuple[object, ...] = ()
        self.snapshot: Snapshot = None  # type: ignore[assignment]
        self.inits: list[object] = []
        self.index: Slot | None = None
        self.saved: object = None

    def run(self) -> None:
        """Record the loop and let the program go on with its results."""
        session = self.session
        for _ in range(_MOST_TRIES):
            self.init = self.get()
            self.snapshot = self.look()
            session.heap.snapshots.append(self.snapshot)
            session.heap.befores.append((self.snapshot, self.init))
            session.loops.append(self)
            saved = self.saved = session.recorder.enter()
            try:
                regions = self._try()
            finally:
                session.recorder.leave(saved)
                session.loops.pop()
                session.heap.befores.pop()
                session.heap.snapshots.pop()
                self.snapshot.restore()
                self.set(self.init)
            if regions is not None:
                self._finish(regions)
                return
        self.unstable("a loop-carried value has no type that fits every iteration")

    def look(self, whole: bool = False) -> Snapshot:
        """A snapshot of all that the loop can reach, without its own variables. whole: with what holds containers."""
        parts = [part for part in (self.test, self.body) if part is not None]
        look = self.session.heap.whole_snapshot if whole else self.session.heap.snapshot
        return look(own_cells(self.variables), parts)

    def unstable(self, why: str) -> NoReturn:
        """The first turn differs from the others: take it out of the loop. Raises: Again, CannotStage."""
        if self.session.assumed.peeled.get(self.key, 0) < _PEELED:
            raise Again(peeled(self.key))
        raise CannotStage("a loop that depends on data cannot be one loop of the graph", why, self.site)

    def check_unset(self, error: NameError) -> None:
        """An error of a variable without a value: an earlier turn may have given it one. Raises: Again, CannotStage."""
        if any(f"'{self.names[number]}'" in str(error) for number in self.poisoned):
            self.unstable("a variable has a value from an earlier iteration only")

    # --- one try -----------------------------------------------------------------------------------------------------

    def _try(self) -> list[RegionRecords] | None:
        """The regions, or None where more is carried, or of wider types, than was thought."""
        session = self.session
        regions = []
        if self.test is not None:
            params = self._bind()
            records, outcome = session.paths.trace(self._thunk(self.test, ()), self.names)
            if outcome.is_raised:
                self.session.cannot("the test of a loop always raises")
            if self._changed(outcome.value, outcome.writes):
                raise Again(loop_is(self.key, LoopKind.TESTED))
            regions.append(RegionRecords(params, records, [session.encode(outcome.test)]))
        index: tuple[Slot, ...] = ()
        arguments: tuple[object, ...] = ()
        if self.bounds is not None:
            value, slot = session.value_of(type_of_arg(0), session.examples.index())
            if isinstance(slot, ScalarSlot):
                slot.within = _within(*self.bounds)
            self.index, index, arguments = slot, (slot,), (value,)
        params = self._bind()
        bound = dict(self._bound)
        records, outcome = session.paths.trace(self._thunk(self.body, arguments), self.names)
        if outcome.is_raised:
            self.unstable("every iteration of a loop raises")
        if not self._absorb(outcome.value, outcome.writes):
            return None
        yields = self._yields(outcome, records, bound)
        if yields is None:
            return None
        self._note_turns([params, *(region.params for region in regions)], yields)
        regions.append(RegionRecords((*index, *params), records, yields))
        return regions

    def _note_turns(self, regions: Sequence[Sequence[Slot]], yields: Sequence[object]) -> None:
        """What each variable is in later turns. Raises: Again where two that were told apart may be one there."""
        session = self.session
        for params in regions:
            for param, last in zip(params, yields, strict=True):
                if param in session.paths.turns_of:
                    session.paths.turns_of[param] = (*session.paths.turns_of[param][:2], last)
        check_identities(session)

    def _thunk(self, part: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Outcome]:
        values, writes = self._values, self._writes
        acted = False

        def run() -> Outcome:
            outcome = once()
            if acted:
                self.session.cannot(*ACTS)
            return outcome

        def once() -> Outcome:
            nonlocal acted
            self.session.recorder.depth += 1
            changes: dict[tuple[int, object], Change] | None = None
            try:
                for change, value in writes:
                    change.put(value)
                self.set(values)
                given = part(*arguments)
                check_unchanged(self.session)
                left = self.get()
                changes = self.snapshot.changes()
                return Outcome(left, changes, test=given if part is self.test else None)
            except Exception as error:
                check_genuine(self.session, error)
                if is_catchable(self.session):
                    self.session.cannot("an exception is raised in a loop that depends on data", "it may be caught")
                record_raise(self.session, error)
                return Outcome(is_raised=True)
            finally:
                self.session.recorder.depth -= 1
                acted |= self.snapshot.restore(None if changes is None else changes.values())
                self.set(self.init)

        return run

    def _bind(self) -> list[Slot]:
        """Fresh parameters for everything carried, in the places' order."""
        values = list(self.init)
        self.alike = {}
        self._writes: list[tuple[Change, object]] = []
        self._bound: dict[object, object] = {}
        params: list[Slot] = []
        for place in self.places.values():
            value = self._param(place, params)
            self._bound[place.key] = value
            if place.change is None:
                values[place.key] = value
            else:
                self._writes.append((place.change, value))
        for number in self.poisoned:
            values[number] = UNDEF
        self._values = self._pend(values)
        return params

    def carries(self, container: object) -> bool:
        """Whether a list was there before the loop: what makes it longer in a turn has it so in the next one."""
        is_held = any(value is container for value in self.init) or self.snapshot.holds(container)
        return type(container) is list and is_held

    def _pend(self, values: list[Any]) -> tuple[object, ...]:
        """Variables with results that may not have been come to as such."""
        for number in self.pending:
            flag = flag_in(self.names, values)
            if flag is not True:
                values[number] = Pending(values[number], flag)
        return tuple(values)

    def _param(self, place: Place, params: list[Slot]) -> object:
        leaves, build = take_apart(place.init)
        made = []
        for i, leaf in enumerate(leaves):
            if i not in place.types:
                made.append(leaf)
                continue
            value, slot = self._fresh(place.types[i], leaf)
            if isinstance(leaf, torch.Tensor):
                self.session.paths.turns_of[slot] = (("loop", self.key), self.session.encode(leaf))
            if i in place.numbers:
                self.session.domain.note_merged([[self.session.encode(leaf)]], [slot])
            params.append(slot)
            made.append(value)
        return build(made)

    def _fresh(self, type_: Type, leaf: object) -> tuple[object, Slot]:
        session = self.session
        if isinstance(type_, TensorType):
            size = _one_size(type_, leaf)
            numbers = None
            if size is not None and size not in self.apart:
                numbers = self.alike[size] = self.alike.get(size) or session.examples.ints(5)
            value, slot = session.tensor_of(type_, leaf if isinstance(leaf, torch.Tensor) else None, None, numbers)
            if isinstance(leaf, torch.Tensor):
                session.recorder.entwine([slot.family], ("loop-alias", self.key))
                if leaf.requires_grad:
                    value.requires_grad_()
            return value, slot
        value, slot = session.value_of(type_, session.examples.of(type_, leaf))
        like = leaf.like if isinstance(leaf, Unread) else leaf
        if class_of(like) is not None and isinstance(slot, ScalarSlot):
            value = wrap_as(slot, like)
        return value, slot

    # --- what is carried ---------------------------------------------------------------------------------------------

    def _changed(self, values: Sequence[Any], writes: Any) -> bool:
        return any(not same(a, b) for a, b in zip(values, self._values, strict=True)) or any(
            not same(c.new, self._bound.get(k, c.old)) for k, c in writes.items()
        )

    def _absorb(self, values: Sequence[Any], writes: Any) -> bool:
        """Note new places that the body changed; whether there were none."""
        known = True
        for number, (before, after) in enumerate(zip(self._values, values, strict=True)):
            if number in self.places or number in self.poisoned or same(before, after):
                continue
            name = self.names[number]
            if is_result(name) and (before is None or isinstance(before, Pending)) and after is not UNDEF:
                if flag_in(self.names, self.names) is None or isinstance(before, Pending):
                    self.unstable("a result is returned in it")
                self.pending.add(number)
                self._place_dummy(number, name, after.value if isinstance(after, Pending) else after)
                known = False
                continue
            if before is UNDEF or isinstance(before, Poison):
                if not name.startswith(HIDDEN) or isinstance(after, Poison):
                    self.poisoned.add(number)
                    known = False
                    continue
                self._place_dummy(number, name, after)
                known = False
                continue
            elif isinstance(after, Poison) or after is UNDEF:
                self.unstable(f"{name} has no value after some iterations")
            if self._is_held_elsewhere(before):
                self.unstable(f"{name} is bound anew in it, and who else holds what it was could tell")
            self.places[number] = Place(number, name, before)
            known = False
        for key, change in writes.items():
            if key in self.places:
                continue
            if change.key is WHOLE:
                self._grow(change)
            if change.old is MISSING and type(change.container) is dict and self.session.stages_growth:
                self._must_be_staged(change.container, [{change.key: change.new}])
            if change.old is MISSING or change.new is MISSING:
                self.unstable("an entry or attribute is made or deleted in it")
            self.session.check_partly(change)
            self.places[key] = Place(key, "", change.old, change)
            known = False
        return known

    def _is_held_elsewhere(self, value: object) -> bool:
        """Whether a container in the loop's own variable is something else's, too: a loop gives another one back."""
        if type(value) is tuple:
            return any(map(self._is_held_elsewhere, value))
        if type(value) not in (list, dict):
            return False
        session = self.session
        roots = [*session.heap.roots, *session.heap.locals_without(self.names)]
        return Snapshot(roots, [*own_cells(self.variables), *session.heap.own]).holds(value)

    def _place_dummy(self, number: int, name: str, value: Any) -> None:
        """A place that is not read before the body filled it: before the first turn, any value like that."""
        leaves, build = take_apart(value)
        some = [Unread(leaf_type(self.session, leaf), leaf) if self._is_made(leaf) else leaf for leaf in leaves]
        types = {i: leaf.type for i, leaf in enumerate(some) if isinstance(leaf, Unread)}
        self.places[number] = Place(number, name, build(some), None, types)

    def _is_made(self, leaf: object) -> bool:
        """Whether a turn makes a value of the graph; a tensor of before the loop is itself after it, too."""
        is_outer = isinstance(leaf, torch.Tensor) and self.session.recorder.knows(leaf, self.saved)
        return is_carried(leaf) and not is_outer

    def _known_after(self, regions: list[RegionRecords]) -> set[int]:
        """The flags that are true after the loop: the one whose being true ends it, and those that are always equal."""
        if self.test is None or len(regions[0].yields) != 1:
            return set()
        tested = self.session.paths.negations.get(regions[0].yields[0])
        flags = [(place, at) for at, place in enumerate(self._flat()) if place is not None]
        ends = next((at for _, at in flags if regions[0].params[at] is tested), None)
        if ends is None:
            return set()
        same_as = _Congruence(regions[1])
        return {place.key for place, at in flags if at == ends or same_as.always_equal(at, ends)}

    def _flat(self) -> list[Place | None]:
        """For each carried leaf, its place where that is a flag that was false before."""
        found: list[Place | None] = []
        for place in self.places.values():
            flag = place.init is False and place.change is None
            found.extend([place if flag else None] * len(place.types))
        return found

    def _grow(self, change: Change) -> None:
        """A list that grew in the body becomes a staged one, everywhere. Raises: Again."""
        grown = change.container
        if type(grown) is not list:
            self.unstable(f"a {type(grown).__name__} has other contents after each iteration")
        self._must_be_staged(grown, [change.new])

    def _must_be_staged(self, grown: object, contents: Sequence[object]) -> None:
        """Raises: Grows, with the type of a container that holds what one came to hold; Again."""
        type_ = container_type(self.session, [grown, *contents])
        if type_ is None:
            self.unstable(f"a {type(grown).__name__} grows by a value that no traced one can contain")
            return
        raise Grows(grown, type_, self.site)

    def _yields(self, outcome: Outcome, records: list[Any], bound: dict[Any, Any]) -> list[Any] | None:
        """What the body leaves in each carried place, None where its types are wider than the parameters'."""
        session = self.session
        yields: list[object] = []
        stable = True
        for place in self.places.values():
            if place.change is None:
                after = outcome.value[place.key]
                after = after.value if isinstance(after, Pending) else after
            else:
                change = outcome.writes.get(place.key)
                after = bound[place.key] if change is None else change.new
            before, _ = take_apart(place.init)
            leaves, _ = take_apart(after)
            if shape_of(place.init) != shape_of(after):
                if session.stages_growth and type(place.init) is list and _is_list(after):
                    self._must_be_staged(place.init, [after])
                if place.change is None and self._is_longer(bound[place.key], after):
                    type_ = container_type(session, [list(place.init), after if is_staged(after) else list(after)])
                    if isinstance(type_, ListType):
                        raise Opens(place.key, type_)
                self.unstable(f"{place.name or 'a loop-carried value'} changes its structure")
            for i, (first, last) in enumerate(zip(before, leaves, strict=True)):
                if i not in place.types:
                    given, _ = take_apart(bound[place.key])
                    if same(given[i], last):
                        continue
                    place.types[i] = self._type_of(place, first, last)
                    self._note_number(place, i, first, last)
                    stable = False
                    continue
                found = leaf_type(session, last)
                if found is None:
                    self.unstable(f"{place.name or 'a loop-carried value'} becomes a {type(last).__name__}")
                self._check_shown(place, last)
                if not fits(found, place.types[i]):
                    place.types[i] = self._widen(place, place.types[i], found)
                    self._note_number(place, i, first, last)
                    stable = False
                elif i in place.numbers and not session.domain.is_number(session.encode(last)):
                    place.numbers.discard(i)
                    stable = False
                yields.append(session.encode(last))
        return yields if stable and self._are_alike(outcome, bound) else None

    def _are_alike(self, outcome: Outcome, bound: dict[object, object]) -> bool:
        """Whether sizes that were taken to be equal in each iteration are so behind it."""
        found: dict[int, list[Any]] = {}
        for place in self.places.values():
            change = outcome.writes.get(place.key)
            after = outcome.value[place.key] if place.change is None else change.new if change else bound[place.key]
            for i, (first, last) in enumerate(zip(take_apart(place.init)[0], take_apart(after)[0], strict=True)):
                size = _one_size(place.types[i], first) if i in place.types else None
                if size is not None and isinstance(last, torch.Tensor):
                    found.setdefault(size, []).append(self._sizes(place.types[i], last))
        apart = {size for size, lengths in found.items() if any(some != lengths[0] for some in lengths)} - self.apart
        self.apart |= apart
        return not apart

    def _sizes(self, type_: Type, tensor: torch.Tensor) -> list[object]:
        """The sizes in each world where they are unknown by a type."""
        assert isinstance(type_, TensorType)
        worlds = self.session.recorder.varied.get(self.session.recorder.slot_of(tensor), (tensor,) * WORLDS)
        dims = [dim for dim, size in enumerate(type_.shape or ()) if isinstance(size, UnknownDim)]
        with unseen():
            return [t if t is DEAD else {at_hand(number_of(t.shape[dim])) for dim in dims} for t in worlds[1:]]

    def _is_longer(self, before: object, after: object) -> bool:
        """Whether a variable holds a tuple of any length after a turn, or one with more at an end than before."""
        if not self.session.stages_growth or type(before) is not tuple:
            return False
        if class_of(after) is tuple:
            return True
        if type(after) is not tuple or not 0 < len(before) < len(after):
            return False  # where it was empty, it may be of this length from now on
        ends = after[: len(before)], after[len(after) - len(before) :]
        return any(all(map(same, before, end)) for end in ends)

    def _note_number(self, place: Place, leaf: int, first: object, last: object) -> None:
        if place.types[leaf] == ANY and all(
            self.session.domain.is_number(self.session.encode(v)) for v in (first, last)
        ):
            place.numbers.add(leaf)

    def _type_of(self, place: Place, first: object, last: object) -> Type:
        before, after = leaf_type(self.session, first), leaf_type(self.session, last)
        if before is None or after is None:
            kinds = [type(v).__name__ if t is None else str(t) for v, t in ((first, before), (last, after))]
            self.unstable(f"{place.name or 'a loop-carried value'} changes from {kinds[0]} to {kinds[1]}")
        self._check_shown(place, first)
        return self._widen(place, before, after)

    def _check_shown(self, place: Place, leaf: object) -> None:
        """What is carried shows its memory as it is. Raises: Again, CannotStage."""
        if self.session.recorder.is_lazy(leaf):
            self.unstable(f"{place.name or 'a loop-carried value'} is a conjugate or negative view")

    def _widen(self, place: Place, before: Any, after: Any) -> Type:
        wider = self.session.domain.widened(before, after)
        if wider is not None:
            return wider
        type_ = join(before, after)
        if isinstance(before, TensorType) != isinstance(after, TensorType) or (type_ == ANY and before != after):
            self.unstable(
                f"{place.name or 'a loop-carried value'} is {before} before it and {after} after an iteration"
            )
        if isinstance(type_, TensorType) and (type_.shape is None or before.rank != after.rank):
            self.unstable(
                f"{place.name or 'a loop-carried value'} is {before} before it and {after} after an iteration"
            )
        if not isinstance(type_, (TensorType, ListType)) and before != after:
            self.unstable(
                f"{place.name or 'a loop-carried value'} is {before} before it and {after} after an iteration"
            )
        return type_

    # --- the whole ---------------------------------------------------------------------------------------------------

    def _finish(self, regions: list[RegionRecords]) -> None:
        session = self.session
        inits: list[object] = []
        results: list[Slot] = []
        values = list(self.init)
        writes: list[tuple[Change, object]] = []
        body = regions[-1]
        carried = iter(zip(body.params[len(body.params) - len(body.yields) :], body.yields, strict=True))
        self.size = sum(size_of(region.records) for region in regions)
        for place in self.places.values():
            leaves, build = take_apart(place.init)
            made = []
            for i, leaf in enumerate(leaves):
                type_ = place.types.get(i)
                if type_ is None:
                    made.append(leaf)
                    continue
                if isinstance(leaf, Unread):
                    inits.append(session.placeholder(type_, session.recorder.records, self.site))
                else:
                    inits.append(session.encode(leaf))
                value, slot = self._fresh(type_, leaf)
                if isinstance(leaf, torch.Tensor):
                    session.recorder.entwine(
                        [session.recorder.slot_of(leaf).family, slot.family], ("loop-alias", self.key)
                    )
                results.append(slot)
                made.append(self._known(place, leaf, value, slot, *next(carried)))
            if place.change is None:
                values[place.key] = build(made)
            else:
                writes.append((place.change, build(made)))
        session.domain.note_merged((inits, regions[-1].yields), results)
        for init, last, result in zip(inits, regions[-1].yields, results, strict=True):
            session.paths.turns_of[result] = (("loop", self.key), init, last)
        bounds = [session.encode(b) for b in self.bounds or ()]
        session.structured("while" if self.bounds is None else "for", [*bounds, *inits], regions, results, self.site)
        for change, value in writes:
            change.put(value)
        for number in self._known_after(regions):
            values[number] = True
        for number in self.poisoned:
            values[number] = Poison(self.names[number], ("loop", self.key))
        self.set(self._pend(values))

    def _known(self, place: Place, before: Any, after: Any, slot: Slot, first: Slot, last: Any) -> object:
        """What a place holds behind the loop, as Python knows it where it knows how many iterations there are.

        before: what it held; after: what the loop gives, in a slot. first, last: of one iteration.
        """
        if self.turns is None or place.name.startswith(HIDDEN):
            return after
        type_ = slot_type(slot)
        if isinstance(type_, TensorType):
            return after
        if type_ == INT and isinstance(last, ScalarSlot):
            of, times, plus = last.affine or (last, 1, 0)
            if of is first and times == 1 and not isinstance(before, Unread):
                return before + self.turns * plus
            if of is self.index and self.turns:
                start, _, step = self.bounds or (0, 0, 1)
                return (start + (self.turns - 1) * step) * times + plus
        if isinstance(type_, ListType) and isinstance(slot, ScalarSlot) and is_staged(before):
            length, more = slot_of(before).length, _growth(first, last)
            if length is not None and more is not None:
                slot.length = length + self.turns * more
                slot.worlds = tuple([world[0] if world else None] * slot.length for world in slot.worlds)
                return after
        self.is_known_after = False
        return after


def _one_size(type_: Type, before: object) -> int | None:
    """What all sizes of a tensor were before that its type has as unknown ones; None where they differ, or are free."""
    if not isinstance(type_, TensorType) or type_.shape is None or not isinstance(before, torch.Tensor):
        return None
    with unseen():
        if before.dim() != len(type_.shape):
            return None
        sizes = {number_of(n) for d, n in zip(type_.shape, before.shape, strict=True) if isinstance(d, UnknownDim)}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if type(size) is int else None


def _growth(first: Slot, last: Any) -> int | None:
    """By how many items a list is longer after each iteration; None where that is not known."""
    if not (isinstance(first, ScalarSlot) and isinstance(last, ScalarSlot)):
        return None
    pairs = [pair for pair in zip(first.worlds, last.worlds, strict=True) if DEAD not in pair]
    more = {len(after) - len(before) for before, after in pairs}
    return more.pop() if len(more) == 1 and len(pairs) == WORLDS else None


class _Congruence:
    """Which parameters of a loop's body stay equal, if they are before: their yields are made in the same way."""

    def __init__(self, body: RegionRecords) -> None:
        self.body = body
        self.makers: dict[Slot, tuple[Structured, int]] = {}
        self._find(body.records)

    def _find(self, records: Sequence[object]) -> None:
        for record in records:
            if isinstance(record, Structured):
                for number, result in enumerate(record.results):
                    self.makers[result] = (record, number)
                for region in record.regions:
                    self._find(region.records)

    def always_equal(self, a: int, b: int) -> bool:
        """Whether what two parameters become is equal where they were."""
        return self._equal(self.body.yields[a], self.body.yields[b], {self.body.params[a], self.body.params[b]})

    def _equal(self, a: object, b: object, equal: set[Slot]) -> bool:
        if a is b or (isinstance(a, Slot) and isinstance(b, Slot) and a in equal and b in equal):
            return True
        if not isinstance(a, Slot) or not isinstance(b, Slot):
            return type(a) is type(b) is bool and a == b
        mine, other = self.makers.get(a), self.makers.get(b)
        if mine is None or other is None or mine[0] is not other[0] or mine[0].op != "if":
            return False
        return all(self._equal(r.yields[mine[1]], r.yields[other[1]], equal) for r in mine[0].regions)


def _is_list(value: object) -> bool:
    return type(value) is list or (is_staged(value) and isinstance(slot_of(value).type, ListType))


def run_loop(loop: Callable[[], Loop]) -> Loop:
    """Stage a loop, and give it; lists that grow in it are staged first."""
    for _ in range(_MOST_TRIES):
        made = loop()
        try:
            made.run()
        except Opens as opens:
            values = list(made.get())
            values[opens.number] = made.session.domain.opened(values[opens.number], opens.type)
            made.set(tuple(values))
            continue
        except Grows as grows:
            if made.session.heap.is_older(grows.grown):
                raise
            whole = made.look(whole=True)
            stage_container(made.session, made.site, grows.grown, grows.type, made.variables, whole, is_carried=True)
            continue
        return made
    raise CannotStage("a loop that depends on data cannot be one loop of the graph", "too many lists grow in it")


def grown_over(
    session: Session, key: object, items: list[Any], variables: Variables, body: Callable[..., None]
) -> object:
    """What a loop over a list goes over: a staged one where the list is known to grow in it, in some runs."""
    type_ = session.assumed.lists.get(key)
    if type_ is None:
        return items
    snapshot = session.heap.whole_snapshot(own_cells(variables), [body])
    return stage_container(session, session.site(), items, type_, variables, snapshot)


def _within(start: object, stop: object, step: object) -> tuple[object, object] | None:
    """Between what the number of a loop lies, where sizes alone tell."""
    ends = None if any(map(is_staged, (start, stop, step))) else [number_of(n) for n in (start, stop, step)]
    if ends is None or type(ends[2]) is not int or ends[2] < 1 or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1] - 1
