"""What converted code asks in a scripted run, beyond what a staged run answers: open tensors, methods of the user's own
classes, and which exceptions are the program's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dis import opmap
from pathlib import Path
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any

import torch

from smelt.capture.convert.runtime import Get, Names, PlainRuntime, Set, Thunk, nothing
from smelt.capture.scripting import builtins, calls, quiet
from smelt.capture.scripting.functions import is_converted
from smelt.capture.scripting.marking import mark
from smelt.capture.scripting.session import ScriptSession
from smelt.capture.scripting.values import tensors
from smelt.capture.scripting.values.sequences import OpenTuple, PlainShape, ShapeObject, Spread
from smelt.capture.scripting.values.types import TENSOR
from smelt.capture.staging.fakes.symbols import StagedObject, class_of, is_staged, slot_of
from smelt.capture.staging.flow import choices
from smelt.capture.staging.flow.branches import branch, is_raised_by_user
from smelt.capture.staging.flow.control import StagingRuntime, _use, _use_in_call, compared
from smelt.capture.staging.flow.growing import container_type, extends, must_be_staged
from smelt.capture.staging.flow.iterables import StagedSequence
from smelt.capture.staging.flow.merge import check_told_apart
from smelt.ir import ANY, BOOL, COMPLEX, FLOAT, INT, STR, DictType, DType, ListType, OptionalType, TupleType
from smelt.ir.python_operators import BY_SYMBOL, UNARY_BY_SYMBOL
from smelt.ops.python import in_python

_PLAIN = PlainRuntime()
# Classes of which equal values may be one object or two.
_OF_CLASS = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX, str: STR}
_SMELT = f"{Path(__file__).resolve().parents[2]}/"
_UNPACK, _UNPACK_STARRED, _EXTENDED = (opmap[name] for name in ("UNPACK_SEQUENCE", "UNPACK_EX", "EXTENDED_ARG"))


class ScriptRuntime(StagingRuntime):
    """Answers for one scripted run."""

    __slots__ = ()

    session: ScriptSession

    # --- branches ----------------------------------------------------------------------------------------------------

    def if_(self, at: int, test: object, then: Thunk, orelse: Thunk, names: Names, get: Get, set: Set) -> None:
        frame = sys._getframe(1)
        self.session.arms[frame.f_code.co_filename, at] = (_first_line(then, at), _first_line(orelse, at))
        test = self.session.settled(test)
        super().if_(at, test, then, orelse, names, get, set)

    def not_(self, at: int, value: object) -> Any:
        return super().not_(at, self.session.settled(value))

    # --- calls and attributes ----------------------------------------------------------------------------------------

    def call(self, at: int, fn: Any, args: Any, kwargs: Any) -> Any:
        _use_in_call(self.session, fn, *args, *kwargs.values())
        try:
            args = tuple(map(self.session.narrowed, args))
            kwargs = {name: self.session.narrowed(value) for name, value in kwargs.items()}
            return calls.call(self.session, self, at, fn, args, kwargs)
        except Exception as error:
            self._programs(error)
            raise

    def getattr_(self, at: int, o: object, name: str) -> object:
        session = self.session
        _use(session, o)
        try:
            o = session.settled(o)
            if isinstance(o, torch.Tensor):
                return self._of_tensor(o, name)
            if isinstance(o, ShapeObject):
                if name == "numel":
                    return lambda: session.emit("py.int", session.emit("py.call", "math.prod", o))
                return super().getattr_(at, o, name)
            if isinstance(o, StagedObject):
                kind = slot_of(o).type
                if kind == ANY:
                    if not hasattr(torch.Tensor, name):
                        session.cannot(
                            f"{name} is called on a value that may be of any kind", "nothing says what it is"
                        )
                    return self._of_tensor(session.as_tensor(o), name)
                if str(kind) in ("device", "dtype") or (kind == COMPLEX and name in ("real", "imag")):
                    return session.emit("py.getattr", o, name)
                if kind == COMPLEX and name == "conjugate":
                    return lambda: session.emit("py.call", "complex.conjugate", o)
                plain = class_of(o) or {ListType: list, DictType: dict, TupleType: tuple}.get(type(kind), str)
                if not hasattr(plain, name):
                    raise AttributeError(f"'{plain.__name__}' object has no attribute '{name}'")
                return super().getattr_(at, o, name)
            found = _property(o, name)
            if found is not None:
                return calls.call(session, self, at, found, (o,), {})
            return getattr(o, name)
        except Exception as error:
            self._programs(error)
            raise

    def _of_tensor(self, tensor: torch.Tensor, name: str) -> object:
        session = self.session
        found = tensors.attribute(session, tensor, name)
        if found is not NotImplemented:
            return found
        if not hasattr(torch.Tensor, name) and not hasattr(tensor, name):
            if name in _LISTS:
                session.assume(tensor, ListType(TENSOR))
            if name in _DICTS:
                session.assume(tensor, DictType(STR, TENSOR))
            slot = session.recorder.slot_of(tensor)
            if slot in session.assumable:
                session.cannot(
                    f"parameter {session.assumable[slot]} has an attribute {name}, which tensors have not",
                    "nothing says what it is",
                )
        return quiet.read(tensor, name)

    def setattr_(self, at: int, o: object, name: str, v: object) -> None:
        try:
            setter = _property(o, name, "fset")
            if setter is not None:
                calls.call(self.session, self, at, setter, (o, v), {})
                return
            if name == "data" and isinstance(o, torch.Tensor):
                self.session.cannot("`data` of a tensor is set", "its memory layout is not known until run time")
            super().setattr_(at, o, name, v)
        except Exception as error:
            self._programs(error)
            raise

    # --- operators ---------------------------------------------------------------------------------------------------

    def binop(self, at: int, op: str, a: object, b: object) -> Any:
        session = self.session
        _use(session, a, b)
        try:
            a, b = map(session.settled, (a, b))
            if op == "+" and (isinstance(a, ShapeObject) or isinstance(b, ShapeObject)):
                classes = [class_of(v) or type(v) for v in (a, b)]
                is_plain = all(issubclass(c, tuple) for c in classes) and type(classes[0]() + classes[1]()) is tuple
                made = PlainShape if is_plain else ShapeObject
                if not (is_staged(a) or a) or not (is_staged(b) or b):
                    return made(slot_of(b if is_staged(b) else a))
                return made(slot_of(session.emit("py.concat", _listed(a), _listed(b))))
            found = self._operator(at, op, a, b)
            if found is not NotImplemented:
                return found
            if op == "%" and isinstance(a, str) and (is_staged(b) or (type(b) is tuple and any(map(is_staged, b)))):
                return session.emit("py.call", "str.__mod__", a, session.as_in_program(b))
            a, b = self._numbers_for_tensors(a, b), self._numbers_for_tensors(b, a)
            return super().binop(at, op, a, b)
        except Exception as error:
            self._programs(error)
            raise

    def _numbers_for_tensors(self, value: object, other: object) -> object:
        """A staged number beside a tensor, as torch's parsers take it."""
        if is_staged(value) and isinstance(other, torch.Tensor):
            return mark(self.session, value)
        return value

    def _lists(self, a: object, b: object) -> tuple[object, object]:
        """The operands of `a += b`, where a list takes in whatever can be gone over."""
        session = self.session
        if isinstance(a, torch.Tensor) and type(b) is list:
            found = container_type(session, [b]) if not any(isinstance(x, torch.Tensor) for x in b) else None
            session.assume(a, found or ListType(TENSOR))
        if isinstance(a, StagedObject):
            type_ = slot_of(a).type
            is_items = not isinstance(b, torch.Tensor) and not session.is_number(slot_of(b) if is_staged(b) else b)
            if type_ == ANY and is_items and not session.is_number(slot_of(a)):
                session.cannot("a value of unknown kind is changed in place", "a list is, a number is not: annotate it")
        return a, b

    def inplace(self, at: int, op: str, a: object, b: object) -> object:
        _use(self.session, a, b)
        try:
            a, b = map(self.session.settled, (a, b))
            name = BY_SYMBOL[op].in_place_method
            own = getattr(type(a), name, None)
            if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
                found = calls.call(self.session, self, at, MethodType(own, a), (b,), {})
                if found is not NotImplemented:
                    return found
            if isinstance(a, (ShapeObject, OpenTuple, torch.Size)) and op == "+":
                return self.binop(at, op, a, b)
            if op == "+":
                a, b = self._lists(a, b)
            if type(a) in (list, dict):
                self.session.check_change(a)
                if type(a) is list and is_staged(b) and op == "+":
                    extends(self.session, a, b)
            if not isinstance(a, (torch.Tensor, StagedObject)) and not hasattr(type(a), name):
                return self.binop(at, op, a, b)
            return super().inplace(at, op, a, self._numbers_for_tensors(b, a))
        except Exception as error:
            self._programs(error)
            raise

    def unop(self, at: int, op: str, a: object) -> object:
        name = UNARY_BY_SYMBOL[op].method
        try:
            a = self.session.settled(a)
            own = getattr(type(a), name, None)
            if isinstance(own, FunctionType) and not isinstance(a, torch.Tensor) and not is_staged(a):
                return calls.call(self.session, self, at, MethodType(own, a), (), {})
            if op == "~" and isinstance(a, torch.Tensor) and self.session.type_of(a).dtype == DType.UNKNOWN:
                return self._inverted(a)
            return super().unop(at, op, a)
        except Exception as error:
            self._programs(error)
            raise

    def _inverted(self, a: torch.Tensor) -> object:
        """`~a` of a tensor whose element type a run knows; torch asks for it before it calls an operator."""
        for name in ("is_floating_point", "is_complex"):
            test = tensors.method(self.session, name, a, (), {})
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
                found = calls.call(self.session, self, at, MethodType(own, owner), (other,), {})
                if found is not NotImplemented:
                    return found
        return NotImplemented

    def _compare(self, op: str, left: object, right: object) -> object:
        session = self.session
        _use(session, left, right)
        try:
            if op in ("is", "is not"):
                return self._is(op, left, right)
            if op in ("<", "<=", ">", ">="):
                left, right = map(session.settled, (left, right))
            if op in ("==", "!=", "<", "<=", ">", ">="):
                found = self._operator(0, op, left, right)
                if found is not NotImplemented:
                    return found
                if isinstance(left, ShapeObject) or isinstance(right, ShapeObject):
                    return session.emit(f"py.{BY_SYMBOL[op].name}", _listed(left), _listed(right))
                for one, other in ((left, right), (right, left)):
                    if isinstance(one, torch.Tensor) and isinstance(other, str):
                        session.assume(one, STR)
                    if isinstance(one, torch.Tensor) and is_staged(other):
                        return self._with_tensor(op, left, right)
                kinds = (torch.dtype, torch.device, torch.layout)
                if any(map(is_staged, (left, right))) and any(isinstance(v, kinds) for v in (left, right)):
                    return session.emit(f"py.{BY_SYMBOL[op].name}", left, right)
            return super()._compare(op, left, right)
        except Exception as error:
            self._programs(error)
            raise

    def _with_tensor(self, op: str, left: object, right: object) -> object:
        left, right = self._numbers_for_tensors(left, right), self._numbers_for_tensors(right, left)
        return compared(op, left, right)

    def _is(self, op: str, left: object, right: object) -> object:
        session = self.session
        value, other = (right, left) if left is None else (left, right)
        if is_staged(value) and other is None:
            kind = slot_of(value).type
            if kind == ANY or isinstance(kind, OptionalType):
                found = session.emit("py.is_none", value)
                return found if op == "is" else session.emit("py.not_", found)
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            found = session.same_tensor(left, right)
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
            return self.session.emit("py.eq", value, other)
        plain = [k for k in (kind, theirs) if k == ANY or k in _OF_CLASS.values()]
        if len(plain) == 2 and (kind == theirs or ANY in plain):
            self.session.cannot(f"the program reads the identity of a value {kind}", "annotate it, or compare with ==")
        if isinstance(other, torch.Tensor) or (is_staged(other) and not plain):
            one, two = slot_of(value), self.session.encode(other)
            if self.session.is_one_item(one, two):
                return True
            self.session.check_items(one, two)
            check_told_apart(self.session, one, two)
        return False

    def contains(self, at: int, item: object, c: object) -> object:
        try:
            c = self.session.settled(c)
            own: Any = getattr(type(c), "__contains__", None)
            is_own = isinstance(own, FunctionType) and not isinstance(c, torch.Tensor) and not is_staged(c)
            if is_own and is_converted(own.__code__.co_filename):
                return calls.call(self.session, self, at, MethodType(own, c), (item,), {})
            if isinstance(c, torch.Tensor):
                if isinstance(item, str):
                    self.session.assume(c, DictType(STR, TENSOR))
                if tensors.is_symbolic(self.session, c):
                    return self.session.item((_PLAIN.compare(0, c, ("==", lambda: mark(self.session, item)))).any())
            if is_staged(item) and isinstance(c, (set, frozenset)):
                c = list(c)
            return super().contains(at, item, c)
        except Exception as error:
            self._programs(error)
            raise

    # --- items -------------------------------------------------------------------------------------------------------

    def getitem(self, at: int, o: object, k: object) -> Any:
        session = self.session
        _use(session, o, k)
        try:
            o, k = map(session.settled, (o, k))
            if isinstance(k, slice):
                k = slice(*map(session.settled, (k.start, k.stop, k.step)))
            if isinstance(o, torch.Tensor):
                if isinstance(k, str):
                    session.assume(o, DictType(STR, TENSOR))
                if tensors.needs_care(session, o, k):
                    return tensors.index(session, o, k)
                with quiet.unwarned():
                    return o[k]
            if isinstance(o, torch.nn.ModuleList | torch.nn.Sequential) and (
                is_staged(k) or _is_open_number(session, k)
            ):
                number = session.item(k) if isinstance(k, torch.Tensor) else k
                return choices.at_number(session, self, o, number, self._raised)
            if isinstance(o, (dict, torch.nn.ModuleDict)) and is_staged(k) and choices.holds_code(o):
                return choices.at_key(session, o, k, self._raised)
            if isinstance(o, torch.Size) and is_staged(k):
                return session.getitem(session.container(list(o)), k)
            if isinstance(k, torch.Tensor) and type(o) in (list, tuple, dict):
                session.assume(k, INT)
            if isinstance(o, str) and not isinstance(k, slice) and is_staged(k):
                return session.emit("py.getitem", o, k)
            if is_staged(o):
                key = session.item(k) if isinstance(k, torch.Tensor) else k
                if type(o) is StagedObject and isinstance(slot_of(o).type, (ListType, TupleType, DictType)):
                    return session.getitem(o, key)
                return session.getitem(o, key)
            own = getattr(type(o), "__getitem__", None)
            if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
                return calls.call(session, self, at, MethodType(own, o), (k,), {})
            return super().getitem(at, o, k)
        except Exception as error:
            self._programs(error)
            raise

    def setitem(self, at: int, o: object, k: object, v: object) -> None:
        session = self.session
        _use(session, o, k, v)
        try:
            o = session.settled(o)
            if isinstance(o, torch.Tensor):
                if tensors.needs_care(session, o, k) or is_staged(v) or tensors.has_open_sizes(session, v):
                    tensors.set_index(session, o, k, v)
                else:
                    with quiet.unwarned():
                        o[k] = v
                return
            own = getattr(type(o), "__setitem__", None)
            if isinstance(own, FunctionType) and is_converted(own.__code__.co_filename):
                calls.call(session, self, at, MethodType(own, o), (k, v), {})
                return
            if type(o) in (list, dict):
                session.check_change(o)
                if is_staged(k):
                    must_be_staged(session, o, v, k)
            super().setitem(at, o, k, v)
        except Exception as error:
            self._programs(error)
            raise

    def delitem(self, at: int, o: object, k: object) -> None:
        try:
            if isinstance(o, StagedObject) or type(o) in (list, dict):
                self.session.check_change(o)
            if isinstance(o, StagedObject):
                self.session.resized += 1
                o.slot = slot_of(self.session.emit("py.delitem", o, k))
                return
            super().delitem(at, o, k)
        except Exception as error:
            self._programs(error)
            raise

    # --- loops -------------------------------------------------------------------------------------------------------

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
        session = self.session
        session.check_iterator(iterable)
        iterable = session.settled(iterable)
        if isinstance(iterable, ShapeObject):
            iterable = StagedObject(slot_of(session.emit("py.slice", iterable)))
        elif is_staged(iterable) and slot_of(iterable).type == ANY:
            session.cannot("a value of unknown kind is iterated over", "annotate the parameter")
        elif isinstance(iterable, torch.Tensor) and session.type_of(iterable).rank is None:
            iterable = _OpenRows(session, iterable)
        super().for_(at, iterable, body, names, get, set, more, anew)

    def iterate(self, at: int, iterable: object) -> Iterable[object]:
        session = self.session
        _use(session, iterable)
        session.check_iterator(iterable)
        iterable = session.settled(iterable)
        if isinstance(iterable, ShapeObject) or (
            isinstance(iterable, StagedObject) and not isinstance(slot_of(iterable).type, TupleType)
        ):
            return _Unpacked(self, iterable)
        if isinstance(iterable, torch.Tensor) and not session.type_of(iterable).is_static:
            return _Unpacked(self, iterable)
        return super().iterate(at, iterable)

    def starred(self, at: int, rest: list[object]) -> object:
        return rest[0].items if len(rest) == 1 and isinstance(rest[0], Spread) else rest

    def display(self, at: int, is_list: bool, *parts: Any) -> object:
        session = self.session
        _use(session, *parts)
        if not any(isinstance(p, StagedObject) and not isinstance(slot_of(p).type, TupleType) for p in parts):
            return super().display(at, is_list, *(p if type(p) is tuple else self.iterate(at, p) for p in parts))
        whole: object = None
        for part in parts:
            is_open = isinstance(part, StagedObject) and not isinstance(slot_of(part).type, TupleType)
            items = session.taken_in(part) if is_open else list(self.iterate(at, part))
            whole = items if whole is None else session.emit("py.concat", whole, items)
        if is_list:
            return StagedObject(slot_of(session.emit("py.slice", whole)))
        return (PlainShape if slot_of(whole).type == ListType(INT) else OpenTuple)(slot_of(whole))

    # --- text --------------------------------------------------------------------------------------------------------

    def format_value(self, at: int, v: object, conversion: str | None, spec: object) -> object:
        try:
            text = builtins.shape_text(self.session, v)
            v = self.session.as_in_program(v) if text is None else text
            no_format = getattr(type(v), "__format__", None) is object.__format__
            is_plain = conversion in ("r", "s") or (conversion is None and no_format)
            own = builtins.own_text(v, "repr" if conversion == "r" else "str") if is_plain else None
            if own is not None and (conversion is not None or (type(spec) is str and not spec)):
                v, conversion = self.call(at, own, (v,), {}), None
            return super().format_value(at, v, conversion, spec)
        except Exception as error:
            self._programs(error)
            raise

    def raise_if(self, test: object, error: Any) -> None:
        """An exception that is raised where a staged test holds."""

        def fails() -> None:
            raise self._raised(error())

        branch(self.session, ("raise", len(self.session.recorder.records)), slot_of(test), fails, nothing, (), tuple,
               lambda values: None)  # fmt: skip

    # --- exceptions --------------------------------------------------------------------------------------------------

    def _programs(self, error: Exception) -> None:
        """Note that an error is the program's own. Raises: what came up in Smelt itself, as such."""
        session = self.session
        if any(error is known for known in (*session.raised, *session.refused)):
            return
        if StagedObject.__name__ in str(error) or _STAGED_NUMBER.search(str(error)):
            session.cannot("code that is not converted receives a dynamic value", str(error))
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        filename = "" if trace is None else trace.tb_frame.f_code.co_filename
        if filename.startswith(_SMELT) and filename != in_python.__file__ and not _is_pythons(trace):
            session.broken(error)
        if not is_raised_by_user(error):
            # What stands for a tensor has a class of its own, and Python names it.
            error.args = tuple(_STAND_IN.sub("Tensor", a) if isinstance(a, str) else a for a in error.args)
        session.raised.append(error)


_NOT_INVERTED = "~ (operator.invert) is only implemented on integer and Boolean-type tensors"
_STAND_IN = re.compile(r"\bFakeTensor\b")
_STAGED_NUMBER = re.compile(r"must be (bool|int|float|complex|str), not \1\b")
_LISTS = ("append", "extend", "insert", "pop", "sort", "reverse")
_DICTS = ("items", "keys", "get", "update", "setdefault")


def _is_pythons(trace: Any) -> bool:
    """Whether an error came up where Smelt did for the program what Python does: a call of C, an operator."""
    code = trace.tb_frame.f_code
    places = ("/capture/convert/", "/capture/scripting/", "/capture/staging/")
    return any(place in code.co_filename for place in places) and code.co_name in _DOERS


_DOERS = frozenset((
    "call", "getattr_", "_of_tensor", "setattr_", "binop", "inplace", "unop", "getitem", "setitem", "delitem",
    "contains", "_compare", "compare", "_with_tensor", "run_converted", "torch_call", "_instance", "<lambda>", "_len",
    "_getattr", "make", "convert", "_module", "at_number", "_conversion", "_sorted", "_range", "_next", "_str",
    "extreme", "_sum", "item", "_bound", "_scoped", "fold", "_zip", "_on_fakes", "record", "_unrolled", "stage_for",
    "for_", "_map", "_filter", "_isinstance", "index", "set_index", "_basic", "_hasattr", "_fresh", "method",
    "_divmod", "read", "_repr", "_with_marks", "_of_kinds", "load",
))  # fmt: skip


def _first_line(arm: Any, at: int) -> int:
    """Where the statements of an arm begin; the branch itself where it has none."""
    if arm is nothing:
        return at
    return min((line for _, _, line in arm.__code__.co_lines() if line is not None and line > at), default=at)


class _OpenRows(StagedSequence):
    """The rows of a tensor of unknown rank."""

    def __init__(self, session: ScriptSession, tensor: torch.Tensor) -> None:
        self.session, self.tensor = session, tensor

    def length(self) -> Any:
        return self.session.size(self.tensor, 0)

    def item(self, number: object) -> Any:
        return tensors.index(self.session, self.tensor, number)


class _Unpacked:
    """What stands on the right of an unpacking, where only a run knows how many items there are."""

    def __init__(self, runtime: ScriptRuntime, items: object) -> None:
        self.runtime, self.items = runtime, items

    def __iter__(self) -> Any:
        session = self.runtime.session
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        if at < 0 or code[at] not in (_UNPACK, _UNPACK_STARRED):
            session.cannot("a sequence of dynamic length is unpacked")
        if isinstance(self.items, StagedObject) and isinstance(slot_of(self.items).type, DictType):
            self.items = builtins.list_of(session, self.items)
        length = builtins._len(session, self.runtime, (self.items,), {})
        length = session.emit("py.len", self.items) if length is NotImplemented else length
        if code[at] == _UNPACK:
            return self._all(length, code[at + 1])
        return self._with_rest(length, code[at + 1], code[at - 1] if at > 1 and code[at - 2] == _EXTENDED else 0)

    def _all(self, length: object, count: int) -> object:
        self._check("gt", length, count, f"too many values to unpack (expected {count})")
        self._check("lt", length, count, f"not enough values to unpack (expected {count}, got ")
        return iter([self.runtime.getitem(0, self.items, i) for i in range(count)])

    def _with_rest(self, length: object, before: int, after: int) -> object:
        """The first items, all others as one that spreads, the last ones."""
        session, items = self.runtime.session, self.items
        count = before + after
        self._check("lt", length, count, f"not enough values to unpack (expected at least {count}, got ")
        end = self.runtime.binop(0, "-", length, after)
        if isinstance(items, torch.Tensor):
            rest = builtins.list_of(session, self.runtime.getitem(0, items, slice(before, end)))
        elif isinstance(slot_of(items).type, ListType):
            rest = StagedObject(slot_of(session.emit("py.slice", items, before, end)))
        else:
            session.cannot(f"a {slot_of(items).type} is unpacked, and the rest of it becomes a list")
        last = [self.runtime.binop(0, "+", end, i) for i in range(after)]
        first = [self.runtime.getitem(0, items, i) for i in range(before)]
        return iter([*first, Spread(rest), *(self.runtime.getitem(0, items, i) for i in last)])

    def _check(self, op: str, length: object, count: int, text: str) -> None:
        """Raise where there are more or fewer items than targets. text: the error's, up to the number it ends with."""
        closing = ")" if text.endswith(" ") else ""
        if isinstance(length, int) and not is_staged(length):
            if length > count if op == "gt" else length < count:
                raise self.runtime._raised(ValueError(f"{text}{length}{closing}" if closing else text))
            return
        session = self.runtime.session
        self.runtime.raise_if(
            session.emit(f"py.{op}", length, count),
            lambda: ValueError(
                session.emit("py.join", text, session.emit("py.str", length), closing) if closing else text
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


def _is_open_number(session: ScriptSession, value: object) -> bool:
    return isinstance(value, torch.Tensor) and tensors.is_symbolic(session, value)


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
