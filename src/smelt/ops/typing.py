"""The types of an operator's results, from the types of its operands.

One ladder. Where sizes are symbols or unknown, the operator's type function is asked first (`shapes`), which runs
nothing. Else in this order: the catalogue's rule, torch's meta kernel, a FakeTensor run, a run on real data; for
operators whose sizes follow the data, several such runs. What no type function tells of symbols and unknown sizes is
tried last: all that for several sizes that they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from smelt.diag import InternalError
from smelt.ir import FLOAT, INT, Arg, TensorType, Type, Value, map_values, values_in
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.catalogue import record_of
from smelt.ops.meta import CannotRun, data_outcome, fake_outcome, meta_outcome, static_outcome, symbolic_outcome
from smelt.ops.python.python_ops import NAMESPACES, infer_python
from smelt.ops.python.scalar_reads import scalar_read
from smelt.ops.registry import arguments_of, schema_of, tags_of
from smelt.ops.shapes.calls import infer_of_unknown, open_call
from smelt.ops.unknown_kinds import infer_kinds
from smelt.ops.unknown_sizes import infer_unknown, is_static_call


def infer(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg] | None = None) -> tuple[Type, ...]:
    """One type per result of the schema; a list result is one TupleType. Strides are those of eager.

    Raises: InternalError (S0902) where no way to tell works; it lists what each said.
    """
    if op.startswith(NAMESPACES):
        return infer_python(op, args)
    scalar = scalar_read(op)
    if scalar is not None:
        return (scalar.result(args),)
    named = kwargs or {}
    tensor, number = (args[0], args[1]) if len(args) > 1 else (None, None)
    if isinstance(tensor, Value) and ("pointwise" in tags_of(op) or op == "aten.fill.Scalar"):
        # Beside a tensor the kind of a number decides.
        is_int = isinstance(number, Value) and number.type == INT and isinstance(tensor.type, TensorType)
        if is_int or is_symbolic(number):
            args = (tensor, 2 if is_int or isinstance(number, int) else 2.5, *args[2:])
        of_floats = tuple(map(_any_float, args)), {name: _any_float(arg) for name, arg in named.items()}
        if not is_static_call(args, named) and is_static_call(*of_floats):
            with suppress(InternalError):
                return _infer_quick(op, *of_floats)
    if open_call(args, named, _own):
        try:
            return symbolic_outcome(op, args, named, _own, _by_trying)[0].types
        except CannotRun:
            if current_trace() is not None:
                raise InternalError(f"the result type of {op} cannot be determined", code="S0902") from None
    if not is_static_call(args, named):
        ruled = _by_rule(op, args, named, of_unknown=True) or infer_of_unknown(op, args, named, static_outcome)
        if ruled is not None:
            return ruled
        return infer_unknown(op, args, named, (_infer_quick, _infer_static))
    return _infer_static(op, args, named)


def infer_unranked(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Type, ...]:
    """The same where ranks and element types of operands may be unknown, too: what the schema says, where these do not
    tell.
    """
    return infer_kinds(op, args, kwargs, infer)


def _any_float(arg: Arg) -> Arg:
    """A float in the place of one that is known at run time only."""
    is_float = isinstance(arg, Value) and not isinstance(arg.type, TensorType) and arg.type == FLOAT
    return 2.5 if is_float else arg


def _own(value: Value) -> Type:
    return value.type


def _by_trying(
    op: str, args: Sequence[Arg], named: Mapping[str, Arg], type_of: Callable[[Value], Type]
) -> tuple[tuple[Type, ...], tuple[frozenset[Value], ...]]:
    """The types by everything that tells them for integers; who shares memory is not asked."""
    standins = {v: Value(v.name, type_of(v), v.owner) for a in (*args, *named.values()) for v in values_in(a)}
    swapped = [map_values(a, standins.__getitem__) for a in args]
    types = _infer_quick(op, swapped, {k: map_values(a, standins.__getitem__) for k, a in named.items()})
    return types, tuple(frozenset() for _ in types)


def _infer_quick(op: str, args: Sequence[Arg], named: Mapping[str, Arg]) -> tuple[Type, ...]:
    """The types by what costs little. Raises: InternalError where that does not tell."""
    ruled = _by_rule(op, args, named)
    if ruled is not None:
        return ruled
    try:
        return meta_outcome(op, args, named)[0].types
    except CannotRun as failure:
        raise InternalError(f"the result type of {op} cannot be determined", why=str(failure), code="S0902") from None


def _infer_static(op: str, args: Sequence[Arg], named: Mapping[str, Arg]) -> tuple[Type, ...]:
    ruled = _by_rule(op, args, named)
    if ruled is not None:
        return ruled
    said: list[str] = []
    record = record_of(op)
    # A view that meta tensors refuse is refused by all tensors; asking on would cost a second for nothing.
    is_view = record is not None and record.alias == "view"
    follows_data = "dynamic_output_shape" in tags_of(op)
    ways = (meta_outcome, data_outcome) if follows_data else (meta_outcome, fake_outcome, data_outcome)
    for way in (meta_outcome,) if is_view else ways:
        try:
            return way(op, args, named)[0].types
        except CannotRun as failure:
            said.append(f"{way.__name__}: {failure}")
    raise InternalError(
        f"the result type of {op} cannot be determined",
        why=f"for operands {', '.join(map(repr, args))}",
        notes=tuple(said),
    )


def _by_rule(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], *, of_unknown: bool = False
) -> tuple[Type, ...] | None:
    record, schema = record_of(op), schema_of(op)
    if record is None or schema is None:
        return None
    rule = record.result_of_unknown if of_unknown else record.result
    return None if rule is None else rule(arguments_of(schema, args, kwargs))
