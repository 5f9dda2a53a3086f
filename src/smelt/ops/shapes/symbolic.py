"""The types of a call's results where sizes of its operands are known at run time only.

Views and what compares sizes have rules (`views`, `results`). All else is found by trying: the call is asked for at
several sizes, and each size and stride of its results must be one expression of its operands' at all of them, those at
hand among them. Element types, layouts and which memory is shared must be the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.diag.records import record
from smelt.ir import Arg, DType, TensorType, TupleType, Type, Value, map_values, values_in
from smelt.ir.size_trace import Trace
from smelt.ir.sizes import Evaluation, Size, SizeFloat, equals
from smelt.ops.catalogue import record_of
from smelt.ops.record import OpRecord, Trait
from smelt.ops.registry import arguments_of, schema_of, tags_of
from smelt.ops.sets import where
from smelt.ops.shapes.points import points, type_at
from smelt.ops.shapes.pointwise import pointwise_strides
from smelt.ops.shapes.results import result_sizes
from smelt.ops.shapes.views import VIEW_RULES, Layout, row_major, view_layouts
from smelt.ops.shapes.whole import ROW_MAJOR_OF, keeps_dtype, result_types

TypeOf: TypeAlias = Callable[[Value], Type]
Found: TypeAlias = "tuple[tuple[Type, ...], tuple[frozenset[Value], ...]]"
"""Types of the results, and for each the operands whose memory it shares."""
Ask: TypeAlias = Callable[[str, Sequence[Arg], Mapping[str, Arg], TypeOf], Found]
"""The same for integers. Raises: any error where it cannot be told."""

_FEWEST_TRIALS = 3

LIKE_SELF = frozenset(f"aten.{name}_scatter.default" for name in ("slice", "select", "diagonal", "as_strided"))
"""Operators that copy their first operand as it lies, with some elements replaced."""


class CannotTell(Exception):
    """What a call gives does not follow from its sizes in a way that is known here."""


class TooLargeError(Exception):
    """The operands of a trial are too large for it; others may tell."""


@record
class _Typed:
    """A value with the type that it is supposed to have."""

    value: Value
    type: Type


@record
class _Trial:
    """What integers gave at one point."""

    at: Evaluation
    types: tuple[Type, ...]
    shares: tuple[frozenset[Value], ...]


def infer_symbolic(
    trace: Trace,
    op: str,
    args: Sequence[Arg],
    kwargs: Mapping[str, Arg],
    type_of: TypeOf,
    ask: Ask,
    ties: Mapping[str, str] = MappingProxyType({}),
) -> Found:
    """Types with sizes of the trace, and what is shared. Raises: CannotTell.

    ties: symbols that are equal to another one wherever the call is tried.
    """
    found = infer_ruled(op, args, kwargs, type_of, ask)
    if found is not None:
        return found
    call = _call(op, args, kwargs, type_of)
    if call is None:
        raise CannotTell(f"torch has no operator {op}")
    told = result_sizes(op, call)
    trials = _trials(trace, op, args, kwargs, type_of, ask, ties)
    shares = {trial.shares for trial in trials}
    if len(shares) != 1:
        raise CannotTell(f"what the result of {op} shares memory with depends on sizes")
    fit = Fit(op, [trial.at for trial in trials], _pool(call))
    types = []
    for i in range(len(trials[0].types)):
        sizes = told[i] if told is not None and i < len(told) else None
        types.append(fit.type([trial.types[i] for trial in trials], sizes))
    return tuple(types), trials[0].shares


def infer_ruled(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf, ask: Ask) -> Found | None:
    """The same by the operator's type function, where that tells all of it: nothing is run.

    ask: for the dtype of what goes element by element, of single elements. Raises: CannotTell where it refuses those.
    """
    schema, call = schema_of(op), _call(op, args, kwargs, type_of)
    if schema is None or call is None:
        return None
    viewed = _view(op, call, schema.returns[0].type if schema.returns else "")
    if viewed is not None:
        return viewed
    made = _recorded(op, args, kwargs, type_of) or result_types(op, call)
    if made is not None:
        return tuple(made), (frozenset(),) * len(made)
    return _element_by_element(op, call, args, kwargs, type_of, ask)


def has_type_function(op: str) -> bool:
    """Whether a type function may tell all of an operator that gives memory of its own."""
    record = record_of(op)
    if record is None or record.alias != "fresh":
        return False
    is_iterated = "pointwise" in tags_of(op) and op not in _NOT_ITERATED
    return is_iterated or op in ROW_MAJOR_OF or _is_recorded(record)


def _is_recorded(record: OpRecord | None) -> bool:
    return record is not None and record.result_of_unknown is not None and record.alias == "fresh"


def _recorded(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf) -> tuple[Type, ...] | None:
    """The types by the record's rule for any sizes, where it leaves none unknown."""
    record, schema = record_of(op), schema_of(op)
    if record is None or schema is None or record.result_of_unknown is None or not _is_recorded(record):
        return None
    made = {v: Value(v.name, type_of(v), v.owner) for v in operands_of(args, kwargs)}
    swapped = [map_values(a, made.__getitem__) for a in args]
    call = arguments_of(schema, swapped, {k: map_values(a, made.__getitem__) for k, a in kwargs.items()})
    found = None if record.rng(call) else record.result_of_unknown(call)
    is_told = found is not None and all(isinstance(t, TensorType) and t.is_static for t in found)
    return found if is_told else None


def _typed(arg: Arg, type_of: TypeOf) -> Any:
    if isinstance(arg, Value):
        return _Typed(arg, type_of(arg))
    return tuple(_typed(item, type_of) for item in arg) if isinstance(arg, tuple) else arg


# --- views


def is_apart(type_: Type) -> bool:
    """Whether no two elements surely share an address because a step is 0; then torch copies them as they lie."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        return False
    return type_.strides is None or not any(type(step) is int and step == 0 for step in type_.strides)


def _view(op: str, call: Mapping[str, Any], returned: str) -> Found | None:
    layouts = _viewed(op, call)
    if layouts is None:
        return None
    source = call["self"]
    types = tuple(typed(source.type, one.sizes, one.strides) for one in layouts)
    shared = frozenset((source.value,))
    if returned.startswith("List["):
        return (TupleType(types),), (shared,)
    return types, (shared,)


def _viewed(op: str, call: Mapping[str, Any], offset: int = 0) -> list[Layout] | None:
    source = call.get("self")
    if op not in VIEW_RULES or not isinstance(source, _Typed) or not isinstance(source.type, TensorType):
        return None
    return view_layouts(op, Layout(source.type.sizes, source.type.steps, offset), call)


def ruled_view(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf, offset: int
) -> list[Layout] | None:
    """How views of an operand that begins at `offset` lie; None where no rule tells, or the call copies.

    Raises: TypeError where the call does not fit.
    """
    call = _call(op, args, kwargs, type_of)
    return None if call is None else _viewed(op, call, offset)


def _call(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf) -> dict[str, Any] | None:
    schema = schema_of(op)
    if schema is None:
        return None
    return arguments_of(schema, [_typed(a, type_of) for a in args], {k: _typed(a, type_of) for k, a in kwargs.items()})


def typed(like: TensorType, sizes: Sequence[int], strides: Sequence[int]) -> TensorType:
    """A tensor type with other sizes and strides; row-major ones are left out where they are it at all sizes."""
    is_plain = all(map(equals, strides, row_major(sizes)))
    return TensorType(like.dtype, tuple(sizes), None if is_plain else tuple(strides), like.device, like.layout)


# --- element by element


# Copies in the layout of one operand, what is made of several operators, and what computes otherwise for some numbers.
_NOT_ITERATED = where(Trait.NOT_ITERATED)
# Those whose first operand is no number that the others are computed with.
_CHOOSING = ("aten.where.self",)


def _element_by_element(
    op: str, call: Mapping[str, Any], args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf, ask: Ask
) -> Found | None:
    """Of operands that are computed with as they are; what is converted first may come to lie otherwise."""
    iterated_as = _iterated(op, call)
    told = None if iterated_as is None else result_sizes(op, call)
    if iterated_as is None or not told:
        return None
    dtype, layouts = iterated_as
    shares: tuple[frozenset[Value], ...] = (frozenset(),)
    if keeps_dtype(op, dtype) and not any(isinstance(arg, str) for arg in kwargs.values()):
        result: Type = next(arg.type for arg in call.values() if isinstance(arg, _Typed))
    else:
        numbers = [_usual(a) for a in args], {name: _usual(a) for name, a in kwargs.items()}
        try:
            made, shares = ask(op, *numbers, lambda v: _of_ones(type_of(v)))
        except Exception as error:
            raise CannotTell(f"{op}: {error}") from error
        result = made[0]
        if len(made) != 1 or shares != (frozenset(),):
            return None
    if not isinstance(result, TensorType) or _is_converted(dtype, result.dtype):
        return None
    return (typed(result, told[0], pointwise_strides(layouts, told[0])),), shares


def iterated(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf, gives: DType
) -> list[Layout] | None:
    """The layouts that a call goes over element by element, all as they are; None for any other call.

    gives: the dtype of its result. Raises: TypeError where the call does not fit.
    """
    call = _call(op, args, kwargs, type_of)
    found = None if call is None else _iterated(op, call)
    return None if found is None or _is_converted(found[0], gives) else found[1]


def _iterated(op: str, call: Mapping[str, Any]) -> tuple[DType, list[Layout]] | None:
    """The dtype of the operands with their layouts; None where there are several, and some are converted first."""
    record = record_of(op)
    if record is None or record.alias != "fresh" or op in _NOT_ITERATED or "pointwise" not in tags_of(op):
        return None
    types = [arg.type for arg in call.values() if isinstance(arg, _Typed)]
    tensors = [t for t in types if isinstance(t, TensorType) and t.layout == "strided"]
    dtypes = {t.dtype for t in tensors[op in _CHOOSING :]}
    if len(tensors) < len(types) or len(dtypes) != 1:
        return None
    layouts = [Layout(t.sizes, t.steps) for t in tensors]
    if any(isinstance(call.get(name), (bool, int, float, complex)) for name in ("self", "other")):
        layouts.append(Layout((), ()))
    return dtypes.pop(), layouts


def _is_converted(dtype: DType, gives: DType) -> bool:
    """Whether operands of one type are converted to compute such a result; then they may come to lie otherwise."""
    if gives in (dtype, DType.BOOL):
        return False
    return dtype.kind not in ("float", "complex") or (gives.kind == "complex" and dtype.kind == "float")


def _usual(arg: Arg) -> Arg:
    """A number that tells the kind of one that is known at run time only."""
    return 2 if type(arg) is Size else 2.5 if type(arg) is SizeFloat else arg


def _of_ones(type_: Type) -> Type:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    return TensorType.of(type_.dtype, (1,) * len(type_.shape), None, type_.device, type_.layout)


# --- trials


def _trials(
    trace: Trace,
    op: str,
    args: Sequence[Arg],
    kwargs: Mapping[str, Arg],
    type_of: TypeOf,
    ask: Ask,
    ties: Mapping[str, str],
) -> list[_Trial]:
    found: list[_Trial] = []
    sizes = sizes_in([type_of(v) for v in operands_of(args, kwargs)])
    for number, at in enumerate(points(trace, sizes, ties)):
        try:
            types, shares = ask(
                op,
                tuple(_at(a, at) for a in args),
                {k: _at(a, at) for k, a in kwargs.items()},
                lambda v, at=at: type_at(type_of(v), at),  # type: ignore[misc]
            )
        except TooLargeError:
            continue
        except Exception as error:
            # Any error of torch; at other sizes than those at hand a call may well be refused.
            if number == 0:
                raise CannotTell(f"{op} at the sizes at hand: {error}") from error
            continue
        found.append(_Trial(at, types, shares))
    if len(found) < _FEWEST_TRIALS:
        raise CannotTell(f"{op} takes only few of the sizes in range")
    return found


def _at(arg: Arg, at: Evaluation) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_at(item, at) for item in arg)
    return at(arg) if type(arg) is Size else arg


# --- what all trials share


def _pool(call: Mapping[str, Any]) -> list[int]:
    """The sizes and strides that a result's may follow from, each once."""
    found: dict[int, None] = {}

    def note(arg: Any) -> None:
        if type(arg) is Size:
            found[arg] = None
        elif isinstance(arg, _Typed):
            note(arg.type)
        elif isinstance(arg, TensorType):
            note(arg.shape)
            note(arg.strides)
        elif isinstance(arg, TupleType):
            note(arg.elements)
        elif isinstance(arg, tuple):
            for item in arg:
                note(item)

    note(tuple(call.values()))
    return list(found)


def sizes_in(types: Sequence[Type]) -> list[int]:
    """The sizes and strides of types that are known at run time only, each once."""
    return _pool({"types": tuple(types)})


@record
class Fit:
    """Expressions for numbers that are known at several points."""

    op: str
    points: Sequence[Evaluation]
    pool: Sequence[int]

    def type(self, seen: Sequence[Type], sizes: tuple[int, ...] | None) -> Type:
        """The type that is each of those seen."""
        first = seen[0]
        if isinstance(first, TupleType):
            rows = [t.elements for t in seen if isinstance(t, TupleType) and len(t.elements) == len(first.elements)]
            if len(rows) < len(seen):
                raise CannotTell(f"how many results {self.op} has depends on sizes")
            return TupleType(tuple(self.type(column, None) for column in zip(*rows, strict=True)))
        if not isinstance(first, TensorType):
            if any(t != first for t in seen):
                raise CannotTell(f"what {self.op} gives depends on sizes")
            return first
        tensors = [t for t in seen if isinstance(t, TensorType) and t.is_static]
        kinds = {(t.dtype, t.rank, t.device, t.layout) for t in tensors}
        if len(kinds) != 1 or len(tensors) < len(seen):
            raise CannotTell(f"what {self.op} gives depends on sizes")
        columns = list(zip(*(t.sizes for t in tensors), strict=True))
        if sizes is None:
            sizes = tuple(self.number(column, self.pool) for column in columns)
        elif [tuple(self.values(size)) for size in sizes] != columns:
            raise CannotTell(f"{self.op} gives other sizes than its rule")
        return typed(first, sizes, self.strides(tensors, sizes))

    def strides(self, seen: Sequence[TensorType], sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Dense ones in the order of dimensions that all have; else each by itself."""
        if all(t.strides is None for t in seen):
            return row_major(sizes)
        steps = seen[0].steps
        order = sorted(range(len(sizes)), key=lambda d: (-steps[d], d))
        if all(_dense(t.sizes, order) == t.steps for t in seen):
            return _dense(sizes, order)
        more = [*self.pool, *(n for n in _suffixes(sizes) if type(n) is Size)]
        return tuple(self.number(column, more) for column in zip(*(t.steps for t in seen), strict=True))

    def values(self, size: int) -> list[int]:
        """What a size is at each point."""
        return [at(size) for at in self.points]

    def number(self, seen: Sequence[int], pool: Sequence[int]) -> int:
        """The expression that is the number at each point. Raises: CannotTell."""
        if all(n == seen[0] for n in seen):
            return seen[0]
        known = [(size, self.values(size)) for size in pool]
        for made in self._candidates(seen, known):
            if self.values(made) == list(seen):
                return made
        raise CannotTell(f"a size of what {self.op} gives follows no rule: {', '.join(map(str, seen))}")

    def _candidates(self, seen: Sequence[int], known: Sequence[tuple[int, list[int]]]) -> Iterable[int]:
        for size, values in known:
            if values == list(seen):
                yield size
        products = [(a * b, [x * y for x, y in zip(u, v, strict=True)]) for (a, u), (b, v) in combinations(known, 2)]
        for size, values in (*known, *products):
            x, y = next(((i, j) for i, j in combinations(range(len(seen)), 2) if values[i] != values[j]), (0, 0))
            if x == y:
                continue
            factor, rest = divmod(seen[x] - seen[y], values[x] - values[y])
            if not rest and factor:
                yield size * factor + (seen[x] - factor * values[x])
        for (a, _), (b, _) in combinations(known, 2):
            yield a + b
        for (ab, u), (c, v) in ((p, k) for p in products for k in known):
            if all(x * y == n for x, y, n in zip(u, v, seen, strict=True)):
                yield ab * c


def _dense(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    steps = [1] * len(sizes)
    step = 1
    for d in reversed(order):
        steps[d] = step
        step = step * (1 if type(sizes[d]) is int and sizes[d] == 0 else sizes[d])
    return tuple(steps)


def _suffixes(sizes: Sequence[int]) -> Iterable[int]:
    total = 1
    for size in reversed(sizes):
        total = total * size
        yield total


def operands_of(args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> Iterable[Value]:
    """All values of a call."""
    for arg in (*args, *kwargs.values()):
        yield from values_in(arg)
