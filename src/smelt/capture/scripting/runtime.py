"""What converted code asks in a scripted run, beyond what a staged run answers: open tensors, methods of the user's own
classes, and which exceptions are the program's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dis import opmap
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from smelt.capture.convert.runtime import Get, Names, PlainRuntime, Set, Thunk, no_variables, nothing
from smelt.capture.scripting import builtins, calls, quiet
from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.functions import is_converted
from smelt.capture.scripting.marking import mark
from smelt.capture.scripting.own_errors import codes_of, note_error
from smelt.capture.scripting.values import tensors
from smelt.capture.scripting.values.sequences import OpenTuple, PlainShape, ShapeObject, Spread
from smelt.capture.staging.fakes.symbols import StagedObject, class_of, is_staged, slot_of
from smelt.capture.staging.flow import choices
from smelt.capture.staging.flow.branches import branch
from smelt.capture.staging.flow.control import StagingRuntime, compared, use, use_in_call
from smelt.capture.staging.flow.growing import container_type, extends, must_be_staged
from smelt.capture.staging.flow.iterables import StagedSequence
from smelt.capture.staging.flow.merge import check_told_apart
from smelt.ir import ANY, BOOL, COMPLEX, FLOAT, INT, STR, DictType, DType, ListType, OptionalType, TupleType
from smelt.ir.python_operators import BY_SYMBOL, UNARY_BY_SYMBOL
from smelt.ops.unknown_kinds import TENSOR

_PLAIN = PlainRuntime()
# Classes of which equal values may be one object or two.
_OF_CLASS = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX, str: STR}
_UNPACK, _UNPACK_STARRED, _EXTENDED = (opmap[name] for name in ("UNPACK_SEQUENCE", "UNPACK_EX", "EXTENDED_ARG"))


P = ParamSpec("P")
R = TypeVar("R")


def _of_program(
    answer: Callable[Concatenate[OpenRuntime, P], R],
) -> Callable[Concatenate[OpenRuntime, P], R]:
    """An answer whose errors are the program's own."""

    def answered(self: OpenRuntime, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return answer(self, *args, **kwargs)
        except Exception as error:
            note_error(self.domain, error, _RUNTIME)
            raise

    return answered


class OpenRuntime:
    """Answers for one scripted run: what types leave open itself, all else as a staged run does."""

    __slots__ = ("domain", "session", "staged")

    def __init__(self, domain: Open) -> None:
        self.domain, self.session = domain, domain.session
        self.staged = StagingRuntime(domain.session, self)

    # --- as in a staged run ------------------------------------------------------------------------------------------

    def while_(self, at: int, test: Thunk, body: Thunk, names: Names, get: Get, set: Set) -> None:
        self.staged.while_(at, test, body, names, get, set)

    def assert_(self, at: int, test: object, message: Thunk | None) -> None:
        self.staged.assert_(at, test, message)

    def raise_(self, at: int, exc: Thunk | None, cause: Thunk | None) -> None:
        self.staged.raise_(at, exc, cause)

    def ifexp(self, at: int, test: object, then: Thunk, orelse: Thunk) -> object:
        return self.staged.ifexp(at, test, then, orelse)

    def and_(self, at: int, *thunks: Thunk) -> object:
        return self.staged.and_(at, *thunks)

    def or_(self, at: int, *thunks: Thunk) -> object:
        return self.staged.or_(at, *thunks)

    def truth(self, at: int, value: object) -> object:
        return self.staged.truth(at, value)

    def compare(self, at: int, left: object, *rest: tuple[str, Thunk]) -> Any:
        return self.staged.compare(at, left, *rest)

    def called_here(self, at: int, fn: object) -> object:
        return self.staged.called_here(at, fn)

    def held(self, at: int, value: object) -> Any:
        return self.staged.held(at, value)

    def fstring(self, at: int, parts: tuple[object, ...]) -> object:
        return self.staged.fstring(at, parts)

    def matched(self, at: int, subject: object, longest: int | None) -> object:
        return self.staged.matched(at, subject, longest)

    # --- branches ----------------------------------------------------------------------------------------------------

    def if_(self, at: int, test: object, then: Thunk, orelse: Thunk, names: Names, get: Get, set: Set) -> None:
        frame = sys._getframe(1)
        self.domain.arms[frame.f_code.co_filename, at] = (_first_line(then, at), _first_line(orelse, at))
        test = self.domain.settled(test)
        self.staged.if_(at, test, then, orelse, names, get, set)

    def not_(self, at: int, value: object) -> Any:
        return self.staged.not_(at, self.domain.settled(value))

    # --- calls and attributes ----------------------------------------------------------------------------------------

    @_of_program
    def call(self, at: int, fn: Any, args: Any, kwargs: Any) -> Any:
        use_in_call(self.session, fn, *args, *kwargs.values())
        args = tuple(map(self.domain.narrowed, args))
        kwargs = {name: self.domain.narrowed(value) for name, value in kwargs.items()}
        return calls.call(self.domain, self, at, fn, args, kwargs)

    @_of_program
    def getattr_(self, at: int, o: object, name: str) -> object:
        domain = self.domain
        use(self.session, o)
        o = domain.settled(o)
        if isinstance(o, torch.Tensor):
            return self._of_tensor(o, name)
        if isinstance(o, ShapeObject):
            if name == "numel":
                return lambda: domain.emit("py.int", domain.emit("py.call", "math.prod", o))
            return self.staged.getattr_(at, o, name)
        if isinstance(o, StagedObject):
            kind = slot_of(o).type
            if kind == ANY:
                if not hasattr(torch.Tensor, name):
                    domain.cannot(f"{name} is called on a value that may be of any kind", "nothing says what it is")
                return self._of_tensor(domain.as_tensor(o), name)
            if str(kind) in ("device", "dtype") or (kind == COMPLEX and name in ("real", "imag")):
                return domain.emit("py.getattr", o, name)
            if kind == COMPLEX and name == "conjugate":
                return lambda: domain.emit("py.call", "complex.conjugate", o)
            plain = class_of(o) or {ListType: list, DictType: dict, TupleType: tuple}.get(type(kind), str)
            if not hasattr(plain, name):
                raise AttributeError(f"'{plain.__name__}' object has no attribute '{name}'")
            return self.staged.getattr_(at, o, name)
        found = _property(o, name)
        if found is not None:
            return calls.call(domain, self, at, found, (o,), {})
        return getattr(o, name)

    def _of_tensor(self, tensor: torch.Tensor, name: str) -> object:
        domain = self.domain
        found = tensors.attribute(domain, tensor, name)
        if found is not NotImplemented:
            return found
        if not hasattr(torch.Tensor, name) and not hasattr(tensor, name):
            if name in _LISTS:
                domain.assume(tensor, ListType(TENSOR))
            if name in _DICTS:
                domain.assume(tensor, DictType(STR, TENSOR))
            slot = domain.recorder.slot_of(tensor)
            if slot in domain.assumable:
                domain.cannot(
                    f"parameter {domain.assumable[slot]} has an attribute {name}, which tensors have not",
                    "nothing says what it is",
                )
        return quiet.read(tensor, name)

    @_of_program
    def setattr_(self, at: int, o: object, name: str, v: object) -> None:
        setter = _property(o, name, "fset")
        if setter is not None:
            calls.call(self.domain, self, at, setter, (o, v), {})
            return
        if name == "data" and isinstance(o, torch.Tensor):
            self.domain.cannot("`data` of a tensor is set", "its memory layout is not known until run time")
        self.staged.setattr_(at, o, name, v)

    # --- operators ---------------------------------------------------------------------------------------------------

    @_of_program
    def binop(self, at: int, op: str, a: object, b: object) -> Any:
        domain = self.domain
        use(self.session, a, b)
        a, b = map(domain.settled, (a, b))
        if op == "+" and (isinstance(a, ShapeObject) or isinstance(b, ShapeObject)):
            classes = [class_of(v) or type(v) for v in (a, b)]
            is_plain = all(issubclass(c, tuple) for c in classes) and type(classes[0]() + classes[1]()) is tuple
            made = PlainShape if is_plain else ShapeObject
            if not (is_staged(a) or a) or not (is_staged(b) or b):
                return made(slot_of(b if is_staged(b) else a))
            return made(slot_of(domain.emit("py.concat", _listed(a), _listed(b))))
        found = self._operator(at, op, a, b)
        if found is not NotImplemented:
            return found
        if op == "%" and isinstance(a, str) and (is_staged(b) or (type(b) is tuple and any(map(is_staged, b)))):
            return domain.emit("py.call", "str.__mod__", a, domain.as_in_program(b))
        a, b = self._numbers_for_tensors(a, b), self._numbers_for_tensors(b, a)
        return self.staged.binop(at, op, a, b)

    def _numbers_for_tensors(self, value: object, other: object) -> object:
        """A staged number beside a tensor, as torch's parsers take it."""
        if is_staged(value) and isinstance(other, torch.Tensor):
            return mark(self.domain, value)
        return value

    def _lists(self, a: object, b: object) -> tuple[object, object]:
        """The operands of `a += b`, where a list takes in whatever can be gone over."""
        domain = self.domain
        if isinstance(a, torch.Tensor) and type(b) is list:
            found = container_type(domain.session, [b]) if not any(isinstance(x, torch.Tensor) for x in b) else None
            domain.assume(a, found or ListType(TENSOR))
        if isinstance(a, StagedObject):
            type_ = slot_of(a).type
            is_items = not isinstance(b, torch.Tensor) and not domain.is_number(slot_of(b) if is_staged(b) else b)
            if type_ == ANY and is_items and not domain.is_number(slot_of(a)):
                domain.cannot("a value of unknown kind is changed in place", "a list is, a number is not: annotate it")
        return a, b

    @_of_program
    def inplace(self, at: int, op: str, a: object, b: object) -> object:
        use(self.session, a, b)
        a, b = map(self.domain.settled, (a, b))
        name = BY_SYMBOL[op].in_place_method
        own = getattr(type(a), name, None)
        if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
            found = calls.call(self.domain, self, at, MethodType(own, a), (b,), {})
            if found is not NotImplemented:
                return found
        if isinstance(a, (ShapeObject, OpenTuple, torch.Size)) and op == "+":
            return self.binop(at, op, a, b)
        if op == "+":
            a, b = self._lists(a, b)
        if type(a) in (list, dict):
            self.domain.check_change(a)
            if type(a) is list and is_staged(b) and op == "+":
                extends(self.session, a, b)
        if not isinstance(a, (torch.Tensor, StagedObject)) and not hasattr(type(a), name):
            return self.binop(at, op, a, b)
        return self.staged.inplace(at, op, a, self._numbers_for_tensors(b, a))

    @_of_program
    def unop(self, at: int, op: str, a: object) -> object:
        name = UNARY_BY_SYMBOL[op].method
        a = self.domain.settled(a)
        own = getattr(type(a), name, None)
        if isinstance(own, FunctionType) and not isinstance(a, torch.Tensor) and not is_staged(a):
            return calls.call(self.domain, self, at, MethodType(own, a), (), {})
        if op == "~" and isinstance(a, torch.Tensor) and self.domain.type_of(a).dtype == DType.UNKNOWN:
            return self._inverted(a)
        return self.staged.unop(at, op, a)

    def _inverted(self, a: torch.Tensor) -> object:
        """`~a` of a tensor whose element type a run knows; torch asks for it before it calls an operator."""
        for name in ("is_floating_point", "is_complex"):
            test = tensors.method(self.domain, name, a, (), {})
            self.raise_if(test, lambda: TypeError(_NOT_INVERTED))
        return torch.ops.aten.bitwise_not.default(a)

    def _operator(self, at: int, op: str, a: object, b: object) -> object:
        """A method of the user's own class; NotImplemented where there is none."""
        asked = BY_SYMBOL[op]
        for owner, method, other in ((a, asked.method, b), (b, asked.reflected, a)):
            if isinstance(owner, (torch.Tensor, int, float, str, list, tuple, dict)) or is_staged(owner):
                continue
            own = getattr(type(owner), method, None)
            if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
                found = calls.call(self.domain, self, at, MethodType(own, owner), (other,), {})
                if found is not NotImplemented:
                    return found
        return NotImplemented

    @_of_program
    def compare_two(self, op: str, left: object, right: object) -> object:
        domain = self.domain
        use(self.session, left, right)
        if op in ("is", "is not"):
            return self._is(op, left, right)
        if op in ("<", "<=", ">", ">="):
            left, right = map(domain.settled, (left, right))
        if op in ("==", "!=", "<", "<=", ">", ">="):
            found = self._operator(0, op, left, right)
            if found is not NotImplemented:
                return found
            if isinstance(left, ShapeObject) or isinstance(right, ShapeObject):
                return domain.emit(f"py.{BY_SYMBOL[op].name}", _listed(left), _listed(right))
            for one, other in ((left, right), (right, left)):
                if isinstance(one, torch.Tensor) and isinstance(other, str):
                    domain.assume(one, STR)
                if isinstance(one, torch.Tensor) and is_staged(other):
                    return self._with_tensor(op, left, right)
            kinds = (torch.dtype, torch.device, torch.layout)
            if any(map(is_staged, (left, right))) and any(isinstance(v, kinds) for v in (left, right)):
                return domain.emit(f"py.{BY_SYMBOL[op].name}", left, right)
        return self.staged.compare_two(op, left, right)

    def _with_tensor(self, op: str, left: object, right: object) -> object:
        left, right = self._numbers_for_tensors(left, right), self._numbers_for_tensors(right, left)
        return compared(op, left, right)

    def _is(self, op: str, left: object, right: object) -> object:
        domain = self.domain
        value, other = (right, left) if left is None else (left, right)
        if is_staged(value) and other is None:
            kind = slot_of(value).type
            if kind == ANY or isinstance(kind, OptionalType):
                found = domain.emit("py.is_none", value)
                return found if op == "is" else domain.emit("py.not_", found)
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            found = domain.same_tensor(left, right)
            return found if op == "is" else self.not_(0, found)
        for one, two in ((left, right), (right, left)):
            if is_staged(one):
                found = self._is_staged(one, two)
                return found if op == "is" else self.not_(0, found)
        return (left is right) if op == "is" else (left is not right)

    def _is_staged(self, value: object, other: object) -> object:
        """Whether a value that a run knows is the very object. Raises: CannotStage where equal ones may be two."""
        kind, theirs = _kind_of(value), _kind_of(other)
        if is_staged(other) and slot_of(value) is slot_of(other):
            return True
        if isinstance(other, (torch.dtype, torch.layout)) or kind == theirs == BOOL:
            return self.domain.emit("py.eq", value, other)
        plain = [k for k in (kind, theirs) if k == ANY or k in _OF_CLASS.values()]
        if len(plain) == 2 and (kind == theirs or ANY in plain):
            self.domain.cannot(f"the program reads the identity of a value {kind}", "annotate it, or compare with ==")
        if isinstance(other, torch.Tensor) or (is_staged(other) and not plain):
            one, two = slot_of(value), self.domain.encode(other)
            if self.domain.is_one_item(one, two):
                return True
            self.domain.check_items(one, two)
            check_told_apart(self.session, one, two)
        return False

    @_of_program
    def contains(self, at: int, item: object, c: object) -> object:
        c = self.domain.settled(c)
        own: Any = getattr(type(c), "__contains__", None)
        is_own = isinstance(own, FunctionType) and not isinstance(c, torch.Tensor) and not is_staged(c)
        if is_own and is_converted(own.__code__.co_filename):
            return calls.call(self.domain, self, at, MethodType(own, c), (item,), {})
        if isinstance(c, torch.Tensor):
            if isinstance(item, str):
                self.domain.assume(c, DictType(STR, TENSOR))
            if tensors.is_symbolic(self.domain, c):
                return self.domain.item((_PLAIN.compare(0, c, ("==", lambda: mark(self.domain, item)))).any())
        if is_staged(item) and isinstance(c, (set, frozenset)):
            c = list(c)
        return self.staged.contains(at, item, c)

    # --- items -------------------------------------------------------------------------------------------------------

    @_of_program
    def getitem(self, at: int, o: object, k: object) -> Any:
        domain = self.domain
        use(self.session, o, k)
        o, k = map(domain.settled, (o, k))
        if isinstance(k, slice):
            k = slice(*map(domain.settled, (k.start, k.stop, k.step)))
        if isinstance(o, torch.Tensor):
            if isinstance(k, str):
                domain.assume(o, DictType(STR, TENSOR))
            if tensors.needs_care(domain, o, k):
                return tensors.index(domain, o, k)
            with quiet.unwarned():
                return o[k]
        if isinstance(o, torch.nn.ModuleList | torch.nn.Sequential) and (is_staged(k) or _is_open_number(domain, k)):
            number = domain.item(k) if isinstance(k, torch.Tensor) else k
            return choices.at_number(domain.session, self, o, number, self.session.raising)
        if isinstance(o, (dict, torch.nn.ModuleDict)) and is_staged(k) and choices.holds_code(o):
            return choices.at_key(domain.session, o, k, self.session.raising)
        if isinstance(o, torch.Size) and is_staged(k):
            return domain.getitem(self.session.container(list(o)), k)
        if isinstance(k, torch.Tensor) and type(o) in (list, tuple, dict):
            domain.assume(k, INT)
        if isinstance(o, str) and not isinstance(k, slice) and is_staged(k):
            return domain.emit("py.getitem", o, k)
        if is_staged(o):
            key = domain.item(k) if isinstance(k, torch.Tensor) else k
            if type(o) is StagedObject and isinstance(slot_of(o).type, (ListType, TupleType, DictType)):
                return domain.getitem(o, key)
            return domain.getitem(o, key)
        own = getattr(type(o), "__getitem__", None)
        if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
            return calls.call(domain, self, at, MethodType(own, o), (k,), {})
        return self.staged.getitem(at, o, k)

    @_of_program
    def setitem(self, at: int, o: object, k: object, v: object) -> None:
        domain = self.domain
        use(self.session, o, k, v)
        o = domain.settled(o)
        if isinstance(o, torch.Tensor):
            if tensors.needs_care(domain, o, k) or is_staged(v) or tensors.has_open_sizes(domain, v):
                tensors.set_index(domain, o, k, v)
            else:
                with quiet.unwarned():
                    o[k] = v
            return
        own = getattr(type(o), "__setitem__", None)
        if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
            calls.call(domain, self, at, MethodType(own, o), (k, v), {})
            return
        if type(o) in (list, dict):
            domain.check_change(o)
            if is_staged(k):
                must_be_staged(domain.session, o, v, k)
        self.staged.setitem(at, o, k, v)

    @_of_program
    def delitem(self, at: int, o: object, k: object) -> None:
        if isinstance(o, StagedObject) or type(o) in (list, dict):
            self.domain.check_change(o)
        if isinstance(o, StagedObject):
            self.session.resized += 1
            o.slot = slot_of(self.domain.emit("py.delitem", o, k))
            return
        self.staged.delitem(at, o, k)

    # --- loops -------------------------------------------------------------------------------------------------------

    @_of_program
    def for_(
        self,
        at: int,
        iterable: object,
        body: Callable[..., None],
        names: Names,
        get: Get,
        set: Set,
        more: Thunk | None,
        anew: Names = (),
    ) -> None:
        domain = self.domain
        domain.check_iterator(iterable)
        iterable = domain.settled(iterable)
        if isinstance(iterable, ShapeObject):
            iterable = StagedObject(slot_of(domain.emit("py.slice", iterable)))
        elif is_staged(iterable) and slot_of(iterable).type == ANY:
            domain.cannot("a value of unknown kind is iterated over", "annotate the parameter")
        elif isinstance(iterable, torch.Tensor) and domain.type_of(iterable).rank is None:
            iterable = _OpenRows(domain, iterable)
        self.staged.for_(at, iterable, body, names, get, set, more, anew)

    @_of_program
    def iterate(self, at: int, iterable: object) -> Iterable[object]:
        domain = self.domain
        use(self.session, iterable)
        domain.check_iterator(iterable)
        iterable = domain.settled(iterable)
        if isinstance(iterable, ShapeObject) or (
            isinstance(iterable, StagedObject) and not isinstance(slot_of(iterable).type, TupleType)
        ):
            return _Unpacked(self, iterable)
        if isinstance(iterable, torch.Tensor) and not domain.type_of(iterable).is_static:
            return _Unpacked(self, iterable)
        return self.staged.iterate(at, iterable)

    def starred(self, at: int, rest: list[object]) -> object:
        return rest[0].items if len(rest) == 1 and isinstance(rest[0], Spread) else rest

    @_of_program
    def display(self, at: int, is_list: bool, *parts: Any) -> object:
        domain = self.domain
        use(self.session, *parts)
        if not any(isinstance(p, StagedObject) and not isinstance(slot_of(p).type, TupleType) for p in parts):
            return self.staged.display(at, is_list, *(p if type(p) is tuple else self.iterate(at, p) for p in parts))
        whole: object = None
        for part in parts:
            is_open = isinstance(part, StagedObject) and not isinstance(slot_of(part).type, TupleType)
            items = domain.taken_in(part) if is_open else list(self.iterate(at, part))
            whole = items if whole is None else domain.emit("py.concat", whole, items)
        if is_list:
            return StagedObject(slot_of(domain.emit("py.slice", whole)))
        return (PlainShape if slot_of(whole).type == ListType(INT) else OpenTuple)(slot_of(whole))

    # --- text --------------------------------------------------------------------------------------------------------

    @_of_program
    def format_value(self, at: int, v: object, conversion: str | None, spec: object) -> object:
        text = builtins.shape_text(self.domain, v)
        v = self.domain.as_in_program(v) if text is None else text
        no_format = getattr(type(v), "__format__", None) is object.__format__
        is_plain = conversion in ("r", "s") or (conversion is None and no_format)
        own = builtins.own_text(v, "repr" if conversion == "r" else "str") if is_plain else None
        if own is not None and (conversion is not None or (type(spec) is str and not spec)):
            v, conversion = self.call(at, own, (v,), {}), None
        return self.staged.format_value(at, v, conversion, spec)

    def raise_if(self, test: object, error: Any) -> None:
        """An exception that is raised where a staged test holds."""

        def fails() -> None:
            raise self.session.raising(error())

        branch(
            self.session, ("raise", len(self.domain.recorder.records)), slot_of(test), fails, nothing, no_variables()
        )


_NOT_INVERTED = "~ (operator.invert) is only implemented on integer and Boolean-type tensors"
_LISTS = ("append", "extend", "insert", "pop", "sort", "reverse")
_DICTS = ("items", "keys", "get", "update", "setdefault")


def _first_line(arm: Any, at: int) -> int:
    """Where the statements of an arm begin; the branch itself where it has none."""
    if arm is nothing:
        return at
    return min((line for _, _, line in arm.__code__.co_lines() if line is not None and line > at), default=at)


class _OpenRows(StagedSequence):
    """The rows of a tensor of unknown rank."""

    def __init__(self, domain: Open, tensor: torch.Tensor) -> None:
        self.domain, self.tensor = domain, tensor

    def length(self) -> Any:
        return self.domain.session.size(self.tensor, 0)

    def item(self, number: object) -> Any:
        return tensors.index(self.domain, self.tensor, number)


class _Unpacked:
    """What stands on the right of an unpacking, where only a run knows how many items there are."""

    def __init__(self, runtime: OpenRuntime, items: object) -> None:
        self.runtime, self.items = runtime, items

    def __iter__(self) -> Any:
        domain = self.runtime.domain
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        if at < 0 or code[at] not in (_UNPACK, _UNPACK_STARRED):
            domain.cannot("a sequence of dynamic length is unpacked")
        if isinstance(self.items, StagedObject) and isinstance(slot_of(self.items).type, DictType):
            self.items = builtins.list_of(domain, self.items)
        length = builtins._len(domain, self.runtime, (self.items,), {})
        length = domain.emit("py.len", self.items) if length is NotImplemented else length
        if code[at] == _UNPACK:
            return self._all(length, code[at + 1])
        return self._with_rest(length, code[at + 1], code[at - 1] if at > 1 and code[at - 2] == _EXTENDED else 0)

    def _all(self, length: object, count: int) -> object:
        self._check("gt", length, count, f"too many values to unpack (expected {count})")
        self._check("lt", length, count, f"not enough values to unpack (expected {count}, got ")
        return iter([self.runtime.getitem(0, self.items, i) for i in range(count)])

    def _with_rest(self, length: object, before: int, after: int) -> object:
        """The first items, all others as one that spreads, the last ones."""
        domain, items = self.runtime.domain, self.items
        count = before + after
        self._check("lt", length, count, f"not enough values to unpack (expected at least {count}, got ")
        end = self.runtime.binop(0, "-", length, after)
        if isinstance(items, torch.Tensor):
            rest = builtins.list_of(domain, self.runtime.getitem(0, items, slice(before, end)))
        elif isinstance(slot_of(items).type, ListType):
            rest = StagedObject(slot_of(domain.emit("py.slice", items, before, end)))
        else:
            domain.cannot(f"a {slot_of(items).type} is unpacked, and the rest of it becomes a list")
        last = [self.runtime.binop(0, "+", end, i) for i in range(after)]
        first = [self.runtime.getitem(0, items, i) for i in range(before)]
        return iter([*first, Spread(rest), *(self.runtime.getitem(0, items, i) for i in last)])

    def _check(self, op: str, length: object, count: int, text: str) -> None:
        """Raise where there are more or fewer items than targets. text: the error's, up to the number it ends with."""
        closing = ")" if text.endswith(" ") else ""
        if isinstance(length, int) and not is_staged(length):
            if length > count if op == "gt" else length < count:
                raise self.runtime.session.raising(ValueError(f"{text}{length}{closing}" if closing else text))
            return
        domain = self.runtime.domain
        self.runtime.raise_if(
            domain.emit(f"py.{op}", length, count),
            lambda: ValueError(
                domain.emit("py.join", text, domain.emit("py.str", length), closing) if closing else text
            ),
        )


def _kind_of(value: object) -> object:
    """The type of a value that a run knows, None or not; of a plain number or text; None for all else."""
    if not is_staged(value):
        return _OF_CLASS.get(type(value))
    kind = slot_of(value).type
    return kind.element if isinstance(kind, OptionalType) else kind


def _listed(value: object) -> object:
    """A tuple as a list, as sizes stand in the graph."""
    return list(value) if isinstance(value, tuple) else value


def _is_open_number(domain: Open, value: object) -> bool:
    return isinstance(value, torch.Tensor) and tensors.is_symbolic(domain, value)


def _property(o: object, name: str, kind: str = "fget") -> object:
    """The function behind a property of the user's own class."""
    if isinstance(o, type):
        return None
    for base in type(o).__mro__:
        found = vars(base).get(name)
        if found is None:
            continue
        if isinstance(found, property):
            function = getattr(found, kind)
            is_own = isinstance(function, FunctionType) and is_converted(function.__code__.co_filename)
            return function if is_own else None
        if isinstance(found, MemberDescriptorType):
            return None
        return None
    return None


_RUNTIME = codes_of(OpenRuntime, _OpenRows, _Unpacked)
