"""The types of an operator's results where element types are unknown, too.

The operator is asked for every element type that may stand there; what all answers share is kept. Answers are kept by
operator, operand types and literals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from smelt.diag import InternalError
from smelt.ir import (
    ANY,
    Arg,
    DType,
    ListType,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
    Value,
    join,
    map_values,
    values_in,
)
from smelt.ops.meta import Operand, call_key
from smelt.ops.registry import schema_of
from smelt.ops.typing import infer

TENSOR = TensorType(DType.UNKNOWN, None)
_CANDIDATES = (DType.F32, DType.I64, DType.BOOL, DType.F64, DType.C64, DType.BF16)


def infer_open(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Type, ...]:
    """One type per result, as far as these operands tell. An operator that all of them refuse may give anything."""
    key, _ = call_key(args, kwargs)
    return _infer(op, key)


@lru_cache(maxsize=8192)
def _infer(op: str, key: Any) -> tuple[Type, ...]:
    args, kwargs = _values(key)
    known = {v: v.type for a in (*args, *kwargs.values()) for v in values_in(a)}
    if not any(_is_open(t) for t in known.values()):
        return _declared(op, _asked(op, args, kwargs))
    answers = []
    for dtype in _CANDIDATES:
        chosen = {v: Value(v.name, _with(t, dtype), None) for v, t in known.items()}  # type: ignore[arg-type]
        found = _asked(
            op,
            [map_values(a, lambda v, c=chosen: c[v]) for a in args],  # type: ignore[misc]
            {k: map_values(a, lambda v, c=chosen: c[v]) for k, a in kwargs.items()},  # type: ignore[misc]
        )
        if found is not None and ANY not in found:
            answers.append(found)
    if not answers:
        return _declared(op, None)
    shortest = min(len(a) for a in answers)
    joined = tuple(_joined([a[i] for a in answers]) for i in range(shortest))
    return _declared(op, joined)


def _values(key: Any) -> tuple[list[Arg], dict[str, Arg]]:
    """A call again, from its key: values of the types that stand in it."""
    made: dict[int, Value] = {}

    def arg(item: Any) -> Any:
        if isinstance(item, Operand):
            return made.setdefault(item.number, Value(f"v{item.number}", item.type, None))  # type: ignore[arg-type]
        if len(item) == 2 and isinstance(item[0], type):
            kind, value = item
            return kind(value) if kind in (float, complex) else value
        return tuple(arg(inner) for inner in item)

    return [arg(a) for a in key[0]], {k: arg(a) for k, a in key[1]}


def _asked(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Type, ...] | None:
    try:
        return infer(op, args, kwargs)
    except (InternalError, TypeError):
        return None


def _is_open(type_: Type) -> bool:
    if isinstance(type_, TensorType):
        return type_.dtype == DType.UNKNOWN
    if isinstance(type_, TupleType):
        return any(map(_is_open, type_.elements))
    return isinstance(type_, ListType) and _is_open(type_.element)


def _with(type_: Type, dtype: DType) -> Type:
    if isinstance(type_, TensorType) and type_.dtype == DType.UNKNOWN:
        return TensorType(dtype, type_.shape, type_.strides, type_.device, type_.layout)
    if isinstance(type_, TupleType):
        return TupleType(tuple(_with(t, dtype) for t in type_.elements))
    return ListType(_with(type_.element, dtype)) if isinstance(type_, ListType) else type_


def _joined(types: Sequence[Type]) -> Type:
    found = types[0]
    for type_ in types[1:]:
        if isinstance(found, TensorType) and isinstance(type_, TensorType) and found.dtype != type_.dtype:
            found = _with_dtype(found, DType.UNKNOWN)
        found = join(found, type_)
    return found


def _with_dtype(type_: TensorType, dtype: DType) -> TensorType:
    return TensorType(dtype, type_.shape, type_.strides, type_.device, type_.layout)


def _declared(op: str, found: tuple[Type, ...] | None) -> tuple[Type, ...]:
    """Types that the schema allows: a tensor where it gives one, whatever was (not) told."""
    schema = schema_of(op)
    assert schema is not None
    types = []
    for i, returned in enumerate(schema.returns):
        told = found[i] if found is not None and i < len(found) else ANY
        if returned.type == "Tensor" and not isinstance(told, TensorType) and str(told) != "none":
            told = TENSOR
        if returned.type == "List[Tensor]" and not isinstance(told, (TupleType, ListType)):
            told = ListType(TENSOR)
        types.append(told)
    return tuple(types)


def is_known(type_: TensorType) -> bool:
    """Whether rank and element type are known."""
    return type_.shape is not None and type_.dtype != DType.UNKNOWN


def has_open_sizes(type_: TensorType) -> bool:
    """Whether a size or stride is known at run time only."""
    return not type_.is_static or any(isinstance(d, UnknownDim) for d in type_.shape or ())
