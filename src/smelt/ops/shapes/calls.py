"""Calls whose sizes are known at run time only: their sizes as numbers of a trace, and what they give.

Types hold such sizes in two forms. While a trace is open (lowering, passes) they are numbers of it, `sizes.Size`. In a
graph at rest they are expressions of symbols (`ir.dims`); then the trace is made here, of symbols that are at least 2,
and a call is told only if no comparison is left open by that. What numbers are that a graph computes of sizes is
followed through the nodes that compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import local
from typing import Any

from smelt.ir import INT, Arg, ListType, OptionalType, TensorType, TupleType, Type, Value, map_values, values_in
from smelt.ir.dims import UNKNOWN_DIM, Dim, Sym, SymExpr, dim_of, size_of, symbols
from smelt.ir.size_trace import Symbol, Trace
from smelt.ir.sizes import Range, Size, SizeLeak, UndecidedError, current_trace, size_max, size_min, tracing
from smelt.ops.shapes.symbolic import LIKE_SELF, Ask, CannotTell, Found, TypeOf, infer_ruled, infer_symbolic, is_apart

# Sizes at hand of symbols of which nothing is known but that they are at least 2.
_AT_HAND = (23, 19, 17, 13, 11, 7)


# Where views of a part of the first operand take the place of it.
_PLACES = {"aten.select.int": 2, "aten.narrow.default": 2}


class _Known(local):
    """What was told in the last trace of this thread."""

    trace: Trace | None = None
    found: dict[Any, Any]


_known = _Known()


def open_call(args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf) -> bool:
    """Whether a call has a size that is a symbol, or a number of a trace, and none that is unknown."""
    is_open = False
    for arg in (*args, *kwargs.values()):
        for leaf in _leaves(arg):
            if isinstance(leaf, Value):
                type_ = type_of(leaf)
                if type_ == INT:
                    is_open = True
                    continue
                found = _is_open(type_)
                if found is None:
                    return False
                is_open = is_open or found
            elif type(leaf) is Size:
                is_open = True
    return is_open


def _leaves(arg: Arg) -> Iterator[Arg]:
    if isinstance(arg, tuple):
        for item in arg:
            yield from _leaves(item)
    else:
        yield arg


def _is_open(type_: Type) -> bool | None:
    """Whether a type has a size that is no integer; None where nothing is known of one."""
    match type_:
        case TensorType(shape=shape, strides=strides):
            if shape is None:
                return None
            found = False
            for dim in shape if strides is None else (*shape, *strides):
                if type(dim) is not int:
                    if _is_unknown(dim):
                        return None
                    found = True
            return found
        case TupleType(elements=elements):
            inner = [_is_open(t) for t in elements]
            return None if None in inner else any(inner)
        case ListType(element=element) | OptionalType(element=element):
            return None if isinstance(element, TensorType) else _is_open(element)
    return False


def _is_unknown(dim: Dim) -> bool:
    if isinstance(dim, SymExpr):
        return _is_unknown(dim.left) or _is_unknown(dim.right)
    return dim == UNKNOWN_DIM if not isinstance(dim, int) else False


def infer_open(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf, ask: Ask) -> Found:
    """Types of the results, and the operands whose memory they share. Raises: CannotTell.

    The results' sizes have the form that those of the operands have.
    """
    values = list(dict.fromkeys(v for arg in (*args, *kwargs.values()) for v in values_in(arg)))
    names = sorted(frozenset().union(*(_names(type_of(v)) for v in values)))
    if not names:
        trace = _trace_of(values, args, kwargs, type_of)
        if trace is None:
            raise CannotTell(f"the numbers passed to {op} do not follow from sizes")
        return _told(trace, op, args, kwargs, type_of, ask)
    current = current_trace()
    with _trace_with(names) as trace:
        before = len(trace.guards)
        types, shares = _told(trace, op, args, kwargs, lambda v: in_trace(type_of(v), trace.symbols), ask)
        if trace is not current and len(trace.guards) > before:
            raise CannotTell(f"what {op} gives depends on how {', '.join(names)} compare")
        return tuple(map(at_rest, types)), shares


def infer_of_unknown(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], ask: Ask) -> tuple[Type, ...] | None:
    """The types that an operator's type function tells where sizes of row-major operands are unknown; else None.

    Each unknown size is a number of its own, at least 1: what is told without a comparison holds of 0 as well.
    """
    values = list(dict.fromkeys(v for arg in (*args, *kwargs.values()) for v in values_in(arg)))
    tensors = [t for v in values if isinstance(t := v.type, TensorType) and t.shape is not None and t.strides is None]
    if len(tensors) < len(values) or current_trace() is not None:
        return None
    count = sum(_is_unknown(dim) for t in tensors for dim in t.shape or ())
    names = [*sorted(frozenset().union(*map(_names, tensors))), *(f"_{i}" for i in range(count))]
    sizes = {name: (_AT_HAND[0] + i, Range(1 if name[0] == "_" else 2)) for i, name in enumerate(names)}
    with tracing(sizes) as trace, trace.without_guards():
        trace.unknown = {i for i, atom in enumerate(trace.atoms) if isinstance(atom, Symbol) and atom.name[0] == "_"}
        unknown = (trace.symbols[f"_{i}"] for i in range(count))
        supposed = {
            v: map_dims(v.type, lambda dim: next(unknown) if _is_unknown(dim) else size_of(dim, trace.symbols))
            for v in values
        }
        try:
            types, shares = infer_ruled(op, args, kwargs, supposed.__getitem__, ask) or ((), ())
        except (CannotTell, UndecidedError, SizeLeak, TypeError, IndexError):
            return None
        return None if not types or any(shares) else tuple(map_dims(t, _as_known) for t in types)


def _as_known(size: Dim) -> Dim:
    """A size as an expression of those that have a name; `_` where others are in it."""
    try:
        found = dim_of(size) if type(size) is Size else size
    except TypeError:
        return UNKNOWN_DIM
    return UNKNOWN_DIM if any(name[0] == "_" for name in symbols(found)) else found


@contextmanager
def _trace_with(names: Sequence[str]) -> Iterator[Trace]:
    """The open trace where it has these symbols, else one that forgets."""
    trace = current_trace()
    if trace is not None and all(name in trace.symbols for name in names):
        yield trace
        return
    at_hand = {name: (_AT_HAND[i % 6] + 24 * (i // 6), Range()) for i, name in enumerate(names)}
    with tracing(at_hand) as made:
        yield made


def _told(trace: Trace, op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf, ask: Ask) -> Found:
    if op in LIKE_SELF and args and isinstance(args[0], Value) and is_apart(type_of(args[0])):
        return (type_of(args[0]),), (frozenset(),)

    def known(value: Value) -> Arg:
        if type_of(value) != INT:
            return value
        number = number_of(value, trace)
        if number is None:
            raise CannotTell(f"%{value.name} does not follow from sizes")
        return number

    at = _PLACES.get(op)
    if at is not None and len(args) > at and isinstance(place := args[at], Value):
        # Which part it is does not show in the type.
        args = (*args[:at], 0 if number_of(place, trace) is None else place, *args[at + 1 :])
    args = tuple(map_values(a, known) for a in args)
    kwargs = {k: map_values(a, known) for k, a in kwargs.items()}
    if _known.trace is not trace:
        _known.trace, _known.found = trace, {}
    order: list[Value] = []
    key = (ask, op, _key(args, order, type_of), tuple((k, _key(a, order, type_of)) for k, a in kwargs.items()))
    found = _known.found.get(key)
    if found is None:
        types, shares = infer_symbolic(trace, op, args, kwargs, type_of, ask)
        found = _known.found[key] = types, tuple(frozenset(map(order.index, shared)) for shared in shares)
    return found[0], tuple(frozenset(order[i] for i in shared) for shared in found[1])


def _key(arg: Arg, order: list[Value], type_of: TypeOf) -> Any:
    """An argument without its values: their types, and which are the same."""
    if isinstance(arg, Value):
        if arg not in order:
            order.append(arg)
        return (order.index(arg), type_of(arg))
    if isinstance(arg, tuple):
        return tuple(_key(item, order, type_of) for item in arg)
    return (type(arg), repr(arg)) if type(arg) in (float, complex) else (type(arg), arg)


def _trace_of(values: Sequence[Value], args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf) -> Trace | None:
    """The trace that the sizes of a call belong to."""
    for arg in (*args, *kwargs.values()):
        for leaf in _leaves(arg):
            if type(leaf) is Size:
                return leaf.trace
    for value in values:
        found = _trace_in(type_of(value))
        if found is not None:
            return found
    return current_trace()


def _trace_in(type_: Type) -> Trace | None:
    if isinstance(type_, TensorType):
        dims = (*(type_.shape or ()), *(type_.strides or ()))
        return next((dim.trace for dim in dims if type(dim) is Size), None)
    if isinstance(type_, TupleType):
        return next((t for t in map(_trace_in, type_.elements) if t is not None), None)
    return None


def _names(type_: Type) -> frozenset[str]:
    if isinstance(type_, TensorType):
        dims = (*(type_.shape or ()), *(type_.strides or ()))
        return frozenset().union(*(symbols(dim) for dim in dims if isinstance(dim, (Sym, SymExpr))))
    if isinstance(type_, TupleType):
        return frozenset().union(*map(_names, type_.elements))
    return frozenset()


# --- types in both forms


def in_trace(type_: Type, numbers: Mapping[str, int]) -> Type:
    """A type with the numbers that its symbols are."""
    return map_dims(type_, lambda dim: size_of(dim, numbers) if isinstance(dim, (Sym, SymExpr)) else dim)


def at_rest(type_: Type) -> Type:
    """A type with expressions in place of the numbers of a trace. Raises: CannotTell where there is none."""

    def rest(dim: Dim) -> Dim:
        try:
            return dim_of(dim) if type(dim) is Size else dim
        except TypeError as error:
            raise CannotTell(str(error)) from None

    return map_dims(type_, rest)


def map_dims(type_: Type, f: Callable[[Dim], Dim]) -> Type:
    """A type with each size and stride replaced; the same object where none is another."""
    match type_:
        case TensorType(shape=shape, strides=strides):
            new_shape = None if shape is None else tuple(map(f, shape))
            new_strides = None if strides is None else tuple(map(f, strides))
            is_same = _are(new_shape, shape) and _are(new_strides, strides)
            return type_ if is_same else replace(type_, shape=new_shape, strides=new_strides)
        case TupleType(elements=elements):
            return TupleType(tuple(map_dims(t, f) for t in elements))
        case ListType(element=element):
            return ListType(map_dims(element, f))
        case OptionalType(element=element):
            return OptionalType(map_dims(element, f))
    return type_


def _are(new: tuple[Dim, ...] | None, old: tuple[Dim, ...] | None) -> bool:
    return new is old or (new is not None and old is not None and all(a is b for a, b in zip(new, old, strict=True)))


# --- numbers that a graph computes


def number_of(value: Value, trace: Trace) -> int | None:
    """The number that a value of type int is, as far as it follows from sizes and literals; None for any other."""
    node = value.node
    if node is None:
        return None
    if node.op in ("aten.sym_size.int", "aten.size.int", "aten.sym_numel.default", "aten.numel.default"):
        source = node.args[0]
        type_ = source.type if isinstance(source, Value) else None
        if not isinstance(type_, TensorType) or type_.shape is None:
            return None
        try:
            sizes = [size_of(dim, trace.symbols) for dim in type_.shape]
        except (KeyError, TypeError):
            return None
        if node.op.startswith(("aten.sym_numel", "aten.numel")):
            total = 1
            for size in sizes:
                total = total * size
            return total
        dim = node.args[1]
        return sizes[dim] if type(dim) is int and -len(sizes) <= dim < len(sizes) else None
    run = _ARITHMETIC.get(node.op)
    if run is None or node.kwargs:
        return None
    operands: list[Any] = []
    for arg in node.args:
        number = number_of(arg, trace) if isinstance(arg, Value) else arg
        if type(number) is not int and type(number) is not Size:
            return None
        operands.append(number)
    try:
        return run(*operands)
    except (ZeroDivisionError, SizeLeak):
        return None


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "py.add": lambda a, b: a + b,
    "py.sub": lambda a, b: a - b,
    "py.mul": lambda a, b: a * b,
    "py.floordiv": lambda a, b: a // b,
    "py.mod": lambda a, b: a % b,
    "py.neg": lambda a: -a,
    "py.pos": lambda a: a,
    "py.int": lambda a: a,
    "py.min": size_min,
    "py.max": size_max,
}
