"""What a variable is after two paths met: the same object, a result of the `if`, or nothing that one graph can hold.

Invariant: a merged value is what each path left, in its place; where no single value says that, CannotMerge.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt.capture.convert.runtime import HIDDEN, UNDEF
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.reads.reads_arguments import slots_of
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.fakes.fake_tensors import tensor_type_of
from smelt.capture.staging.fakes.symbols import ScalarSlot, class_of, is_staged, slot_of, wrap_as
from smelt.capture.staging.flow.iterables import StagedRange
from smelt.capture.staging.flow.paths import Outcome
from smelt.capture.staging.flow.stops import CannotGrow, CannotMerge
from smelt.capture.staging.objects.carried_leaves import same
from smelt.capture.staging.objects.containers import MISSING, WHOLE
from smelt.capture.staging.objects.heap import Change
from smelt.capture.structure.roots import is_skipped_class
from smelt.capture.structure.tree import Flattener, UnfitError, match, rebuild, tuple_of
from smelt.ir import ANY, ListType, TensorType, Type, join, type_of_arg

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

_RAISED: object = type("_Raised", (), {})()
_NUMBERS = (bool, int, float, complex, str)
_NOT_ONE = "no single value can represent both"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement


class Poison:
    """A variable that has a value on some paths only; `why` names the place where these met."""

    __slots__ = ("name", "why")

    def __init__(self, name: str, why: object) -> None:
        self.name, self.why = name, why


class Pending:
    """The value that a function is going to return, where it may not have come to a `return` yet.

    It is None unless `flag` (the converter's own, merged at the same place) is true; then it is `value`.
    """

    __slots__ = ("flag", "value")

    def __init__(self, value: object, flag: object = None) -> None:
        self.value, self.flag = value, flag


def is_result(name: str) -> bool:
    """Whether a name is the converter's for the value to be returned."""
    return name.startswith(f"{HIDDEN}value")


def flag_in(names: Sequence[str], values: Sequence[object]) -> object:
    """What tells whether a function has come to a `return`, None where that is not among the names."""
    return next((v for n, v in zip(names, values, strict=True) if n.startswith(f"{HIDDEN}returned")), None)


def resolved(values: Sequence[object], slot: Slot, answer: bool, negations: Any) -> tuple[Any, ...]:
    """The variables where a condition has an answer: a pending result is there, or is not."""
    found = []
    for value in values:
        if isinstance(value, Pending) and is_staged(value.flag):
            flag = slot_of(value.flag)
            if flag is slot:
                value = value.value if answer else None
            elif negations.get(slot) is flag:
                value = None if answer else value.value
        found.append(value)
    return tuple(found)


def check_identity(session: Session, a: torch.Tensor, b: torch.Tensor) -> None:
    """Whether two tensors are one object is asked. Raises: Again where that follows from the way that was taken."""
    check_told_apart(session, session.recorder.slot_of(a), session.recorder.slot_of(b))


def check_told_apart(session: Session, a: Slot, b: Slot) -> None:
    """The same of two values of the graph, which the program is told are two."""
    if _check_pair(session, a, b):
        # What the turns of a loop make of its variables is not known before its end.
        session.paths.told_apart.append((a, b))


def check_identities(session: Session) -> None:
    """The same for all that was asked, once more is known of what loops carry."""
    for pair in session.paths.told_apart:
        _check_pair(session, *pair)


def _check_pair(session: Session, a: Slot, b: Slot) -> bool:
    """Whether it follows from where these come from that they are two; Again where they may be one on some ways."""
    ours: set[object] = set()
    theirs: set[object] = set()
    whys: list[object] = []
    for found, first in ((ours, a), (theirs, b)):
        for slot, why in sources(session, first):
            whys.extend([] if why is None else [why])
            # A tensor that was written has another slot since.
            found |= {slot} if slot.ref() is None else {slot, id(slot.ref())}
    if whys and not ours.isdisjoint(theirs):
        session.unmerge(whys[0])
    return bool(whys)


def sources(session: Session, slot: Slot) -> Iterator[tuple[Slot, object]]:
    """A value and all that it may be or was taken out of, each with where the ways to it met (None: nowhere)."""
    found: set[Slot] = set()
    waiting = [slot]
    while waiting:
        one = session.paths.resolved(waiting.pop())
        if one in found:
            continue
        found.add(one)
        why, *sides = session.paths.sides_of.get(one) or session.paths.turns_of.get(one) or (None,)
        waiting.extend(side for side in sides if isinstance(side, Slot))
        yield one, why


class Merger:
    """The merging of two outcomes; `left`, `right` and `results` are what an `if` yields and gives.

    anew: variables that are bound before they are read again, but for who looks at them where a loop has ended.
    """

    anew: frozenset[str] = frozenset()

    def __init__(self, session: Session, site: Site | None, why: object = None, names: Sequence[str] = ()) -> None:
        self.session, self.site, self.names = session, site, names
        self.why = why
        self.left: list[Any] = []
        self.right: list[object] = []
        self.results: list[Slot] = []
        self._memo: dict[tuple[int, int], object] = {}
        self._partners: tuple[dict[int, object], dict[int, object]] = ({}, {})
        self._keep: list[object] = []
        self._families: set[int] | None = None

    def outcomes(self, a: Outcome, b: Outcome) -> Outcome:
        """The outcome that holds after either path. Raises: CannotMerge."""
        if a.is_raised and b.is_raised:
            return Outcome(is_raised=True)
        value = self._values(_RAISED if a.is_raised else a.value, _RAISED if b.is_raised else b.value)
        tests = [_RAISED if o.is_raised else o.test for o in (a, b)]
        test = None if all(t is None or t is _RAISED for t in tests) else self.merge(*tests)
        writes: dict[Any, Change] = {}
        for key in {**a.writes, **b.writes}:
            mine, yours = a.writes.get(key), b.writes.get(key)
            known = mine or yours
            assert known is not None
            if (mine is None and not a.is_raised) or (yours is None and not b.is_raised):
                self.session.check_partly(known)
            left = _RAISED if a.is_raised else known.old if mine is None else mine.new
            right = _RAISED if b.is_raised else known.old if yours is None else yours.new
            writes[key] = known._replace(new=self._place(known, left, right))
        return Outcome(value, writes, test=test)

    def _place(self, change: Change, left: Any, right: Any) -> object:
        if left is right:
            return left
        if left is MISSING or right is MISSING:
            what = "an entry or attribute exists on one path only"
            if type(change.container) is dict:
                entry = {} if change.key is WHOLE else {change.key: left if right is MISSING else right}
                raise CannotGrow(self._where(what), _NOT_ONE, self.site, change.container, (entry,))
            self._fail(what)
        if change.key is WHOLE:
            if left is _RAISED or right is _RAISED:
                return self._export(right if left is _RAISED else left)
            if isinstance(left, (set, dict)) or len(left) != len(right):
                what = f"a {type(change.container).__name__} has other contents on one path than on the other"
                raise CannotGrow(self._where(what), _NOT_ONE, self.site, change.container, (left, right))
            return [self.merge(x, y) for x, y in zip(left, right, strict=True)]
        return self.merge(left, right)

    def _values(self, a: Any, b: Any) -> object:
        if not self.names:
            return self.merge(a, b)
        count = len(self.names)
        left = (_RAISED,) * count if a is _RAISED else a
        right = (_RAISED,) * count if b is _RAISED else b
        self._check_none(left, right)
        found = tuple(self.named(n, x, y) for n, x, y in zip(self.names, left, right, strict=True))
        for value in found:
            if isinstance(value, Pending) and value.flag is None:
                value.flag = flag_in(self.names, found)
                if not is_staged(value.flag):
                    self._fail("a result is returned on one path only")
        return found

    def _check_none(self, left: Sequence[object], right: Sequence[object]) -> None:
        """A result that is None may be one that was returned, and no other then. Raises: CannotMerge."""
        for name, a, b in zip(self.names, left, right, strict=True):
            is_one = (a is None) != (b is None) and a is not _RAISED and b is not _RAISED
            if is_one and is_result(name):
                flag = flag_in(self.names, left if a is None else right)
                is_open = is_staged(flag) and self.session.paths.known(slot_of(flag)) is not False
                if flag is True or is_open:
                    self._none_returned(name, all(flag_in(self.names, side) is True for side in (left, right)))

    def _none_returned(self, name: str, is_settled: bool) -> None:
        """None is returned on one path. is_settled: both have come to a `return`. Raises: CannotMerge."""
        self._fail("None is returned, or something else")

    def named(self, name: str, a: object, b: object) -> Any:
        """A variable after two paths; one without a value on a path has one that must not be used."""
        if a is b:
            return self.merge(a, b)
        if is_result(name) and flag_in(self.names, self.names) is not None and _RAISED not in (a, b):
            pending = [v for v in (a, b) if v is None or isinstance(v, Pending)]
            if pending:
                return self._pending(a, b)
        if name in self.anew and _RAISED not in (a, b) and (_stands_apart(a) or _stands_apart(b)):
            return Poison(name, self.why)
        for one, other in ((a, b), (b, a)):
            if one is UNDEF or isinstance(one, Poison):
                if other is _RAISED:
                    return one
                if not name.startswith(HIDDEN):
                    return Poison(name, self.why)
                if isinstance(other, Poison) or other is UNDEF:
                    return one
                return self._either(other, is_left=one is b)
        return self.merge(a, b)

    def _pending(self, a: object, b: object) -> Pending:
        """A result that at least one path has not come to."""
        left, right = (v.value if isinstance(v, Pending) else v for v in (a, b))
        if a is None or b is None:
            return Pending(self._either(right if a is None else left, is_left=b is None))
        return Pending(self.merge(left, right))

    def _either(self, value: Any, is_left: bool) -> object:
        """A value that one path has, where the other has none and will not be asked: any of the type will do."""
        if isinstance(value, torch.Tensor):
            if self.session.recorder.knows(value):
                return value  # of before the branch, where the other path has it, too
            type_ = tensor_type_of(self.session.recorder.slot_of(value))
            result, slot = self.session.tensor_of(type_, value)
            self._yield_one(self._slot(value), type_, slot, is_left)
            self._entwine(value, value, slot)
            return result
        if isinstance(value, StagedRange):
            return StagedRange(self.session, *(self._either(bound, is_left) for bound in value.bounds()))
        if self._was_there(value):
            return value
        if type(value) in (tuple, list):
            return type(value)(self._either(item, is_left) for item in value)
        if isinstance(value, dict):
            return {k: self._either(item, is_left) for k, item in value.items()}
        if is_staged(value):
            if self.session.heap.is_outer(value):
                return value  # what the path changed in it is a write of its own
            slot = slot_of(value)
            found = ScalarSlot(slot.type, slot.worlds)
            self._yield_one(slot, slot.type, found, is_left)
            return wrap_as(found, value)
        return value

    # --- two values --------------------------------------------------------------------------------------------------

    def merge(self, a: object, b: object) -> object:
        """One value for two. Raises: CannotMerge."""
        if a is _RAISED or b is _RAISED:
            return self._export(b if a is _RAISED else a)
        key = (id(a), id(b))
        if key not in self._memo:
            self._memo[key] = self._merge(a, b)
            self._keep.append((a, b))
        return self._memo[key]

    def _merge(self, a: Any, b: Any) -> object:
        if isinstance(a, (list, dict)) and isinstance(b, (list, dict)):
            self._must_pair(a, b)
        if a is b:
            return a
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return self._tensors(a, b)
        if isinstance(a, Pending) or isinstance(b, Pending):
            self._fail("a result is returned on one path only")
        if isinstance(a, Poison) or isinstance(b, Poison):
            return a if isinstance(a, Poison) else b
        if (is_staged(a) or isinstance(a, _NUMBERS)) and (is_staged(b) or isinstance(b, _NUMBERS)):
            return self._scalars(a, b)
        for one, other in ((a, b), (b, a)):
            if type(one) is list and is_staged(other) and self.session.heap.is_outer(one):
                raise CannotGrow(self._where("a list is merged with a traced one"), _NOT_ONE, self.site, one, (other,))
        if any(isinstance(v, StagedRange) for v in (a, b)) and isinstance(a, range) and isinstance(b, range):
            bounds = (self.merge(getattr(a, name), getattr(b, name)) for name in ("start", "stop", "step"))
            return StagedRange(self.session, *bounds)
        if type(a) is not type(b):
            self._fail(f"a {_kind(a)} meets a {_kind(b)}")
        if isinstance(a, tuple):
            self._same_length(a, b)
            items = [self.merge(x, y) for x, y in zip(a, b, strict=True)]
            if all(x is y for x, y in zip(items, a, strict=True)):
                return a
            return tuple_of(type(a), items)
        if type(a) is list:
            self._same_length(a, b)
            self._must_be_new(a, b)
            return [self.merge(x, y) for x, y in zip(a, b, strict=True)]
        if type(a) is dict:
            if len(a) != len(b) or not all(map(same, a, b)):  # a key may be staged
                self._fail("dictionaries with other keys meet")
            self._must_be_new(a, b)
            return {k: self.merge(a[k], b[k]) for k in a}
        if isinstance(a, (torch.dtype, torch.device, range, slice, bytes)) and a == b:
            return a
        return self._objects(a, b)

    def _objects(self, a: object, b: object) -> object:
        if isinstance(a, (dict, list)) and not (self.session.heap.is_outer(a) or self.session.heap.is_outer(b)):
            return self._structures(a, b)
        if (
            is_skipped_class(type(a))
            or not hasattr(a, "__dict__")
            or callable(a)
            or isinstance(a, enum.Enum)  # of which there are no others
            or _holds_more(type(a))
        ):
            self._fail(f"two objects of kind {type(a).__qualname__} meet")
        self._must_be_new(a.__dict__, b.__dict__)
        self._must_pair(a, b)
        if list(a.__dict__) != list(b.__dict__) or isinstance(a, (dict, list, set)):
            self._fail(f"two objects of kind {type(a).__qualname__} meet")
        merged = object.__new__(type(a))
        merged.__dict__.update({k: self.merge(a.__dict__[k], b.__dict__[k]) for k in a.__dict__})
        return merged

    def _structures(self, a: object, b: object) -> object:
        """Two containers of a class of the program's, such as the outputs of a model."""
        numbers: dict[int, object] = {}
        standing = self._standing(numbers)
        # What was there before is the caller's own object, whatever holds it now.
        flattener, others = (Flattener(convert=standing, stays=self._was_there) for _ in range(2))
        tree, other = flattener.flatten(a, "a value"), others.flatten(b, "a value")
        found: dict[int, torch.Tensor] = {}
        try:
            match(tree, rebuild(other, others.tensors) if numbers else b, "a value", found)
        except UnfitError as unfit:
            self._fail(str(unfit))
        pairs = ((numbers.get(id(t), t) for t in (one, found[i])) for i, one in enumerate(flattener.tensors))
        return rebuild(tree, [self.merge(*pair) for pair in pairs])

    def _was_there(self, value: object) -> bool:
        """Whether an object was there before the paths that meet: what they change in it is merged on its own."""
        if isinstance(value, (list, dict, set, deque)):
            return self.session.heap.is_outer(value)
        fields = getattr(value, "__dict__", None)
        return isinstance(fields, dict) and self.session.heap.is_outer(fields)

    def _standing(self, numbers: dict[int, object]) -> Callable[[object], object]:
        """Has a tensor stand where a structure holds what the graph knows, which is noted by the tensor's id."""

        def standing(value: object) -> object:
            if not is_staged(value):
                return value
            stand_in = torch.empty(0)
            self._keep.append(stand_in)
            numbers[id(stand_in)] = value
            return stand_in

        return standing

    def _tensors(self, a: torch.Tensor, b: torch.Tensor) -> object:
        recorder = self.session.recorder
        left, right = recorder.slot_of(a), recorder.slot_of(b)
        if self.session.paths.resolved(left) is self.session.paths.resolved(right):
            return a
        first, second = tensor_type_of(left), tensor_type_of(right)
        type_ = join(first, second)
        if not isinstance(type_, TensorType) or type_.shape is None or first.rank != second.rank:
            self._fail(f"a tensor {first} meets a tensor {second}")
        assert isinstance(type_, TensorType)
        result, slot = self.session.tensor_of(type_, a, b)
        if a.requires_grad or b.requires_grad:
            result.requires_grad_()
        self._yield(self._slot(a), self._slot(b), slot)
        self._entwine(a, b, slot)
        return result

    def _slot(self, tensor: torch.Tensor) -> Slot:
        return self.session.encode(tensor)

    def _entwine(self, a: torch.Tensor, b: torch.Tensor, result: Slot) -> None:
        """Where an arm gives a tensor that others can still reach, writes to either must not pass unseen."""
        if self._families is None:
            self._families = {id(s.family) for s in self.session.recorder._slots.values() if s.ref() is not None}
            self._families.discard(id(result.family))
        families = [self.session.recorder.slot_of(t).family for t in (a, b)]
        if any(id(f) in self._families for f in families):
            self.session.recorder.entwine([*families, result.family], self.why)

    def _scalars(self, a: object, b: object) -> object:
        if class_of(a) is not class_of(b):
            self._fail("a tuple meets what is none")
        left, right = self.session.encode(a), self.session.encode(b)
        first, second = _type(left), _type(right)
        if isinstance(left, Slot) and isinstance(right, Slot):
            if self.session.paths.resolved(left) is self.session.paths.resolved(right):
                return a
        elif not (isinstance(left, Slot) or isinstance(right, Slot)) and first == second and repr(left) == repr(right):
            return left
        type_ = first if first == second else join(first, second)
        if type_ == ANY and first != second:
            self._fail(f"a {first} meets a {second}")
        if first != second and not isinstance(type_, ListType):
            self._fail(f"a {first} meets a {second}")
        sides = self.session.examples.sides()
        worlds = tuple(_world((left, right)[side], w) for w, side in enumerate(sides))
        found = ScalarSlot(type_, worlds)
        self._yield(left, right, found)
        return wrap_as(found, a)

    def _export(self, value: object) -> object:
        """What one path left, where the other ends in an exception."""
        key = (id(value), id(_RAISED))
        if key not in self._memo:
            self._memo[key] = self._exported(value)
            self._keep.append(value)
        return self._memo[key]

    def _exported(self, value: Any) -> object:
        if isinstance(value, torch.Tensor):
            return value if self.session.recorder.knows(value) else self._through(value)
        if is_staged(value):
            if self.session.heap.is_outer(value):
                return value  # what the path changed in it is a write of its own
            slot = slot_of(value)
            found = ScalarSlot(slot.type, slot.worlds, slot.is_native)
            self._yield(slot, slot, found)
            return wrap_as(found, value)
        if isinstance(value, StagedRange):
            return StagedRange(self.session, *map(self._export, value.bounds()))
        if self._was_there(value):
            return value
        if type(value) in (tuple, list):
            return type(value)(self._export(item) for item in value)
        if type(value) is dict:
            return {k: self._export(item) for k, item in value.items()}
        if isinstance(value, (dict, list)) and not self.session.heap.is_outer(value):
            numbers: dict[int, object] = {}
            flattener = Flattener(convert=self._standing(numbers), stays=self._was_there)
            tree = flattener.flatten(value, "a value")
            return rebuild(tree, [self._export(numbers.get(id(t), t)) for t in flattener.tensors])
        if isinstance(value, (*_NUMBERS, type(None), torch.dtype, torch.device, type)) or callable(value):
            return value
        return value if value is UNDEF or isinstance(value, Poison) else self._fail(f"a {_kind(value)} of one path")

    def _through(self, value: torch.Tensor) -> object:
        session = self.session
        slot = session.inner_slot(value)
        result, found = session.tensor_of(tensor_type_of(slot), value)
        self._yield(slot, slot, found)
        if id(slot.family) in session.outer_families():
            session.recorder.entwine([slot.family, found.family], self.why)
        return result

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _yield(self, left: object, right: object, result: Slot) -> None:
        if self.session.recorder.is_lazy(left) or self.session.recorder.is_lazy(right):
            self._fail("a conjugate or negative view meets another tensor")
        self.left.append(left)
        self.right.append(right)
        self.results.append(result)

    def _yield_one(self, value: object, other: object, result: Slot, is_left: bool) -> None:
        self._yield(value if is_left else other, other if is_left else value, result)

    def _same_length(self, a: Any, b: Any) -> None:
        if len(a) != len(b):
            self._fail(f"a {_kind(a)} of {len(a)} items meets one of {len(b)}")

    def _must_pair(self, a: object, b: object) -> None:
        """One object on a path is one on the other: merged with two, it would be two itself."""
        for mine, yours, partners in ((a, b, self._partners[0]), (b, a, self._partners[1])):
            if partners.setdefault(id(mine), yours) is not yours:
                self._fail(f"one {_kind(mine)} on a path is two on the other")

    def _must_be_new(self, *containers: object) -> None:
        for container in containers:
            if self.session.heap.is_outer(container):
                self._fail(f"two {type(container).__name__}s meet, of which one was there before")

    def _fail(self, what: str) -> NoReturn:
        raise CannotMerge(self._where(what), _NOT_ONE, self.site)

    @staticmethod
    def _where(what: str) -> str:
        return f"after a branch that depends on data {what}"


def _stands_apart(value: object) -> bool:
    """Whether nothing else can be the same as a value is: modules, functions, texts, None, tuples with such."""
    if isinstance(value, tuple):
        return any(map(_stands_apart, value))
    return value is None or isinstance(value, str) or callable(value)


def _type(value: Any) -> Type:
    found: Type = value.type if isinstance(value, Slot) else type_of_arg(value)
    return found


def _world(value: object, world: int) -> object:
    if isinstance(value, SizeSlot):
        return value.in_worlds(world + 1)[world]
    return value.worlds[world] if isinstance(value, ScalarSlot) else value


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if is_staged(value):
        of_class = class_of(value)
        return str(slot_of(value).type) if of_class is None else f"{of_class.__name__} of any length"
    return "None" if value is None else type(value).__name__


def _holds_more(cls: type) -> bool:
    """Whether objects of a class are more than their attributes: they have slots, or are errors, numbers, texts."""
    return bool(slots_of(cls)) or next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE) is not object
