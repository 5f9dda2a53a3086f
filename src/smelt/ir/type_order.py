"""Types by what they hold: whether one fits where another is asked for, and the least that holds two.

f32[8, 16] fits f32[_, 16] and f32[?]; int fits optional[int]; anything fits any. A size fits itself and `_` only: a
symbol is a number of its own. Containers are values, so their elements may be narrower than they say.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.ir.dims import UNKNOWN_DIM, Dim
from smelt.ir.dtypes import DType
from smelt.ir.nodes import Arg, Device, Layout, MemoryFormat, Value
from smelt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    DictType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
)

_LITERAL_TYPES: tuple[tuple[type, Type], ...] = (
    (bool, BOOL), (int, INT), (float, FLOAT), (complex, COMPLEX), (str, STR),
    (DType, ScalarType("dtype")), (Device, ScalarType("device")), (Layout, ScalarType("layout")),
    (MemoryFormat, ScalarType("memory_format")),
)  # fmt: skip


def type_of_arg(arg: Arg) -> Type:
    """The type of an argument: a value's own, a literal's; a list's elements share the least type that holds them."""
    if isinstance(arg, Value):
        return arg.type
    if arg is None:
        return NONE
    if isinstance(arg, tuple):
        return ListType(join_all(map(type_of_arg, arg)))
    return next(type_ for kind, type_ in _LITERAL_TYPES if isinstance(arg, kind))


def fits(type_: Type, wide: Type) -> bool:
    """Whether every value of a type is one of another, the wider one."""
    if type_ == wide or wide == ANY:
        return True
    if isinstance(wide, OptionalType):
        inner = type_.element if isinstance(type_, OptionalType) else type_
        return inner == NONE or fits(inner, wide.element)
    match type_, wide:
        case TensorType(), TensorType():
            return _tensor_fits(type_, wide)
        case TupleType(), TupleType():
            return len(type_.elements) == len(wide.elements) and all(map(fits, type_.elements, wide.elements))
        case ListType(), ListType():
            return fits(type_.element, wide.element)
        case DictType(), DictType():
            return fits(type_.key, wide.key) and fits(type_.value, wide.value)
    return False


def arg_fits(arg: Arg, wide: Type) -> bool:
    """Whether an argument may stand where a type is asked for; a list's elements are looked at one by one."""
    if isinstance(arg, tuple):
        if isinstance(wide, OptionalType):
            wide = wide.element
        match wide:
            case ListType(element=element):
                return all(arg_fits(item, element) for item in arg)
            case TupleType(elements=elements):
                return len(arg) == len(elements) and all(map(arg_fits, arg, elements))
        return wide == ANY
    return fits(type_of_arg(arg), wide)


def join(a: Type, b: Type) -> Type:
    """The least type that holds the values of both; `any` where only that does."""
    if fits(a, b):
        return b
    if fits(b, a):
        return a
    if NONE in (a, b) or isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner = join(_present(a, b), _present(b, a))
        return ANY if inner == ANY else OptionalType(inner)
    match a, b:
        case TensorType(), TensorType() if (a.device, a.layout) == (b.device, b.layout) and (
            a.dtype == b.dtype or DType.UNKNOWN in (a.dtype, b.dtype)
        ):
            return _join_tensors(a, b)
        case TupleType(), TupleType() if len(a.elements) == len(b.elements):
            return TupleType(tuple(map(join, a.elements, b.elements)))
        case ListType(), ListType():
            return ListType(join(a.element, b.element))
        case DictType(), DictType():
            return DictType(join(a.key, b.key), join(a.value, b.value))
    return ANY


def join_all(types: Iterable[Type]) -> Type:
    """The least type that holds the values of all; `any` where there is none."""
    found: Type | None = None
    for type_ in types:
        found = type_ if found is None else join(found, type_)
    return ANY if found is None else found


def may_hold_tensor(type_: Type) -> bool:
    """Whether a value of a type may be a tensor, or hold one."""
    match type_:
        case TensorType():
            return True
        case ScalarType():
            return type_ == ANY
        case ListType(element=element) | OptionalType(element=element):
            return may_hold_tensor(element)
        case TupleType(elements=elements):
            return any(map(may_hold_tensor, elements))
        case DictType(key=key, value=value):
            return may_hold_tensor(key) or may_hold_tensor(value)


def may_hold_container(type_: Type) -> bool:
    """Whether a value of a type may be a list or a dictionary, or hold one: Python can tell two equal ones apart."""
    match type_:
        case ListType() | DictType():
            return True
        case ScalarType():
            return type_ == ANY
        case OptionalType(element=element):
            return may_hold_container(element)
        case TupleType(elements=elements):
            return any(map(may_hold_container, elements))
    return False


def known_steps(type_: TensorType) -> tuple[Dim, ...]:
    """The strides of a type of known rank as far as they are known; `_` elsewhere."""
    assert type_.shape is not None
    if type_.strides is not None:
        return type_.strides
    steps: list[Dim] = []
    step: Dim = 1
    for size in reversed(type_.shape):
        steps.append(step)
        step = step * max(size, 1) if isinstance(step, int) and isinstance(size, int) else UNKNOWN_DIM
    return tuple(reversed(steps))


def _present(type_: Type, other: Type) -> Type:
    """A type without its None; the other's where nothing is left."""
    found = type_.element if isinstance(type_, OptionalType) else type_
    if found != NONE:
        return found
    return other.element if isinstance(other, OptionalType) else other


def _dim_fits(dim: Dim, wide: Dim) -> bool:
    return dim == wide or wide == UNKNOWN_DIM


def _tensor_fits(type_: TensorType, wide: TensorType) -> bool:
    if (type_.device, type_.layout) != (wide.device, wide.layout) or wide.dtype not in (type_.dtype, DType.UNKNOWN):
        return False
    if wide.shape is None:
        return True
    if type_.shape is None or len(type_.shape) != len(wide.shape) or not all(map(_dim_fits, type_.shape, wide.shape)):
        return False
    if type_.strides == wide.strides:
        return True
    # Row-major in the wider type means row-major whatever its sizes are.
    return wide.strides is not None and all(map(_dim_fits, known_steps(type_), wide.strides))


def _join_dim(a: Dim, b: Dim) -> Dim:
    return a if a == b else UNKNOWN_DIM


def _join_tensors(a: TensorType, b: TensorType) -> TensorType:
    dtype = a.dtype if a.dtype == b.dtype else DType.UNKNOWN
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(dtype, None, None, a.device, a.layout)
    shape = tuple(map(_join_dim, a.shape, b.shape))
    if a.strides is None and b.strides is None:
        return TensorType(dtype, shape, None, a.device, a.layout)
    steps = tuple(map(_join_dim, known_steps(a), known_steps(b)))
    return TensorType(dtype, shape, steps, a.device, a.layout)
