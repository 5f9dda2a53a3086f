"""Python's numbers and lists in ONNX: ints are 64 bits wide, floats are f64, a list is a sequence of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.ir import DType, ListType, TensorType, TupleType, Type, Value
from smelt.ops.catalogue.onnx.base import (
    NUMBER_TYPES,
    Forms,
    cast,
    compared,
    dtype_of,
    no_form,
    operand,
    rank_of,
    reshape,
    where,
)
from smelt.ops.catalogue.onnx.pointwise import float_remainder
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxItems, OnnxValue, Types

"""Calls of `py.*` have their positional arguments under "args"."""


def _is_number(arg: Any) -> bool:
    if isinstance(arg, Value):
        return arg.type in NUMBER_TYPES or isinstance(arg.type, TensorType)
    return isinstance(arg, (bool, int, float))


def _number(b: OnnxEmitter, arg: Any, dtype: DType) -> OnnxValue:
    """A number of Python, or a tensor of one element as one."""
    if not _is_number(arg):
        raise NoOnnxForm(f"ONNX has no values of type {arg.type if isinstance(arg, Value) else type(arg).__name__}")
    x = operand(b, arg, dtype)
    return x if rank_of(arg) == 0 else reshape(b, x, [])


def _kind(b: OnnxEmitter, *args: Any) -> DType:
    """The element type in which numbers meet."""
    found = DType.BOOL
    for arg in args:
        if not _is_number(arg):
            raise NoOnnxForm(f"ONNX has no values of type {arg.type if isinstance(arg, Value) else type(arg).__name__}")
        dtype = b.value(arg).dtype
        wide = DType.F64 if dtype.is_floating else DType.BOOL if dtype is DType.BOOL else DType.I64
        found = max(found, wide, key=(DType.BOOL, DType.I64, DType.F64).index)
    return found


def _at_least_int(dtype: DType) -> DType:
    return DType.I64 if dtype is DType.BOOL else dtype


def _binary(compute: Callable[[OnnxEmitter, OnnxValue, OnnxValue], OnnxValue]) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        first, second = call["args"]
        dtype = _at_least_int(_kind(b, first, second))
        return cast(b, compute(b, _number(b, first, dtype), _number(b, second, dtype)), dtype_of(results))

    return form


def _op(kind: str) -> Callable[[OnnxEmitter, OnnxValue, OnnxValue], OnnxValue]:
    return lambda b, x, y: b.op(kind, x, y)


def _nonzero(b: OnnxEmitter, y: OnnxValue) -> OnnxValue:
    zero = b.constant(0, y.dtype) if not y.dtype.is_floating else b.constant(0.0, y.dtype)
    is_zero = compared(b, "Equal", y, zero)
    b.require(b.op("Not", is_zero), "no division by zero")
    return where(b, is_zero, b.constant(1, y.dtype), y)


def _mod(b: OnnxEmitter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    y = _nonzero(b, y)
    return float_remainder(b, x, y) if x.dtype.is_floating else b.op("Mod", x, y)


def _floordiv(b: OnnxEmitter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    y = _nonzero(b, y)
    if not x.dtype.is_floating:
        return b.op("Div", b.op("Sub", x, b.op("Mod", x, y)), y)
    found = b.op("Div", b.op("Sub", x, float_remainder(b, x, y)), y)
    floor = b.op("Floor", found)
    is_more = compared(b, "Greater", b.op("Sub", found, floor), b.constant(0.5, x.dtype))
    return where(b, is_more, b.op("Add", floor, b.constant(1.0, x.dtype)), floor)


def _truediv(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    first, second = (_number(b, arg, DType.F64) for arg in call["args"])
    return b.op("Div", first, _nonzero(b, second))


def _power(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    first, second = call["args"]
    dtype = dtype_of(results)
    if dtype is DType.I64 and not (isinstance(second, int) and 0 <= second <= 3):
        raise NoOnnxForm("powers of ints may be beyond 64 bits, or no ints")
    x, one = _number(b, first, dtype), b.constant(1, dtype)
    if dtype is DType.I64:
        for _ in range(second):
            one = b.op("Mul", one, x)
        return one
    return b.op("Pow", x, _number(b, second, dtype))


def _compare(kind: str, *, negated: bool = False) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        first, second = call["args"]
        dtype = _at_least_int(_kind(b, first, second))
        found = compared(b, kind, _number(b, first, dtype), _number(b, second, dtype))
        return b.op("Not", found) if negated else found

    return form


def _unary(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = _number(b, call["args"][0], dtype_of(results))
        return b.op(kind, x) if kind else x

    return form


def _invert(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("BitwiseNot", _number(b, call["args"][0], DType.I64))


def _bits(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        first, second = (_number(b, arg, dtype) for arg in call["args"])
        return b.op(kind if dtype is DType.BOOL else f"Bitwise{kind}", first, second)

    return form


def _shift(is_left: bool) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        first, count = call["args"]
        if not isinstance(count, int) or not 0 <= count < 62:
            raise NoOnnxForm("ONNX shifts signed integers by no number that a run computes")
        x, by = _number(b, first, DType.I64), b.constant(1 << count, DType.I64)
        return b.op("Mul", x, by) if is_left else _floordiv(b, x, by)

    return form


def _truth(b: OnnxEmitter, arg: Any) -> OnnxValue:
    if isinstance(arg, Value) and isinstance(arg.type, (ListType, TupleType)):
        return compared(b, "Greater", length(b, arg), b.constant(0, DType.I64))
    return _number(b, arg, DType.BOOL)


def _bool(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return _truth(b, call["args"][0])


def _not(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Not", _truth(b, call["args"][0]))


def _to(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if len(call["args"]) > 1:
        raise NoOnnxForm("ONNX has no texts")
    return _number(b, call["args"][0], dtype_of(results))


def _round(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if len(call["args"]) > 1 and call["args"][1] is not None:
        raise NoOnnxForm("ONNX rounds to whole numbers only")
    return cast(b, b.op("Round", _number(b, call["args"][0], DType.F64)), dtype_of(results))


def _extreme(kind: str) -> OnnxForm:
    """Python's: the first of those that are equal, and of a number that is not one whatever comparing says."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        args = call["args"]
        if len(args) == 1:
            raise NoOnnxForm("ONNX compares no elements of a list")
        dtype = dtype_of(results)
        found = _number(b, args[0], dtype)
        for arg in args[1:]:
            other = _number(b, arg, dtype)
            found = where(b, compared(b, "Greater" if kind == "Max" else "Less", other, found), other, found)
        return found

    return form


_FUNCTIONS = {
    "math.sqrt": "Sqrt", "math.exp": "Exp", "math.log": "Log", "math.sin": "Sin", "math.cos": "Cos",
    "math.tanh": "Tanh", "math.floor": "Floor", "math.ceil": "Ceil", "math.fabs": "Abs",
}  # fmt: skip


def _call(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    name, *args = call["args"]
    kind = _FUNCTIONS.get(name)
    if kind is None or len(args) != 1:
        raise NoOnnxForm(f"ONNX has no operator for {name}")
    x = _number(b, args[0], DType.F64)
    if kind == "Sqrt":
        b.require(compared(b, "GreaterOrEqual", x, b.constant(0.0, DType.F64)), "math.sqrt of no negative number")
    if kind == "Log":
        b.require(compared(b, "Greater", x, b.constant(0.0, DType.F64)), "math.log of positive numbers")
    return cast(b, b.op(kind, x), dtype_of(results))


def _is_none(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.constant(call["args"][0] is None, DType.BOOL)


def _assert(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
    b.require(_truth(b, call["args"][0]), "an assertion of the program")
    return ()


# --- lists


def _items(b: OnnxEmitter, call: Call, results: Types) -> OnnxItems:
    found = b.items(call["args"])
    assert isinstance(found, tuple)
    return found


def _sequence(b: OnnxEmitter, arg: Any) -> OnnxValue:
    """A list as a sequence, whatever is known of its length."""
    items = b.items(arg)
    if isinstance(items, OnnxValue):
        return items
    if not items:
        kind = arg.type if isinstance(arg, Value) else None
        element = kind.element if isinstance(kind, ListType) else None
        if element is None:
            raise NoOnnxForm("the element type of an empty list is not known")
        return empty_sequence(b, element)
    return b.op("SequenceConstruct", *items, dtype=items[0].dtype)


def empty_sequence(b: OnnxEmitter, element: Type) -> OnnxValue:
    """A list without elements."""
    dtype = dtype_of((element,))
    return b.op("SequenceEmpty", dtype=dtype)


def length(b: OnnxEmitter, arg: Any) -> OnnxValue:
    """How many elements a list has."""
    items = b.items(arg)
    if isinstance(items, OnnxValue):
        return b.op("SequenceLength", items, dtype=DType.I64)
    return b.constant(len(items), DType.I64)


def _len(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    arg = call["args"][0]
    if isinstance(arg, Value) and isinstance(arg.type, TensorType):
        return reshape(b, b.op("Shape", arg, dtype=DType.I64, start=0, end=1), [])
    stacked = b.stacked(arg)
    if stacked is not None:
        return reshape(b, b.op("Shape", stacked, dtype=DType.I64, start=0, end=1), [])
    return length(b, arg)


def _getitem(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    container, index = call["args"]
    if isinstance(container, Value) and not isinstance(container.type, (ListType, TupleType)):
        raise NoOnnxForm(f"ONNX has no values of type {container.type}")
    stacked = b.stacked(container)
    if stacked is not None:
        return b.op("Gather", stacked, _number(b, index, DType.I64), axis=0)
    items = b.items(container)
    if isinstance(items, tuple) and isinstance(index, int):
        if not -len(items) <= index < len(items):
            raise NoOnnxForm("the list has no such element")
        return items[index]
    sequence = items if isinstance(items, OnnxValue) else _sequence(b, container)
    return b.op("SequenceAt", sequence, _number(b, index, DType.I64), dtype=sequence.dtype)


def _append(b: OnnxEmitter, call: Call, results: Types) -> OnnxItems | OnnxValue:
    container, item = call["args"]
    items = b.items(container)
    if isinstance(items, tuple):
        return (*items, b.value(item))
    return b.op("SequenceInsert", items, b.value(item), dtype=items.dtype)


def _insert(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    container, index, item = call["args"]
    sequence = _sequence(b, container)
    size = length(b, container)
    # Python takes any number for a place: beyond the ends it is the end.
    at = _number(b, index, DType.I64)
    at = where(b, compared(b, "Less", at, b.constant(0, DType.I64)), b.op("Add", at, size), at)
    at = b.op("Min", b.op("Max", at, b.constant(0, DType.I64)), size)
    return b.op("SequenceInsert", sequence, b.value(item), at, dtype=sequence.dtype)


def _setitem(b: OnnxEmitter, call: Call, results: Types) -> OnnxItems | OnnxValue:
    container, index, item = call["args"]
    items = b.items(container)
    if isinstance(items, tuple) and isinstance(index, int) and -len(items) <= index < len(items):
        changed = list(items)
        changed[index] = b.value(item)
        return tuple(changed)
    sequence, at = _sequence(b, container), _number(b, index, DType.I64)
    size = length(b, container)
    at = where(b, compared(b, "Less", at, b.constant(0, DType.I64)), b.op("Add", at, size), at)
    without = b.op("SequenceErase", sequence, at, dtype=sequence.dtype)
    return b.op("SequenceInsert", without, b.value(item), at, dtype=sequence.dtype)


def _pop(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
    container, *rest = call["args"]
    if isinstance(container, Value) and not isinstance(container.type, ListType):
        raise NoOnnxForm(f"ONNX has no values of type {container.type}")
    sequence, at = _sequence(b, container), _number(b, rest[0] if rest else -1, DType.I64)
    item = b.op("SequenceAt", sequence, at, dtype=sequence.dtype)
    return b.op("SequenceErase", sequence, at, dtype=sequence.dtype), item


def _concat(b: OnnxEmitter, call: Call, results: Types) -> OnnxItems | None:
    first, second = (b.items(arg) for arg in call["args"])
    if isinstance(first, tuple) and isinstance(second, tuple):
        return (*first, *second)
    if isinstance(second, tuple):
        sequence = _sequence(b, call["args"][0])
        for item in second:
            sequence = b.op("SequenceInsert", sequence, item, dtype=sequence.dtype)
        return sequence  # type: ignore[return-value]
    raise NoOnnxForm("ONNX does not join two lists whose lengths a run computes")


def _slice(b: OnnxEmitter, call: Call, results: Types) -> OnnxItems:
    items, bounds = b.items(call["args"][0]), call["args"][1:]
    if not isinstance(items, tuple) or not all(n is None or isinstance(n, int) for n in bounds):
        raise NoOnnxForm("ONNX has no slices of lists whose length a run computes")
    return items[slice(*(*bounds, None, None, None)[:3])]


_COMPARISONS = {
    "eq": _compare("Equal"), "ne": _compare("Equal", negated=True), "lt": _compare("Less"), "gt": _compare("Greater"),
    "le": _compare("LessOrEqual"), "ge": _compare("GreaterOrEqual"),
}  # fmt: skip
_TEXTS = no_form("ONNX has no texts that a program builds")
_WORLD = no_form("ONNX acts on nothing: it neither prints nor warns")

FORMS: Forms = {
    **{f"py.{name}": _binary(_op(name.capitalize())) for name in ("add", "sub", "mul")},
    "py.mod": _binary(_mod),
    "py.floordiv": _binary(_floordiv),
    "py.truediv": _truediv,
    "py.pow": _power,
    "py.neg": _unary("Neg"),
    "py.pos": _unary(""),
    "py.abs": _unary("Abs"),
    "py.invert": _invert,
    "py.and_": _bits("And"),
    "py.or_": _bits("Or"),
    "py.xor": _bits("Xor"),
    "py.lshift": _shift(True),
    "py.rshift": _shift(False),
    **{f"py.{name}": form for name, form in _COMPARISONS.items()},
    "py.not_": _not,
    "py.bool": _bool,
    "py.int": _to,
    "py.float": _to,
    "py.round": _round,
    "py.min": _extreme("Min"),
    "py.max": _extreme("Max"),
    "py.call": _call,
    "py.is_none": _is_none,
    "py.assert": _assert,
    "py.list": _items,
    "py.tuple": _items,
    "py.len": _len,
    "py.getitem": _getitem,
    "py.append": _append,
    "py.insert": _insert,
    "py.setitem": _setitem,
    "py.pop": _pop,
    "py.concat": _concat,
    "py.slice": _slice,
    **{f"py.{name}": _TEXTS for name in ("str", "format", "join")},
    **{f"py.{name}": _WORLD for name in ("print", "warn")},
    "py.draw": no_form("it draws random numbers, which no runtime of ONNX draws as Python does"),
    "py.dict": no_form("ONNX has no dictionaries"),
}
