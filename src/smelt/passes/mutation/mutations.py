"""The functional counterpart of an operator that writes to its operands.

%y = aten.add_.Tensor(%x, 1)   is   %n = aten.add.Tensor(%x, 1), and %n is what %x holds from then on.

Found by schema, not by name tables: in-place operators by dropping the underscore, `out=` ones by the overload of the
same operator that takes everything but the out arguments, `_foreach_*_` likewise.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import Arg, DType, Node, TensorType, TupleType, Type, Value, contiguous_strides, values_in
from smelt.ir.sizes import is_less, value
from smelt.ops.catalogue.by_channel import BATCH_NORM
from smelt.ops.effects import effects
from smelt.ops.registry import (
    Schema,
    arguments_of,
    functional_name,
    functional_twin,
    is_functional_twin,
    overload,
    schema_of,
    siblings,
    tags_of,
)
from smelt.ops.sets import is_by_elements
from smelt.ops.typing import infer


@record
class Mutation:
    """A functional call that computes what a writing node would have written.

    written: the operands that change, and for each which result of the functional call they then hold (an index;
    for a list result, of its elements). results: for each result of the node, the operand it is, or the index of the
    functional result it equals.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]
    written: tuple[tuple[Value, int], ...]
    results: tuple[Value | int, ...]


def mutation_of(node: Node) -> Mutation | None:
    """How to write a mutating node functionally, or None where it must stay as it is."""
    schema = schema_of(node.op)
    if schema is None or "inplace_view" in tags_of(node.op):
        return None
    if not all(v.type.has_elements for v in (*node.operands(), *node.results) if isinstance(v.type, TensorType)):
        return None  # what operators give for these no rule tells
    if effects(node).rng:
        return _drawn(node, schema)
    if node.op == "aten.batch_norm.default":
        return _batch_norm(node)
    if any(a.is_out for a in schema.arguments):
        return _out_variant(node, schema)
    call = _by_name(schema, node)
    writes = [a for a in schema.arguments if a.is_write]
    if len(writes) != 1 or writes[0].name not in ("self", schema.arguments[0].name):
        return None
    if writes[0].is_list:
        return _foreach(node, schema, call)
    return _in_place(node, schema, call)


def _by_name(schema: Schema, node: Node) -> dict[str, Arg]:
    found = {a.name: v for a, v in zip(schema.positional, node.args, strict=False)}
    found.update(node.kwargs)
    return found


# Eager refuses these where what they write is an operand, too; their functional twins do not.
_APART = frozenset((
    "index_put_", "index_add_", "index_copy_", "scatter_", "scatter_add_", "scatter_reduce_", "masked_scatter_",
))  # fmt: skip


def _in_place(node: Node, schema: Schema, call: dict[str, Arg]) -> Mutation | None:
    name = functional_twin(node.op)
    target = node.args[0] if node.args else None
    if name is None or not isinstance(target, Value):
        return None
    if node.op.split(".")[1] in _APART and target in values_in((node.args[1:], tuple(node.kwargs.values()))):
        return None
    results: tuple[Value | int, ...] = (target,) if len(schema.returns) == 1 else ()
    if len(schema.returns) > 1:
        return None
    return Mutation(name, node.args, node.kwargs, ((target, 0),), results)


_DRAWS = {"aten.normal_.default": "aten.normal_functional.default"}  # of which the twin has another name


def _drawn(node: Node, schema: Schema) -> Mutation | None:
    """`x.normal_()` and kin. Only where `x` lies row by row: else a copy lies otherwise, and torch draws for its
    elements in another order.
    """
    target = node.args[0] if node.args else None
    if not isinstance(target, Value) or not isinstance(target.type, TensorType) or not target.type.is_static:
        return None
    if target.type.layout != "strided" or tuple(target.type.steps) != contiguous_strides(target.type.sizes):
        return None
    name = _DRAWS.get(node.op) or functional_twin(node.op)
    other = None if name is None else schema_of(name)
    if name is None or other is None or not is_functional_twin(name, schema):
        return None
    call = arguments_of(schema, node.args, node.kwargs)
    given = {a.name for a in other.arguments if not a.has_default} | _by_name(schema, node).keys()
    needed = {k: v for k, v in call.items() if k in given} | {other.arguments[0].name: target}
    args, kwargs = _arrange(other, needed)
    return Mutation(name, args, kwargs, ((target, 0),), (target,))


def _foreach(node: Node, schema: Schema, call: dict[str, Arg]) -> Mutation | None:
    name = functional_name(node.op)
    targets = node.args[0] if node.args else None
    if name is None or not isinstance(targets, tuple) or not is_functional_twin(name, schema) or node.results:
        return None
    written = tuple((t, i) for i, t in enumerate(targets) if isinstance(t, Value))
    if len(written) != len(targets) or len({v for v, _ in written}) != len(written):
        return None
    return Mutation(name, node.args, node.kwargs, written, ())


@record
class FunctionalCall:
    """What computes the results that an `out=` operator writes. targets: where it writes them."""

    op: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]
    targets: tuple[Value, ...]


def functional_call(node: Node, schema: Schema) -> FunctionalCall | None:
    """The functional counterpart of an `out=` operator, or None."""
    call = _by_name(schema, node)
    outs = [a.name for a in schema.arguments if a.is_out]
    wanted = [(a.name, a.type) for a in schema.arguments if not a.is_out]
    names = {name for name, _ in wanted}
    for name in siblings(node.op):
        other = schema_of(name)
        if other is None or other.is_mutable or len(other.returns) != len(outs):
            continue
        if [(a.name, a.type) for a in other.arguments if a.name in names] != wanted:
            continue
        if any(not a.has_default for a in other.arguments if a.name not in names):
            continue
        targets = tuple(t for t in (call.get(o) for o in outs) if isinstance(t, Value))
        if len(targets) != len(outs) or len(set(targets)) != len(targets):
            return None
        return _of_dtypes(other, {k: v for k, v in call.items() if k not in outs}, targets)
    return None


def _of_dtypes(schema: Schema, call: dict[str, Arg], targets: tuple[Value, ...]) -> FunctionalCall | None:
    """The call that computes in what torch computes in where it writes to tensors of these dtypes.

    For operators by elements that is the operands' dtype, and the result is converted. Sums and products, running ones
    too, compute in the dtype of `out`, as they do for an explicit `dtype`; so do `var`, `std` and `logsumexp`, which
    take none.
    """
    args, kwargs = _arrange(schema, call)
    found = [_dtype(t) for t in types_of(schema.name, args, kwargs)]
    wanted = [_dtype(t.type) for t in targets]
    if is_by_elements(schema.name) or found == wanted or DType.UNKNOWN in (*found, *wanted):
        return FunctionalCall(schema.name, args, kwargs, targets)
    if all(a.name != "dtype" for a in schema.arguments):
        return None
    if call.get("dtype") is None:
        args, kwargs = _arrange(schema, {**call, "dtype": wanted[0]})
    return FunctionalCall(schema.name, args, kwargs, targets)


def types_of(op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg]) -> list[Type]:
    """The types of an operator's results; none where torch refuses it, which it does when the node itself runs."""
    try:
        return list(infer(op, args, kwargs))
    except InternalError:
        return []


def _dtype(type_: Type) -> DType | None:
    return type_.dtype if isinstance(type_, TensorType) else None


def _out_variant(node: Node, schema: Schema) -> Mutation | None:
    found = functional_call(node, schema)
    if found is None or not all(_keeps_its_size(t, r) for t, r in zip(found.targets, node.results, strict=False)):
        return None
    written = tuple((v, i) for i, v in enumerate(found.targets))
    return Mutation(found.op, found.args, found.kwargs, written, found.targets)


def _keeps_its_size(target: Value, result: Value) -> bool:
    """Whether a tensor that is written has the size of what it then holds; else torch resizes it."""
    a, b = target.type, result.type
    return not (isinstance(a, TensorType) and isinstance(b, TensorType)) or a.shape == b.shape


def _arrange(schema: Schema, call: dict[str, Arg]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    args: list[Arg] = []
    kwargs: dict[str, Arg] = {}
    for argument in schema.arguments:
        if argument.name not in call:
            continue
        position = len(args)
        if not argument.kwarg_only and schema.positional[position].name == argument.name:
            args.append(call[argument.name])
        else:
            kwargs[argument.name] = call[argument.name]
    return tuple(args), kwargs


def _batch_norm(node: Node) -> Mutation | None:
    """Training mode: the running statistics come out as further results."""
    if len(node.args) < 8 or overload(BATCH_NORM) is None:
        return None
    x, weight, bias, mean, var, training, momentum, eps = node.args[:8]
    if training is not True or not isinstance(mean, Value) or not isinstance(var, Value) or mean is var:
        return None
    kind = x.type if isinstance(x, Value) else None
    if not isinstance(kind, TensorType) or not kind.is_static or kind.numel == 0:
        # Eager has an own way for no elements at all.
        return None
    return Mutation(BATCH_NORM, (x, weight, bias, mean, var, True, momentum, eps), {}, ((mean, 3), (var, 4)), (0,))


def _surely_apart(type_: TensorType) -> bool:
    """Whether that is so at all sizes: where one is 1 its step need not pass over anything, and does."""
    reach = 0
    for step, size in sorted(zip(type_.steps, type_.sizes, strict=True), key=_at_hand):
        if not is_less(reach, step):
            return False
        reach = reach + (size - 1) * step
    return True


def _at_hand(pair: tuple[int, int]) -> tuple[int, int]:
    return value(pair[0]), value(pair[1])


def holds(type_: object) -> bool:
    """Whether a type is a static tensor without elements that share an address, or a list of such."""
    if isinstance(type_, TupleType):
        return all(holds(t) for t in type_.elements)
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        return False
    if type_.strides is None or _surely_apart(type_):
        return True
    # From the innermost dimension out, each step must pass over all that the ones before it reach.
    reach = 0
    for step, size in sorted((t, n) for n, t in zip(type_.sizes, type_.steps, strict=True) if n != 1):
        if step <= reach and 0 not in type_.sizes:
            return False
        reach += (size - 1) * step
    return True
